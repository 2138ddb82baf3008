"""Every model computes what its paper, or the code that is known for it, says: outputs and loss, in training and after.

Numbers of parameters and shapes do not tell a rectifier that is missing, a stride in the wrong place or a head too few.
"""

import inspect

import numpy as np
import pytest

from castile.launch import models
from castile.planner.graph import Graph
from castile.runtime import rng
from tests import plain_networks
from tests.op_laws import relative
from tests.plain import Given
from tests.test_models import forward, small

# Forms of a model that are other networks than the small one.
FORMS = [
    "mlp:layers=3,width=5,size=3",
    "alexnet:size=63,width=1,hidden=5,classes=4,dropout=0.3",
    "vgg:depth=13,size=32,width=1,hidden=6,classes=4,dropout=0.3",
    "vgg:depth=16,size=32,width=1,hidden=6,classes=4,dropout=0",
    "vgg:depth=19,size=32,width=1,hidden=6,classes=4,dropout=0",
    "resnet:depth=18,size=33,width=2,classes=4",
    "resnet:depth=50,blocks=2,size=32,width=1,classes=4",
    "inception:size=75,width=2,blocks=2,classes=4,dropout=0.2,aux=true",
    "inception:size=75,width=1,blocks=1,classes=4,dropout=0,norm=false",
    "gpt:layers=2,width=8,heads=2,seq=6,vocab=11,positions=9,dropout=0.2,tied=true",
    "gpt:layers=2,width=16,heads=4,kv_heads=2,hidden=12,seq=6,vocab=11,rotary=true,norm=rms,mlp=silu,bias=false",
    "llama:size=8b,layers=2,width=16,heads=4,kv_heads=1,hidden=12,seq=6,vocab=11,eps=0.01",
    "llama:size=2-7b,layers=2,width=16,heads=4,kv_heads=4,hidden=12,seq=6,vocab=11,tied=true,base=20",
    "bert:layers=2,width=8,heads=4,seq=6,vocab=11,positions=8,dropout=0.2",
    "moe:layers=4,width=8,heads=2,seq=7,vocab=11,experts=4,choices=2,capacity=0.7,balance=0.5",
    "moe:layers=2,width=8,heads=4,seq=7,vocab=11,experts=3,choices=1,capacity=1.0,balance=0",
    "moe:layers=2,width=8,heads=4,kv_heads=2,seq=7,vocab=11,experts=3",
    "moe:size=8x7b,layers=2,width=16,heads=4,kv_heads=2,hidden=6,seq=7,vocab=11,experts=4",
]
NOISE = 7


def drawn(graph: Graph) -> dict[str, np.ndarray]:
    """Parameters, running statistics and inputs, none of them what a network begins with."""
    env: dict[str, np.ndarray] = {"noise": np.array(NOISE)}
    for t in (*graph.params, *(graph.tensors[name] for name in graph.states)):
        fans = t.shape[-1] if len(t.shape) == 2 else np.prod(t.shape[1:])
        about = 1.0 if len(t.shape) == 1 and t.name.endswith(("weight", "var")) else 0.0
        number = rng.normal(0, t.name, t.shape) / np.sqrt(fans)
        env[t.name] = about + (0.3 if len(t.shape) == 1 else 1.4) * number
        if t.name.endswith("var"):
            env[t.name] = np.abs(env[t.name])
    for name in graph.inputs:
        t = graph.tensors[name]
        number = rng.normal(1, name, t.shape)
        top = {"tokens": 9, "targets": 9, "source": 9, "given": 9, "label": 3, "categories": 3}.get(name, 2)
        env[name] = (np.abs(number * 100) % top).astype(np.int64) if "int" in t.dtype or name == "label" else number
    return env


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("text", [*map(small, models.available()), *FORMS])
def test_a_model_computes_what_its_definition_says(text: str, training: bool) -> None:
    model = models.parse(text)
    graph = model.graph(batch=3, dtype="float64", training=training)
    env = drawn(graph)
    found = forward(graph, env)
    drops = {node.name: node for node in graph.nodes.values() if node.op.name == "dropout"}
    given = Given(env, training, {name: found[name] for name in drops})
    call = inspect.signature(model.build).bind(**model.settings)
    call.apply_defaults()
    definition = getattr(plain_networks, model.name)
    asked = inspect.signature(definition).parameters
    outputs, loss = definition(given, **{name: value for name, value in call.arguments.items() if name in asked})
    for name, output in zip(graph.outputs, outputs, strict=True):
        assert relative(found[name], output) < 1e-10
    assert relative(found[graph.loss].reshape(1), np.reshape(loss, 1)) < 1e-10
    rate = call.arguments.get("dropout", 0) if training else 0
    assert {name: node.op.rate for name, node in drops.items()} == dict.fromkeys(given.before if rate else (), rate)
    for name, node in drops.items():
        assert relative(found[node.inputs[0]], given.before[name]) < 1e-10


# Features of a head, as the papers' tables have them; 24 heads of GPT-3's 1.3b are no width of 2048.
HEADS = {
    **{f"gpt:size={size}": 64 for size in ("124m", "355m", "774m", "1.5b", "125m", "350m")},
    "gpt:size=760m": 96,
    "gpt:size=2.7b": 80,
    **{f"gpt:size={size}": 128 for size in ("1.3b", "6.7b", "13b", "175b")},
    **{f"llama:size={size}": 128 for size in ("2-7b", "2-13b", "2-70b", "8b", "70b", "405b")},
    **{f"moe:size={size}": 128 for size in ("8x7b", "8x22b")},
    **{f"bert:size={size}": 64 for size in ("base", "large")},
    **{f"vit:form={form}": 64 for form in ("b16", "b32", "l16", "l32")},
    "vit:form=h14": 80,
}


def test_heads_are_as_wide_as_published() -> None:
    """No number of parameters tells how many heads there are."""
    for text, features in HEADS.items():
        graph = models.parse(f"{text},layers=1").graph(1)
        (node,) = (node for node in graph.nodes.values() if node.op.name == "attention")
        heads = node.op.r * node.alignment.extents["h"]
        assert graph.tensors[node.name].shape[-1] == features * heads, text
