"""Elements that files take, or put, at places: known ones, and such as depend on samples."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

pytest.importorskip("onnx")

import onnx

from castile.launch import models
from castile.launch.arrays import weights
from castile.launch.importers.onnx.folding import Folding
from castile.launch.importers.onnx.values import known
from castile.planner.known.plans import data_parallel
from castile.planner.strategy import Strategy
from castile.runtime import machine
from tests.onnx_networks import expected, network, write
from tests.op_laws import relative
from tests.strategies import whole_on
from tests.test_onnx import said
from tests.test_onnx_samples import HEAD, anyhow
from tests.training import difference, train

BATCH, LENGTH = 4, 6
COUNTED = """
            zero = Constant <value = int64 {0}> ()
            one = Constant <value = int64 {1}> ()
            behind = Constant <value = int64[1] {-1}> ()
            many = Shape <start = 0, end = 1> (x)
            count = Squeeze (many)
            numbers = Range (zero, count, one)
            columns = Unsqueeze (numbers, behind)"""
# One token's state of each sample, by its place, between two products.
TAKEN = """both = Concat <axis = -1> (columns, places)
            a = MatMul (x, w1)
            b = GatherND (a, both)
            said = MatMul (b, w2)"""
# A text, and its weights; whole numbers that it is given are below LENGTH.
NETWORKS = {
    # the state behind the last token that is no filler
    "last": (
        f"""last (float[N, 6, 5] x, int64[N] lengths) => (float[N, 3] said) {{{COUNTED}
            less = Sub (lengths, one)
            places = Unsqueeze (less, behind)
            {TAKEN}
        }}""",
        {"w1": (5, 8), "w2": (8, 3)},
    ),
    # the state of the token of the largest number, as CLIP has it
    "largest": (
        f"""largest (float[N, 6, 5] x, int64[N, 6] tokens) => (float[N, 3] said) {{{COUNTED}
            found = ArgMax <axis = 1, keepdims = 0> (tokens)
            places = Unsqueeze (found, behind)
            {TAKEN}
        }}""",
        {"w1": (5, 8), "w2": (8, 3)},
    ),
    "each": (
        """each (float[N, 6, 5] x, int64[N, 4] places, int64[N, 2, 8] others) => (float[N, 3] said) {
            ends = Constant <value = int64[1] {-1}> ()
            wide = Constant <value = int64[3] {1, 1, 8}> ()
            a = MatMul (x, w1)
            apart = Unsqueeze (places, ends)
            many = Expand (apart, wide)
            b = GatherElements <axis = 1> (a, many)
            c = GatherElements <axis = 1> (b, others)
            two = Constant <value = int64[1] {1}> ()
            d = ReduceSum <keepdims = 0> (c, two)
            said = MatMul (d, w2)
        }""",
        {"w1": (5, 8), "w2": (8, 3)},
    ),
    # experts that each sample chooses by itself
    "experts": (
        """experts (float[N, 5] x) => (float[N, 3] said) {
            two = Constant <value = int64[1] {2}> ()
            scores = MatMul (x, router)
            most, places = TopK (scores, two)
            shares = Softmax (most)
            none = Mul (scores, nothing)
            gates = ScatterElements <axis = 1> (none, places, shares)
            a = MatMul (x, w1)
            apart = Constant <value = int64[3] {0, 4, 3}> ()
            b = Reshape (a, apart)
            behind = Constant <value = int64[1] {2}> ()
            c = Unsqueeze (gates, behind)
            d = Mul (b, c)
            dims = Constant <value = int64[1] {1}> ()
            said = ReduceSum <keepdims = 0> (d, dims)
        }""",
        {"router": (5, 4), "w1": (5, 12), "nothing": np.zeros(4, np.float32)},
    ),
    "matrices": (
        """matrices (float[N, 5] x, int64[N] kind) => (float[N, 3] said) {
            chosen = Gather (table, kind)
            ends = Constant <value = int64[1] {1}> ()
            row = Unsqueeze (x, ends)
            product = MatMul (row, chosen)
            a = Squeeze (product, ends)
            number = Gather (numbers, kind)
            b = Unsqueeze (number, ends)
            said = Mul (a, b)
        }""",
        {"table": (LENGTH, 5, 3), "numbers": (LENGTH,)},
    ),
    # distances between places, which every sample looks up alike, and kinds of tokens that are one number
    "distances": (
        """distances (float[N, 6, 5] x, int64[N, 6] places) => (float[N, 3] said) {
            a = MatMul (x, w1)
            b = GatherElements <axis = 2> (a, apart)
            many = Shape <start = 0, end = 1> (x)
            long = Constant <value = int64[1] {6}> ()
            shape = Concat <axis = 0> (many, long)
            kinds = Expand (kind, shape)
            told = GatherElements <axis = 1> (kinds, places)
            rows = Gather (table, told)
            c = Add (b, rows)
            dims = Constant <value = int64[1] {1}> ()
            d = ReduceSum <keepdims = 0> (c, dims)
            said = MatMul (d, w2)
        }""",
        {
            "w1": (5, 16), "w2": (12, 3), "table": (3, 12), "kind": np.ones((1, 6), np.int64),
            "apart": np.broadcast_to(np.arange(12) - np.arange(6)[:, None] + 5, (BATCH, 6, 12)).copy() % 16,
        },
    ),
    # as exporters write x[:, 1] = y, and x[:, 2:4] += y
    "put": (
        """put (float[N, 6, 5] x) => (float[N, 3] said) {
            turned = Transpose <perm = [1, 0, 2]> (x)
            two = Constant <value = int64[1] {1}> ()
            one = Gather (turned, two)
            rows = Constant <value = int64[2, 1] {4, 1}> ()
            both = Concat <axis = 0> (one, one)
            a = ScatterND (turned, rows, both)
            b = Transpose <perm = [1, 0, 2]> (a)
            c = MatMul (b, w1)
            first = Constant <value = int64[1] {0}> ()
            third = Constant <value = int64[1] {3}> ()
            middle = Constant <value = int64[1] {1}> ()
            d = Slice (c, first, third, middle)
            e = ScatterElements <axis = 1> (c, places, d)
            f = ScatterElements <axis = 1, reduction = "add"> (e, twice, d)
            g = Relu (f)
            h = ReduceSum <keepdims = 0> (g, middle)
            said = MatMul (h, w2)
        }""",
        {
            "w1": (5, 8), "w2": (8, 3),
            "places": np.broadcast_to(np.array([5, 0, 2])[None, :, None], (BATCH, 3, 8)).copy(),
            "twice": np.broadcast_to(np.array([1, 1, 3])[None, :, None], (BATCH, 3, 8)).copy(),
        },
    ),
}  # fmt: skip


def drawn(proto: onnx.ModelProto, seed: int) -> dict[str, np.ndarray]:
    rng, found = np.random.default_rng(seed), {}
    for told in proto.graph.input:
        shape = (BATCH, *(dim.dim_value for dim in told.type.tensor_type.shape.dim[1:]))
        is_whole = told.type.tensor_type.elem_type == onnx.TensorProto.INT64
        found[told.name] = rng.integers(0, LENGTH, shape) if is_whole else rng.normal(size=shape).astype(np.float32)
        # places in what is left of six
        found[told.name] %= 4 if told.name == "others" else LENGTH if is_whole else 10
    return found


def made(name: str) -> onnx.ModelProto:
    text, shapes = NETWORKS[name]
    return network(HEAD.replace("17", "18") + text, **shapes)


def check_said(proto: onnx.ModelProto, folder: Path) -> None:
    """That a network says what ONNX's evaluator does."""
    path, given = write(proto, folder / "net.onnx"), drawn(proto, 0)
    for one, other in zip(said(path, given, BATCH), expected(proto, given), strict=True):
        assert one.shape == other.shape and relative(one, other) < 2e-6


