"""The model gpt against the same networks written in PyTorch: GPT-2's state dict, Llama's, and steps of training."""

import numpy as np
import pytest

from castile.launch import models
from castile.launch.arrays import weights
from castile.launch.jobs.execution import Execution, feed_from, prepare
from castile.planner.cost import CostModel
from castile.planner.families.updates import Updates
from castile.planner.lower import Lowering
from castile.planner.ops.sgd import Sgd
from castile.runtime import machine as machines
from castile.runtime.comm.local import LocalWorld
from tests.effort import rare
from tests.strategies import whole_on
from tests.test_models import forward, values
from tests.training import train

torch = pytest.importorskip("torch", reason="PyTorch is not installed: nothing to compare with")

from safetensors.torch import save_file  # noqa: E402
from torch.nn import functional as F  # noqa: E402

SMALL = {"layers": 3, "width": 24, "heads": 4, "vocab": 50, "positions": 16}
GPT2 = {"layers": 12, "width": 768, "heads": 12, "vocab": 50257, "positions": 1024}


def gpt2_state(layers: int, width: int, heads: int, vocab: int, positions: int, dtype) -> dict:
    """Random numbers under the names and in the shapes of GPT-2's state dict."""
    torch.manual_seed(0)

    def drawn(*shape: int):
        return 0.05 * torch.randn(*shape, dtype=dtype)

    def norm(name: str) -> dict:
        return {f"{name}.weight": 1 + drawn(width), f"{name}.bias": drawn(width)}

    state = {"wte.weight": drawn(vocab, width), "wpe.weight": drawn(positions, width), **norm("ln_f")}
    for n in range(layers):
        state |= {**norm(f"h.{n}.ln_1"), **norm(f"h.{n}.ln_2")}
        for name, inputs, outputs in (
            ("attn.c_attn", width, 3 * width),
            ("attn.c_proj", width, width),
            ("mlp.c_fc", width, 4 * width),
            ("mlp.c_proj", 4 * width, width),
        ):
            state |= {f"h.{n}.{name}.weight": drawn(inputs, outputs), f"h.{n}.{name}.bias": drawn(outputs)}
    return state


def gpt2_logits(state: dict, tokens, heads: int):
    """GPT-2's forward pass as its authors published it, on tokens [b, s]."""

    def conv(name: str, x):
        return x @ state[f"{name}.weight"] + state[f"{name}.bias"]

    def norm(name: str, x):
        return F.layer_norm(x, x.shape[-1:], state[f"{name}.weight"], state[f"{name}.bias"], 1e-5)

    x = state["wte.weight"][tokens] + state["wpe.weight"][: tokens.shape[1]]
    for n in range(sum(name.endswith("c_attn.weight") for name in state)):
        q, k, v = conv(f"h.{n}.attn.c_attn", norm(f"h.{n}.ln_1", x)).chunk(3, dim=-1)
        q, k, v = (t.unflatten(-1, (heads, -1)).transpose(1, 2) for t in (q, k, v))
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        a = scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v
        x = x + conv(f"h.{n}.attn.c_proj", a.transpose(1, 2).flatten(2))
        m = F.gelu(conv(f"h.{n}.mlp.c_fc", norm(f"h.{n}.ln_2", x)), approximate="tanh")
        x = x + conv(f"h.{n}.mlp.c_proj", m)
    return norm("ln_f", x) @ state.get("lm_head.weight", state["wte.weight"]).T


def gpt(shape: dict, seq: int, more: str = ""):
    given = ",".join(f"{name}={value}" for name, value in {**shape, "seq": seq}.items())
    return models.parse(f"gpt:{given}{more}")


