"""Networks out of ONNX files compute what ONNX's own evaluator says, are trained under any plan, and bring weights."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnx")

import onnx

from castile.launch import models
from castile.launch.__main__ import main
from castile.launch.arrays import weights
from castile.planner import rewrite as rewrites
from castile.planner.graph import Graph
from castile.planner.known.seeds import seeds
from castile.planner.lower import Lowering
from castile.planner.strategy import Config, Strategy
from castile.runtime import machine
from tests import onnx_networks
from tests.answers import answer
from tests.effort import rare
from tests.judged import judge
from tests.onnx_networks import NETWORKS, expected, network, samples, write
from tests.op_laws import relative
from tests.test_models import forward
from tests.training import SGD, Trained, difference, train

MLP = """<ir_version: 8, opset_import: ["" : 17]>
mlp (float[N, 1, 8, 8] image) => (float[N, 10] said) {
    flat = Flatten (image)
    a = Gemm <transB = 1> (flat, fc1_weight, fc1_bias)
    b = Relu (a)
    c = MatMul (b, fc2_turned)
    d = Add (c, fc2_bias)
    e = Relu (d)
    f = Gemm <transB = 1> (e, head_weight, head_bias)
    said = Softmax (f)
}"""
WIDTH = 12
SHAPES = {
    "fc1_weight": (WIDTH, 64), "fc1_bias": (WIDTH,), "fc2_turned": (WIDTH, WIDTH), "fc2_bias": (WIDTH,),
    "head_weight": (10, WIDTH), "head_bias": (10,),
}  # fmt: skip


def said(path: str, given: dict[str, np.ndarray], batch: int) -> list[np.ndarray]:
    """What the definitions of castile's kernels say of a file's network, with the file's weights."""
    model = models.parse(path)
    graph = model.graph(batch, "float64", training=False)
    found = forward(graph, {**weights.load(path, model, graph), **asked(graph, given)})
    return [found[name] for name in graph.outputs]