def check_trained(proto: onnx.ModelProto, folder: Path) -> None:
    """That all with samples is cut along them, and that it is trained alike under every plan and in microbatches."""
    path = write(proto, folder / "net.onnx")
    model = models.parse(f"{path}:loss=mse")
    graph, rng = model.graph(BATCH, "float64"), np.random.default_rng(3)
    sampled, cuts = set(graph.inputs), data_parallel(graph, 2)
    for node in graph.nodes.values():
        if sampled.intersection(node.inputs):
            # statistics have no samples
            results = zip(node.outputs, node.alignment.results, strict=True)
            sampled.update(name for name, one in results if "b" in one.axes)
            assert cuts[node.name].split == {"b": 2}, node
    data = [{**drawn(proto, seed), "target": rng.normal(size=graph.tensors["target"].shape)} for seed in range(2)]
    values = weights.load(path, model, graph)
    whole = train(graph, whole_on(graph), machine.local(1), data, values)
    shared = Strategy(data_parallel(graph, 2), num_procs=2)
    for plan in (shared, msgspec.structs.replace(shared, microbatches=2), anyhow(graph, 0)):
        found = train(graph, plan, machine.local(2), data, values)
        assert relative(found.losses, whole.losses) < 1e-10
        assert all(difference(found.carried[n], whole.carried[n], 1.0) < 1e-9 for n in whole.carried)