def logits_of(model, held, tokens: np.ndarray, dtype: str) -> np.ndarray:
    """What the model says under those parameters, as evaluation runs it on one processor."""
    graph = model.graph(len(tokens), dtype, training=False)
    machine = machines.parse("local:procs=1")
    lowering = Lowering(graph, machine, Updates(Sgd()), mode="forward")
    prepared = prepare(lowering, whole_on(graph), CostModel(machine))
    execution = Execution(graph, prepared, LocalWorld(1).communicators[0], [0])
    execution.initialise(0, held)
    execution.feed(feed_from({"tokens": tokens}))
    execution.runner.run()
    found = execution.output(graph.outputs[0])
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("shape", "seq", "dtype", "tolerance"),
    [
        (SMALL, 16, "float64", 1e-10),
        (SMALL, 9, "float64", 1e-10),
        (SMALL, 16, "float32", 1e-5),
        *rare(pytest.param(GPT2, 12, "float32", 1e-5, marks=pytest.mark.slow)),
    ],
    ids=["small-float64", "shorter-float64", "small-float32", *rare("124M-float32")],
)
def test_a_gpt2_state_dict_gives_pytorchs_logits(tmp_path, shape, seq, dtype, tolerance):
    state = gpt2_state(**shape, dtype=getattr(torch, dtype))
    save_file({f"transformer.{name}": tensor for name, tensor in state.items()}, tmp_path / "gpt2.safetensors")
    model = gpt(shape, seq, ",tied=true,dropout=0.1")
    held = weights.load(tmp_path / "gpt2.safetensors", model)
    tokens = torch.randint(shape["vocab"], (2, seq))
    theirs = gpt2_logits(state, tokens, shape["heads"]).numpy()
    ours = logits_of(model, held, tokens.numpy().astype(np.int32), dtype)
    assert np.abs(ours - theirs).max() <= tolerance * np.abs(theirs).max()
    if shape is SMALL:
        weights.save(tmp_path / "again.safetensors", held, model, standard=True)
        again = weights.File(tmp_path / "again.safetensors")
        assert set(again.names) == set(state)
        assert all(np.array_equal(again.read(name), tensor.numpy()) for name, tensor in state.items())


def llama_logits(held: dict, tokens, heads: int, groups: int, base: float, eps: float):
    """A Llama's forward pass on tokens [b, s], under our names."""

    def linear(name: str, x):
        return x @ held[f"{name}.weight"].T

    def norm(name: str, x):
        return F.rms_norm(x, x.shape[-1:], held[f"{name}.weight"], eps)

    def turned(x):
        half = x.shape[-1] // 2
        angles = torch.arange(x.shape[-2], dtype=x.dtype)[:, None] * base ** (-torch.arange(half, dtype=x.dtype) / half)
        c, s = angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)
        return x * c + torch.cat((-x[..., half:], x[..., :half]), -1) * s

    x = held["tok.weight"][tokens]
    for n in range(1, 1 + sum(name.endswith("gate.weight") for name in held)):
        a = norm(f"block{n}.norm1", x)
        q, k, v = (
            linear(f"block{n}.{part}", a).unflatten(-1, (num, -1)).transpose(1, 2)
            for part, num in (("q", heads), ("k", groups), ("v", groups))
        )
        a = F.scaled_dot_product_attention(turned(q), turned(k), v, is_causal=True, enable_gqa=True)
        x = x + linear(f"block{n}.o", a.transpose(1, 2).flatten(2))
        m = norm(f"block{n}.norm2", x)
        x = x + linear(f"block{n}.down", F.silu(linear(f"block{n}.gate", m)) * linear(f"block{n}.up", m))
    return linear("head", norm("norm", x))


@pytest.mark.parametrize(
    ("name", "base", "eps"),
    [("gpt:norm=rms,rotary=true,mlp=silu,bias=false", 1e4, 1e-5), ("llama:base=5e5,eps=1e-3", 5e5, 1e-3)],
    ids=["gpt", "llama"],
)
def test_a_llama_gives_pytorchs_logits(tmp_path, name, base, eps):
    model = models.parse(f"{name},layers=2,width=24,heads=6,kv_heads=2,vocab=40,hidden=50,seq=11")
    graph = model.graph(2, "float64")
    held = values(graph)
    weights.save(tmp_path / "llama", {t.name: held[t.name] for t in graph.params}, model, standard=True)
    assert "layers.1.self_attn.k_proj.weight" in weights.File(tmp_path / "llama").names
    tokens = np.random.default_rng(0).integers(0, 40, (2, 11)).astype(np.int32)
    ours = logits_of(model, weights.load(tmp_path / "llama", model), tokens, "float64")
    state = {n: torch.from_numpy(a) for n, a in held.items()}
    theirs = llama_logits(state, torch.from_numpy(tokens).long(), 6, 2, base, eps)
    assert np.abs(ours - theirs.numpy()).max() <= 1e-10 * theirs.abs().max()