def asked(graph: Graph, given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The inputs, and zeros for what the output is compared with."""
    return {name: given.get(name, np.zeros(graph.tensors[name].shape, np.int32)) for name in graph.inputs}


@pytest.mark.parametrize("batch", [2, 3])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_computes_what_its_file_says(name: str, batch: int, tmp_path: Path) -> None:
    proto = onnx_networks.model(name)
    given = samples(proto, batch)
    if told := proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value:
        # of a file that is written for so many samples
        parts = [{n: a[[(i + more) % batch for more in range(told)]] for n, a in given.items()} for i in range(batch)]
        wanted = [np.concatenate([expected(proto, part)[0][:1] for part in parts])]
    else:
        wanted = expected(proto, given)
    found = said(write(proto, tmp_path / f"{name}.onnx"), given, batch)
    for one, other in zip(found, wanted, strict=True):
        assert one.shape == other.shape and relative(one, other) < 2e-6


@pytest.mark.parametrize(
    ("name", "ops"),
    [
        ("block", "layer_norm gelu silu embedding attention"), ("cnn", "batch_norm pad clamp"),
        ("unfolded", "rms_norm attention"), ("single", "attention"),
    ],
)  # fmt: skip
def test_what_is_written_in_pieces_is_one_operator(name: str, ops: str, tmp_path: Path) -> None:
    graph = models.parse(write(onnx_networks.model(name), tmp_path / "it.onnx")).graph(2)
    there = [node.op.name for node in graph.nodes.values()]
    assert set(ops.split()) <= set(there)
    assert not {"sqrt", "div", "sigmoid", "softmax"}.intersection(there)
    if name == "block":
        assert [t.shape for t in graph.params if t.name == "table"] == [(11, 8)]
        assert all(len(n.inputs) == 3 for n in graph.nodes.values() if n.op.name == "linear" and n.name == "q1")


def test_weights_stay_what_they_are_where_parts_of_them_are_taken(tmp_path: Path) -> None:
    graph = models.parse(write(onnx_networks.model("patches"), tmp_path / "it.onnx")).graph(3)
    # what no weight of the network fills in is carried, and what an Identity names is a weight of its own
    assert {t.name for t in graph.params} == {*NETWORKS["patches"][1], "other"}
    assert graph.states == ["ones", "zeros"]
    assert graph.tensors["table"].shape == (1, 9, 4) and graph.tensors["first"].shape == (1, 1, 4)


NOTED = """<ir_version: 10, opset_import: ["" : 20]>
noted (int64[N, 5] tokens) => (float[N, 5, 11] said) {
    x = Gather (table, tokens)
    turned = Mul (x, val_4)
    placed = Add (turned, embedding)
    a = MatMul (placed, val_1)
    b = Add (a, fc_bias)
    c = Add (b, val_2)
    said = MatMul (c, val_3)
}"""
KIND = "pkg.torch.export.graph_signature.InputSpec.kind"
SOURCES = "pkg.onnxscript.optimizer.folded_from"


def noted() -> onnx.ModelProto:
    """A network as PyTorch's exporter optimises it: with what it turned, computed and knew under other names."""
    table = np.random.default_rng(0).normal(size=(11, 8)).astype(np.float32)
    proto = network(
        NOTED,
        table=table,
        val_4=(5, 8),
        embedding=(5, 8),
        val_1=(8, 8),
        val_2=(5, 8),
        val_3=table.T.copy(),
        fc_bias=(8,),
    )
    told = ["p_table: PARAMETER target='table'", "p_fc_weight: PARAMETER target='fc.weight'"]
    told += [
        "p_fc_bias: PARAMETER target='fc_bias'",
        "p_places: PARAMETER target='places'",
        "b_angles: BUFFER target='angles' persistent=False",
    ]
    signature = "\n# inputs\n" + "\n".join(told) + "\ntokens: USER_INPUT\n"
    proto.graph.metadata_props.add(key="pkg.torch.export.ExportedProgram.graph_signature", value=signature)
    notes = {
        "table": (KIND, "PARAMETER"), "fc_bias": (KIND, "PARAMETER"), "val_1": (SOURCES, "['fc.weight']"),
        "val_4": (SOURCES, "['angles', 'arange']"), "embedding": (SOURCES, "['places', 'arange']"),
        "val_2": (KIND, "BUFFER"), "val_3": (SOURCES, "['table']"),
    }  # fmt: skip
    for name, (key, value) in notes.items():
        proto.graph.value_info.add(name=name).metadata_props.add(key=key, value=value)
    return proto


def test_numbers_are_what_the_exporter_notes_of_them(tmp_path: Path) -> None:
    proto = noted()
    given = samples(proto)
    path = write(proto, tmp_path / "net.onnx")
    graph = models.parse(path).graph(2)
    # a weight that was turned has its own name and form, a head the table's that it shares, and no mask is trained
    shapes = {"table": (11, 8), "fc.weight": (8, 8), "fc_bias": (8,), "embedding": (5, 8)}
    assert {t.name: t.shape for t in graph.params} == shapes
    assert graph.states == ["val_4", "val_2"]
    assert relative(said(path, given, 2)[0], expected(proto, given)[0]) < 2e-6


@pytest.mark.parametrize("damage", ["other", "text", "without"])
def test_what_was_not_noted_so_is_a_weight_of_its_own(damage: str, tmp_path: Path) -> None:
    proto = noted()
    if damage == "without":
        del proto.graph.metadata_props[:]
    for value in proto.graph.value_info:
        if value.name == "val_3" and damage == "text":
            value.metadata_props[0].value = "__import__('os')"
    for tensor in proto.graph.initializer:
        if tensor.name == "val_3" and damage == "other":
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.ones((8, 11), np.float32), "val_3"))
    given = samples(proto)
    path = write(proto, tmp_path / "net.onnx")
    params = {t.name for t in models.parse(path).graph(2).params}
    assert "table" in params and "val_3" in params
    assert ("val_4" in params) == ("val_1" in params) == (damage == "without")
    assert relative(said(path, given, 2)[0], expected(proto, given)[0]) < 2e-6