@pytest.mark.parametrize("name", NETWORKS)
def test_what_is_at_places_is_what_the_file_says(name: str, tmp_path: Path) -> None:
    check_said(made(name), tmp_path)


@pytest.mark.parametrize("name", NETWORKS)
def test_samples_are_cut_and_trained_alike_under_every_plan(name: str, tmp_path: Path) -> None:
    check_trained(made(name), tmp_path)


def test_half_the_digits_are_enough_for_places(tmp_path: Path) -> None:
    graph = models.parse(f"{write(made('last'), tmp_path / 'net.onnx')}:loss=mse").graph(BATCH, "bfloat16")
    chosen = next(node for node in graph.nodes.values() if node.op.name == "contract")
    assert [graph.tensors[name].dtype for name in chosen.inputs] == ["bfloat16", "bfloat16"]


REFUSED = {
    "Gather <axis = 1> (x, places)": "Gather with indices that depend on samples, of what is no table of rows",
    "GatherND (x, pairs)": "GatherND with indices that depend on samples, of more than one dim",
    'ScatterElements <axis = 1, reduction = "mul"> (x, places, x)': "ScatterElements that takes the mul",
}


@pytest.mark.parametrize("node", REFUSED)
def test_what_is_taken_otherwise_is_refused(node: str, tmp_path: Path) -> None:
    text = f"net (float[N, 6] x, int64[N, 6] places, int64[N, 2] pairs) => (float[M] said) {{ said = {node} }}"
    path = write(network(HEAD.replace("17", "18") + text), tmp_path / "net.onnx")
    with pytest.raises(ValueError, match="castile has no operator for") as error:
        models.parse(f"{path}:loss=mse").graph(BATCH)
    assert REFUSED[node] in str(error.value)


def test_elements_of_known_numbers_are_taken_of_dims_of_any_length() -> None:
    """ONNX's evaluator takes them of 64 at most; places of BERT's positions are among 512."""
    numbers, places = np.arange(3 * 100 * 2).reshape(3, 100, 2), np.array([[[99, 3]], [[-1, 64]]])
    node = onnx.helper.make_node("GatherElements", ["numbers", "places"], ["taken"], axis=1)
    (taken,) = Folding("", {"": 17}, 3, 0, False).folded(node, [known("numbers", numbers), known("places", places)])
    wanted = [[[numbers[0, 99, 0], numbers[0, 3, 1]]], [[numbers[1, 99, 0], numbers[1, 64, 1]]]]
    np.testing.assert_array_equal(taken.array, wanted)
