"""Classes that weigh more in the loss that a network of a file is given: it is the defined one, and what is exported is
the network's alone.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from castile.launch import models
from castile.launch.__main__ import main
from castile.launch.arrays import weights
from tests.answers import answer
from tests.test_models import forward

onnx = pytest.importorskip("onnx")

WEIGHTS = (0.5, 4.0, 2.5)
GIVEN = "+".join(map(str, WEIGHTS))
NETS = {
    "dense": """<ir_version: 8, opset_import: ["" : 17]>
        dense (float[batch, 5] x) => (float[batch, 3] said) {
            logits = Gemm <transB = 1> (x, weight, bias)
            said = Softmax (logits)
        }""",
    "pixels": """<ir_version: 8, opset_import: ["" : 17]>
        pixels (float[batch, 5, 4, 2] x) => (float[batch, 3, 4, 2] said) {
            said = Conv <kernel_shape = [1, 1]> (x, weight, bias)
        }""",
    "own": """<ir_version: 8, opset_import: ["" : 17]>
        own (float[batch, 5] x) => (float loss) {
            said = Gemm <transB = 1> (x, weight, bias)
            loss = ReduceMean <keepdims = 0> (said)
        }""",
}


def write(kind: str) -> str:
    """The path of a network's file, in this folder."""
    random, net = np.random.default_rng(0), onnx.parser.parse_model(NETS[kind])
    for name, shape in {"weight": (3, 5, 1, 1)[: 4 if kind == "pixels" else 2], "bias": (3,)}.items():
        net.graph.initializer.append(onnx.numpy_helper.from_array(random.normal(size=shape).astype("float32"), name))
    onnx.save(net, "net.onnx")
    return "net.onnx"


def samples(kind: str, count: int) -> dict[str, np.ndarray]:
    random, dims = np.random.default_rng(1), (4, 2) if kind == "pixels" else ()
    return {"x": random.normal(size=(count, 5, *dims)), "label": random.integers(0, 3, (count, *dims)).astype(np.int32)}


def losses_of(path: str, given: dict[str, np.ndarray]) -> np.ndarray:
    """What each label costs by the numbers in the file."""
    kept = {one.name: onnx.numpy_helper.to_array(one) for one in onnx.load(path).graph.initializer}
    logits = np.einsum("bi...,oi->b...o", given["x"], kept["weight"].reshape(3, 5).astype(float)) + kept["bias"]
    return np.log(np.exp(logits).sum(-1)) - np.take_along_axis(logits, given["label"][..., None], -1)[..., 0]


@pytest.mark.parametrize("kind", ["dense", "pixels"])
def test_the_loss_is_the_mean_of_what_labels_cost_times_their_weights(kind: str, alone: Path) -> None:
    path, given = write(kind), samples(kind, 6)
    model = models.parse(f"{path}:loss=cross_entropy,class_weights={GIVEN}")
    graph = model.graph(6, "float64")
    begun = {name: np.asarray(graph.tensors[name].init.values) for name in graph.states}
    found = forward(graph, {**begun, **weights.load(path, model, graph), **given})
    wanted = (losses_of(path, given) * np.array(WEIGHTS)[given["label"]]).mean()
    assert float(found[graph.loss]) == pytest.approx(wanted, rel=1e-12)


def test_weights_of_classes_are_not_exported(alone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The network takes what is, with and without such weights."""
    path, given = write("dense"), samples("dense", 8)
    np.savez("data.npz", x=given["x"].astype("float32"), label=given["label"])
    data = ["--data", "numpy:train=data.npz,held_out=data.npz", "--batch", "8"]
    weighted = f"{path}:class_weights={GIVEN}"
    words = ["--search", "data_parallel", "--steps", "1", "--weights", path, "--lr", "1e-9", "--checkpoint", "run"]
    answer(capsys, "train", weighted, *data, *words)
    assert main(["checkpoint", "export", "run", "--out", "all.safetensors", "--state"]) == 0
    assert {*load_file("all.safetensors")} >= {"weight", "bias", "loss.classes", "loss.weights"}
    assert main(["checkpoint", "export", "run", "--out", "w.safetensors"]) == 0
    capsys.readouterr()
    assert {*load_file("w.safetensors")} == {"weight", "bias"}
    # nor do they come back with what a training leaves: those count that the command line has
    begun = [
        answer(capsys, "train", f"{path}:class_weights={given}", *data, *words[:-2], "--weights", file)["losses"]
        for given in (GIVEN, "+".join(["7"] * len(WEIGHTS))) for file in ("w.safetensors", "all.safetensors")
    ]  # fmt: skip
    assert begun[0] == begun[1] != begun[2] == begun[3]
    # and a training goes on with those that it began with alone
    others = "+".join(["7"] * len(WEIGHTS))
    for asked, status in ((GIVEN, 0), (others, 2)):
        again = ["train", f"{path}:class_weights={asked}", *data, *words, "--steps", "2", "--resume"]
        assert main(again) == status
    assert re.search(r"was trained with loss\.weights .*, and the model has 7, 7.* now: ", capsys.readouterr().err)
    told = [answer(capsys, "predict", text, *data, "--weights", "w.safetensors") for text in (weighted, path)]
    # held-out samples are judged without weights
    wanted = losses_of(path, given).mean()
    assert [one["quality"]["loss"] for one in told] == pytest.approx([wanted, wanted], rel=1e-5)


@pytest.mark.parametrize(
    ("kind", "settings", "said"),
    [("dense", "class_weights=1+2", r"class_weights=1\+2: give a number above 0 for each class: .* take as many"),
     ("dense", "class_weights=1+x+1", r"class_weights=1\+x\+1: give a number above 0 for each class"),
     ("dense", "loss=mse,class_weights=1+2+3", r"class_weights=1\+2\+3 means nothing for loss=mse"),
     ("own", "class_weights=1+2+3", r"is a loss of its own: leave out class_weights=1\+2\+3")],
)  # fmt: skip
def test_what_weighs_no_classes_is_refused(kind: str, settings: str, said: str, alone: Path) -> None:
    with pytest.raises(ValueError, match=said):
        models.parse(f"{write(kind)}:{settings}").graph(6)