def plans(graph: Graph, num_procs: int) -> list[Strategy]:
    """One that cuts every node along its last free axis, and known plans where all are tried."""
    lowering = Lowering(graph, machine.local(num_procs), SGD)
    cut = {}
    for name, node in graph.nodes.items():
        free = [a for a in node.alignment.axes if a not in node.alignment.frozen and node.alignment.extents[a] > 1]
        cut[name] = Config({free[-1]: 2}, procs=(1, 0)) if free else Config()
    return [Strategy(cut, num_procs=num_procs), *rare(*seeds(lowering).values())]


def two_steps(graph: Graph, values: dict[str, np.ndarray], plan: Strategy | None = None) -> Trained:
    """What two steps make of a network that begins with these weights, on one processor or by a plan for two."""
    rng = np.random.default_rng(3)
    data = [
        {
            n: rng.normal(size=t.shape) if t.floating else rng.integers(0, 5, t.shape).astype(t.dtype)
            for n, t in ((n, graph.tensors[n]) for n in graph.inputs)
        }
        for _ in range(2)
    ]
    whole = Strategy({n: Config() for n in graph.nodes})
    return train(graph, plan or whole, machine.local(2 if plan else 1), data, values)


def are_alike(found: Trained, whole: Trained) -> bool:
    apart = (difference(found.carried[n], whole.carried[n], 1.0) for n in whole.carried)
    return relative(found.losses, whole.losses) < 1e-10 and all(one < 1e-9 for one in apart)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_is_trained_alike_under_every_plan_and_rewritten(name: str, tmp_path: Path) -> None:
    path = write(onnx_networks.model(name), tmp_path / f"{name}.onnx")
    loss = "mse" if name == "recurrent" else "cross_entropy"
    model = models.parse(f"{path}:loss={loss}")
    graph = model.graph(4, "float64")
    if scalars := [n.name for n in graph.nodes.values() if n.op.name == "dropout"]:
        assert scalars == ["f"]
    values = weights.load(path, model, graph)
    whole = two_steps(graph, values)
    assert np.isfinite(whole.losses).all() and whole.losses[0] != whole.losses[1]
    for plan in plans(graph, 2):
        assert are_alike(two_steps(graph, values, plan), whole)
    made = {one.fingerprint: one for one in (rewrites.apply(name, graph) for name in rewrites.available())}
    for other in (one for fingerprint, one in made.items() if fingerprint != graph.fingerprint):
        assert are_alike(two_steps(other, values), whole)


def test_an_imported_network_learns_as_castiles_own(tmp_path: Path) -> None:
    path = write(network(MLP, **SHAPES), tmp_path / "mlp.onnx")
    theirs, ours = models.parse(path), models.parse(f"mlp:width={WIDTH}")
    graphs = [model.graph(8, "float64") for model in (theirs, ours)]
    values = dict(weights.load(path, theirs, graphs[0]))

    def own(name: str) -> str:
        return name.replace("fc2_turned", "fc2_weight").replace("_", ".")

    rng = np.random.default_rng(0)
    data = [{"image": rng.normal(size=(8, 1, 8, 8)), "label": rng.integers(0, 10, 8)} for _ in range(3)]
    trained = []
    for graph, given in zip(graphs, (values, {own(n): a for n, a in values.items()}), strict=True):
        plan = seeds(Lowering(graph, machine.local(2), SGD))["data_parallel"]
        trained.append(train(graph, plan, machine.local(2), data, given))
    assert relative(trained[0].losses, trained[1].losses) < 1e-12
    for name, array in trained[0].carried.items():
        assert relative(array, trained[1].carried[own(name)]) < 1e-12


