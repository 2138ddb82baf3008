"""Files of one node: products, ranges and dims as NumPy has them, whatever their dims; what breaks ONNX's rules, or
castile cannot take, is told in one sentence that names the file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnx")

import onnx
from onnx import TensorProto, helper, numpy_helper, parser

from castile.launch import models
from castile.launch.importers.onnx import shaping
from castile.planner.graph import Graph
from tests.onnx_cases import computed
from tests.test_models import forward


def one_node(op: str, *arrays: np.ndarray) -> onnx.ModelProto:
    """A network of one node, all of whose arrays are given to it."""
    kinds = [helper.np_dtype_to_tensor_dtype(array.dtype) for array in arrays]
    given = [
        helper.make_tensor_value_info(f"x{n}", kind, array.shape)
        for n, (kind, array) in enumerate(zip(kinds, arrays, strict=True))
    ]
    node = helper.make_node(op, [one.name for one in given], ["y"], name="node")
    graph = helper.make_graph([node], "net", given, [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])


LEADING = [(), *((a,) for a in (1, 2)), *product((1, 2), (1, 3)), (2, 1, 3), (1, 1, 1)]


@pytest.mark.parametrize("before", LEADING, ids=str)
def test_matrices_are_multiplied_as_numpy_does_whatever_stands_before_their_dims(before: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    for other in LEADING:
        try:
            np.broadcast_shapes(before, other)
        except ValueError:
            continue
        x, y = rng.normal(size=(*before, 2, 4)), rng.normal(size=(*other, 4, 3))
        found = computed(one_node("MatMul", x, y), [x, y], {0, 1}).results
        assert found is not None and found[0].shape == (x @ y).shape, other
        np.testing.assert_allclose(found[0], x @ y, rtol=1e-12, atol=1e-12)


ENDS = (-(2**63) + 1, -(2**31), -7, -1, 0, 1, 2, 5, 2**31 - 1, 2**63 - 1)


@pytest.mark.parametrize("step", [-3, -1, 1, 2])
def test_ranges_are_those_of_python_wherever_they_begin_and_end(step: int) -> None:
    x = np.random.default_rng(0).normal(size=(2, 5))
    for start, stop in product(ENDS, ENDS):
        wanted = x[:, start:stop:step]
        arrays = [x, *(np.array([n], np.int64) for n in (start, stop, 1, step))]
        told = computed(one_node("Slice", *arrays), arrays, {0})
        if not wanted.size:
            # what is empty depends on no samples
            assert told.lacks == "folded away", (start, stop)
        else:
            assert told.results is not None and np.array_equal(told.results[0], wanted), (start, stop)


@pytest.mark.parametrize("count", range(1, 5))
@pytest.mark.parametrize("shape", [(), (12,), (3, 4), (4, 3)], ids=str)
def test_any_number_of_dims_of_one_in_front_may_go(count: int, shape: tuple[int, ...]) -> None:
    before = (1,) * count + ((3, 4) if shape else ())
    graph, array = Graph("case", "float64"), np.random.default_rng(0).normal(size=before)
    x = graph.input("x", before, " ".join("abcdef"[: len(before)]))
    y = shaping.reshaped(graph, "y", x, shape)
    assert np.array_equal(forward(graph, {"x": array})[y.name], array.reshape(shape))


def changed(change: Callable[[onnx.ModelProto], object]) -> onnx.ModelProto:
    """A small network with a change."""
    proto = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 18]> net (float[N, 4] x) => (float[N, 3] y) { y = MatMul (x, w) }'
    )
    proto.graph.initializer.append(numpy_helper.from_array(np.ones((4, 3), np.float32), "w"))
    change(proto)
    return proto


def then(op: str, whole: Sequence[int] = (), **attributes: object) -> onnx.ModelProto:
    """A small network that ends with another node, which takes whole numbers too."""

    def change(proto: onnx.ModelProto) -> None:
        names = ["y"]
        if len(whole):
            proto.graph.initializer.append(numpy_helper.from_array(np.array(whole, np.int64), "whole"))
            names.append("whole")
        proto.graph.node.append(helper.make_node(op, names, ["z"], **attributes))
        proto.graph.output[0].name = "z"

    return changed(change)


def sparse(proto: onnx.ModelProto) -> None:
    there = helper.make_tensor("thin", TensorProto.FLOAT, [1], [1.0])
    places = helper.make_tensor("places", TensorProto.INT64, [1], [0])
    proto.graph.sparse_initializer.append(helper.make_sparse_tensor(there, places, [4, 3]))
    proto.graph.node[0].input[1] = "thin"


def of_kind(number: int) -> Callable[[onnx.ModelProto], None]:
    return lambda proto: setattr(proto.graph.input[0].type.tensor_type, "elem_type", number)


BREAKS = "it breaks the rules of ONNX"
REFUSED = {
    "a dim too far": (then("Gather", [0], axis=2), BREAKS),
    "a dim too far back": (then("Slice", [0], axis=-3), BREAKS),
    "dims in no order": (then("Transpose", perm=[0, 7]), BREAKS),
    "too few dims": (then("Transpose", perm=[0]), r"Transpose to dims \(0,\) of an array of 2"),
    "a dim twice": (then("Unsqueeze", [1, 1]), BREAKS),
    "lengths of no dims": (then("Reshape", [0, 3, 1, 0]), BREAKS),
    "repeated for too many dims": (then("Tile", [1, 1, 2]), BREAKS),
    "repeated never": (then("Tile", [1, 0]), "Tile 0 times"),
    "an index too far": (then("Gather", [17], axis=1), "Gather with an index of no element, of 3"),
    "an index too far back": (then("Gather", [-4], axis=1), "Gather with an index of no element, of 3"),
    "no kind": (then("Cast", to=99), BREAKS),
    "a kind that castile has not": (then("Cast", to=17), "Cast to float8_e4m3fn"),
    "whole numbers": (then("ArgMax", axis=1), "its output 'z' is of whole numbers, which are not trained"),
    "no output": (changed(lambda proto: proto.graph.ClearField("output")), "or one without a network"),
    "an input of no kind": (changed(of_kind(99)), "its input 'x' has numbers of kind 99"),
    "an input of texts": (changed(of_kind(TensorProto.STRING)), "its input 'x' is of kind string"),
    "a weight of no kind": (changed(lambda proto: setattr(proto.graph.initializer[0], "data_type", 99)), "of kind 99"),
    "a sparse weight": (changed(sparse), "its weight 'thin' is sparse"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_castile_cannot_take_is_told_in_one_sentence(what: str, tmp_path: Path) -> None:
    proto, words = REFUSED[what]
    path = tmp_path / "net.onnx"
    path.write_bytes(proto.SerializeToString())
    with pytest.raises(ValueError, match=rf"^model file .*net\.onnx: .*{words}") as error:
        models.parse(str(path)).graph(2)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({"length": "8"}, "8 bytes of .*, and take 48"),
        ({"offset": "4"}, "bytes 4 to 52 of .*, which has 48"),
        ({"offset": "few"}, "whole numbers"),
        ({}, ""),
    ],
    ids=str,
)
def test_weights_elsewhere_are_as_many_bytes_as_they_take(told: dict[str, str], words: str, tmp_path: Path) -> None:
    proto = changed(lambda proto: None)
    tensor, path = proto.graph.initializer[0], tmp_path / "net.onnx"
    (tmp_path / "w.bin").write_bytes(tensor.raw_data)
    tensor.ClearField("raw_data")
    tensor.data_location = tensor.EXTERNAL
    for key, value in {"location": "w.bin", **told}.items():
        tensor.external_data.add(key=key, value=value)
    path.write_bytes(proto.SerializeToString())
    if not words:
        assert models.parse(str(path)).graph(2).batch == 2
        return
    with pytest.raises(ValueError, match=rf"^model file .*net\.onnx: the numbers of 'w' .*{words}"):
        models.parse(str(path)).graph(2)


@pytest.mark.parametrize("called", ["batch", "dtype", "loss", "rewrite", "class", "2 x", "", "seq", "a*2"])
def test_a_length_has_a_setting_whatever_it_is_called(called: str, tmp_path: Path) -> None:
    """Of the name that it has, where that is one; else of its place. The sentence that asks for it is true."""
    text = '<ir_version: 8, opset_import: ["" : 18]> net (float[N, L, 4] x) => (float[N, L, 4] y) { y = Relu (x) }'
    proto = parser.parse_model(text)
    proto.graph.input[0].type.tensor_type.shape.dim[1].dim_param = called
    path = tmp_path / "net.onnx"
    path.write_bytes(proto.SerializeToString())
    with pytest.raises(ValueError, match=r"leaves the length '(\w+)' of its input 'x' open") as error:
        models.parse(str(path)).graph(2)
    advised = str(error.value).rpartition(" as in ")[2]
    graph = models.parse(advised).graph(2)
    assert graph.tensors["x"].shape == (2, 128, 4)


def test_a_batch_that_a_file_does_not_compute_is_told_with_the_one_that_it_does(tmp_path: Path) -> None:
    """Numbers that differ from sample to sample are there for as many as the file is written for."""
    proto = changed(lambda proto: proto.graph.initializer.append(
        numpy_helper.from_array(np.arange(6, dtype=np.float32).reshape(2, 3), "each")))  # fmt: skip
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 2
    proto.graph.node.append(helper.make_node("Add", ["y", "each"], ["z"]))
    proto.graph.output[0].name = "z"
    path = tmp_path / "net.onnx"
    path.write_bytes(proto.SerializeToString())
    assert models.parse(str(path)).graph(2).batch == 2
    with pytest.raises(ValueError, match=r"it is written for 2 samples at a time.*give --batch 2"):
        models.parse(str(path)).graph(6)