@pytest.mark.parametrize("more", ["", ",tied=true", ",class_blocks=5"])
def test_training_is_pytorchs(more):
    model = gpt(SMALL, 12, more)
    graph = model.graph(3, "float64")
    held = {t.name: values(graph)[t.name] for t in graph.params}
    rng = np.random.default_rng(1)
    data = [{name: rng.integers(0, 50, (3, 12)).astype(np.int32) for name in ("tokens", "targets")} for _ in range(5)]
    machine = machines.parse("local:procs=1")
    ours = train(graph, whole_on(graph), machine, data, held, rate=0.1, updates=Updates(Sgd(momentum=0.9)))
    theirs = {name: torch.tensor(array, requires_grad=True) for name, array in held.items()}
    optimizer = torch.optim.SGD(theirs.values(), lr=0.1, momentum=0.9)
    for arrays, loss in zip(data, ours.losses, strict=True):
        found = _loss(theirs, arrays)
        optimizer.zero_grad()
        found.backward()
        optimizer.step()
        assert abs(loss - float(found.detach())) <= 1e-10 * abs(loss)
    for name, tensor in theirs.items():
        ended = ours.carried[name]
        # a bias of keys moves by rounding only
        assert np.abs(ended - tensor.detach().numpy()).max() <= 1e-9 * max(np.abs(ended).max(), 1e-3), name


def _loss(held: dict, arrays: dict[str, np.ndarray]):
    state = {"wte.weight": held["tok.weight"], "wpe.weight": held["pos.weight"]}
    state |= {f"ln_f.{kind}": held[f"norm.{kind}"] for kind in ("weight", "bias")}
    for n in range(SMALL["layers"]):
        block = {
            name.removeprefix(f"block{n + 1}."): t for name, t in held.items() if name.startswith(f"block{n + 1}.")
        }
        fused = {kind: torch.cat([block[f"{part}.{kind}"] for part in "qkv"]) for kind in ("weight", "bias")}
        layers = {"attn.c_attn": fused}
        layers |= {
            theirs: {kind: block[f"{ours}.{kind}"] for kind in ("weight", "bias")}
            for ours, theirs in (("o", "attn.c_proj"), ("up", "mlp.c_fc"), ("down", "mlp.c_proj"))
        }
        for name, layer in layers.items():
            state |= {f"h.{n}.{name}.weight": layer["weight"].T, f"h.{n}.{name}.bias": layer["bias"]}
        state |= {f"h.{n}.ln_{i}.{kind}": block[f"norm{i}.{kind}"] for i in (1, 2) for kind in ("weight", "bias")}
    if "head.weight" in held:
        state["lm_head.weight"] = held["head.weight"]
    logits = gpt2_logits(state, torch.from_numpy(arrays["tokens"]).long(), SMALL["heads"])
    return F.cross_entropy(logits.flatten(0, 1), torch.from_numpy(arrays["targets"]).long().flatten())


def test_dropout_is_for_training_only():
    model = gpt(SMALL, 12, ",dropout=0.2")
    training, evaluation = (model.graph(2, "float64", training=mode) for mode in (True, False))
    dropped = {name for name, node in training.nodes.items() if node.op.name == "dropout"}
    assert len(dropped) == 1 + 2 * SMALL["layers"]
    assert set(training.nodes) - dropped == set(evaluation.nodes)
    assert {t.name for t in training.params} == {t.name for t in evaluation.params}


def test_blocks_of_classes_change_nothing_but_the_loss_node():
    one, many = (gpt(SMALL, 12, more).graph(2, "float64") for more in ("", ",class_blocks=10"))
    env = values(one)
    env["targets"][:] = np.arange(24).reshape(2, 12)
    assert set(many.nodes) - set(one.nodes) == {"loss.blocks"}
    assert abs(forward(one, env)["loss"] - forward(many, env)["loss"]) <= 1e-14


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("kv_heads=3", "heads 4 should be a multiple of kv_heads, 3"),
        ("norm=batch", "norm should be layer or rms, got 'batch'"),
        ("mlp=relu", "mlp should be gelu or silu"),
        ("positions=7", "positions 7 should be at least seq, 128"),
        ("rotary=true,positions=200", "there is none"),
        ("rotary=true,width=12", "heads of 3 features are odd"),
        ("dropout=1.0", "dropout should be"),
        ("class_blocks=257", "256 classes are cut into 1 to as many blocks, not 257"),
    ],
)
def test_settings_that_do_not_go_together_are_refused_in_words(more, words):
    with pytest.raises(ValueError, match=words):
        models.parse(f"gpt:{more}").graph()