def test_commands_take_a_file_as_they_take_a_model(alone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    proto = network(MLP, **SHAPES)
    write(proto, alone / "net.onnx")
    planned = answer(
        capsys, "plan", "net.onnx", "--machine", "dgx-h100:nodes=1", "--budget", "20", "--out", "plan.json"
    )
    assert planned["found"]["step_seconds"] > 0
    assert answer(capsys, "simulate", "plan.json")["step_seconds"] > 0
    assert answer(capsys, "simulate", "net.onnx", "--machine", "local:procs=2")["step_seconds"] > 0
    run = answer(
        capsys, "train", "net.onnx", "--data", "digits", "--steps", "6", "--weights", "net.onnx", "--search",
        "data_parallel", "--checkpoint", "run", "--evaluate-every", "6",
    )  # fmt: skip
    assert len(run["losses"] if "losses" in run else [0] * 6) == 6
    for source in (("--weights", "net.onnx"), ("--checkpoint", "run")):
        told = answer(capsys, "predict", "net.onnx", *source, "--data", "digits", "--batch", "32", "--out", "said.npz")
        with np.load("said.npz") as file:
            np.testing.assert_allclose(file["said"].sum(axis=1), 1, rtol=1e-5)
        assert 0 < told["quality"]["loss"] < 4, json.dumps(told["quality"])
    # what was trained goes back by its own names
    assert main(["checkpoint", "export", "run", "--out", "w.safetensors"]) == 0
    capsys.readouterr()
    again = answer(capsys, "predict", "net.onnx", "--weights", "w.safetensors", "--data", "digits", "--batch", "32")
    assert again["quality"] == told["quality"]


ENDS = """<ir_version: 8, opset_import: ["" : 17]>
net (float[N, 4] x) => (float[N, 3] y) {{ a = MatMul (x, w) y = {end} (a) }}"""


@pytest.mark.parametrize(
    ("end", "loss"), [("Softmax", "cross_entropy"), ("Sigmoid", "bce"), ("LogSoftmax", "cross_entropy")]
)
def test_probabilities_are_judged_as_what_they_were_made_of(end: str, loss: str, tmp_path: Path) -> None:
    path = write(network(ENDS.format(end=end), w=(4, 3)), tmp_path / "net.onnx")
    model, rng = models.parse(f"{path}:loss={loss}"), np.random.default_rng(0)
    given, truth = {"x": rng.normal(size=(6, 4))}, rng.integers(0, 3, 6)
    if loss == "bce":
        truth = rng.integers(0, 2, (6, 3)).astype(float)
    graph, trained = model.graph(6, "float64", training=False), model.graph(6, "float64")
    given["label" if loss == "cross_entropy" else "target"] = truth
    values = weights.load(path, model, graph)
    found = forward(graph, {**values, **given})
    told = judge(graph, [(found[graph.outputs[0]], truth)], 6)
    assert told is not None and told.loss == pytest.approx(found["loss"]) and told.accuracy is not None
    assert {node.op.name for node in trained.nodes.values()} == {"linear", loss}


def test_settings_name_lengths_inputs_and_losses(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
    open (float[N, T, 3] x) => (float[N, T, 2] y) { y = MatMul (x, w) }"""
    path = write(network(text, w=(3, 2)), tmp_path / "open.onnx")
    with pytest.raises(
        ValueError, match=r"leaves the length 'T' of its input 'x' open: say it, as in .*open.onnx:T=128"
    ):
        models.parse(path).graph(2)
    graph = models.parse(f"{path}:T=5,inputs=numbers,loss=bce").graph(3)
    assert graph.tensors["numbers"].shape == (3, 5, 3) and graph.nodes["loss"].op.name == "bce"
    for wrong, sentence in (
        ("T=5,loss=hinge", "no loss 'hinge'"), ("T=5,inputs=a+b", "should name its 1 inputs, x"),
        ("T=5,frozen=v*", r"frozen=v\*: no parameter has a name like that"), ("T=5,frozen=w", "none is left to train"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=sentence):
            models.parse(f"{path}:{wrong}").graph(2)
    with pytest.raises(ValueError, match="no setting 'U'"):
        models.parse(f"{path}:U=5")
    text = """<ir_version: 8, opset_import: ["" : 17]>
    two (float[N, 3] x, float[N, 3] y) => (float[N, 2] z) { s = Add (x, y) z = MatMul (s, w) }"""
    path = write(network(text, w=(3, 2)), tmp_path / "two.onnx")
    with pytest.raises(ValueError, match=r"inputs=a\+a calls two of its inputs the same"):
        models.parse(f"{path}:inputs=a+a").graph(2)


def test_weights_of_such_names_are_frozen_whatever_takes_them(tmp_path: Path) -> None:
    """What a product takes stays a parameter, what is added or multiplied becomes a constant; neither is trained."""
    text = """<ir_version: 8, opset_import: ["" : 17]>
    two (float[N, 3] x) => (float[N, 2] y) {
        z = MatMul (x, body_w) m = Mul (z, body_scale) h = Relu (m) y = MatMul (h, head_w)
    }"""
    path = write(network(text, body_w=(3, 4), body_scale=(4,), head_w=(4, 2)), tmp_path / "two.onnx")
    graph = models.parse(f"{path}:frozen=body*").graph(3)
    assert graph.frozen == {"body_w"} and graph.states == ["body_scale"]
    assert [t.name for t in graph.trained] == ["head_w"]


def save(proto: onnx.ModelProto, path: Path, location: str) -> str:
    """A file whose first weight lies elsewhere."""
    tensor = proto.graph.initializer[0]
    (path.parent / "w.bin").write_bytes(tensor.raw_data)
    entries = {"location": location, "offset": "0", "length": str(len(tensor.raw_data))}
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)
    path.write_bytes(proto.SerializeToString())
    return str(path)


def test_weights_beside_a_file_are_read(tmp_path: Path) -> None:
    proto = network(MLP, **SHAPES)
    given = samples(proto)
    wanted = expected(proto, given)[0]
    assert relative(said(save(proto, tmp_path / "net.onnx", "w.bin"), given, 2)[0], wanted) < 2e-6


@pytest.mark.parametrize("location", ["../w.bin", "/etc/hostname", "link.bin", "nowhere.bin", ""])
def test_weights_elsewhere_are_not_read(location: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "w.bin").write_bytes(b"0" * 4096)
    (tmp_path / "folder" / "link.bin").symlink_to(tmp_path / "w.bin")
    path = save(network(MLP, **SHAPES), tmp_path / "folder" / "net.onnx", location)
    with pytest.raises(ValueError, match="the numbers of 'fc1_weight'") as error:
        models.parse(path).graph(2)
    assert "\n" not in str(error.value)


UNKNOWN = """<ir_version: 8, opset_import: ["" : 17]>
net (float[N, 4] x) => (float[N, 4] y) {
    a = Tan (x)
    b = Relu (x)
    c = Acos (b)
    d = Tan (c)
    e = Pow (x, b)
    y = Sum (a, d, e)
}"""


def test_all_that_is_not_supported_is_named(tmp_path: Path) -> None:
    path = write(network(UNKNOWN), tmp_path / "net.onnx")
    told = "castile has no operator for Tan (as in a); Acos (as in c); Pow with an exponent that is no number (as in e)"
    with pytest.raises(ValueError) as error:
        models.parse(path).graph(2)
    assert told in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("damage", ["cut", "text", "empty", "gone", "folder"])
def test_what_is_no_file_is_told_in_one_sentence(damage: str, tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    whole = network(MLP, **SHAPES).SerializeToString()
    if damage == "folder":
        path.mkdir()
    elif damage != "gone":
        path.write_bytes({"cut": whole[: len(whole) // 2], "text": b"hello", "empty": b""}[damage])
    with pytest.raises(ValueError, match=r"^model file .*net\.onnx: ") as error:
        models.parse(str(path)).graph(2)
    assert "\n" not in str(error.value)


def test_weights_of_another_network_are_refused(tmp_path: Path) -> None:
    path = write(network(MLP, **SHAPES), tmp_path / "net.onnx")
    model = models.parse(f"mlp:width={WIDTH}")
    with pytest.raises(ValueError, match=r"its network has no parameter 'fc1.weight'"):
        weights.load(path, model)
    wide = {**SHAPES, "fc1_weight": (WIDTH, 32)}
    with pytest.raises(ValueError):
        models.parse(write(network(MLP, **wide), tmp_path / "other.onnx")).graph(2)


def test_without_the_package_the_line_that_installs_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ValueError, match=r"ONNX files are read by the package onnx: .* -m pip install 'onnx>=[\d.]+'"):
        models.parse("net.onnx")
