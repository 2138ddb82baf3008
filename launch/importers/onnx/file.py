"""ONNX files: read, checked, with what lies in other files beside them.

It does not know what becomes of the network.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import prod
from pathlib import Path, PurePosixPath
from stat import S_ISREG
from types import ModuleType
from typing import Any

import numpy as np

from castile.launch.importers.onnx.values import Known, is_real
from castile.launch.processes import installing

# Of arrays of no more numbers these may tell shapes.
MOST_TELLING = 1024


def package() -> ModuleType:
    """The package onnx. Raises ValueError with the line that installs it where it is not there."""
    try:
        import onnx
        import onnx.checker
        import onnx.defs
        import onnx.external_data_helper
        import onnx.numpy_helper
        import onnx.reference
        import onnx.shape_inference
    except ModuleNotFoundError as error:
        raise ValueError(f"ONNX files are read by the package onnx: {installing.line('onnx>=1.23')}") from error
    return onnx


def read(path: str) -> Any:
    """The ModelProto of a file, whose external data stay where they are. Raises ValueError in one sentence."""
    onnx, who = package(), f"model file {path}"
    try:
        proto = onnx.load_model(path, load_external_data=False)
    except OSError as error:
        raise ValueError(f"{who}: {error.strerror or error}") from error
    except Exception as error:
        # protobuf has an error of its own for each of its implementations
        raise ValueError(f"{who}: this is no ONNX file, or a damaged one ({_line(error)})") from error
    if not proto.graph.node or not proto.graph.output:
        raise ValueError(f"{who}: this is no ONNX file, or one without a network")
    if proto.graph.sparse_initializer:
        name = proto.graph.sparse_initializer[0].values.name
        raise ValueError(f"{who}: its weight {name!r} is sparse, which castile does not read: store its zeros too")
    for tensor in _tensors(proto):
        kind = kind_of(tensor.data_type, f"{who}: {tensor.name!r}")
        # of numbers of fewer than eight bits several are in a byte
        _check_place(tensor, path, prod(tensor.dims) * kind.itemsize if is_real(kind) or kind.kind in "biu" else 0)
    try:
        onnx.checker.check_model(path)
        onnx.shape_inference.infer_shapes(_stripped(proto), strict_mode=True)
    except Exception as error:
        raise ValueError(f"{who}: it breaks the rules of ONNX ({_line(error)})") from error
    return proto


def _stripped(proto: Any) -> Any:
    """The network without the numbers of large weights, and without what it says of what its nodes give.

    What nodes are given has to fit them; what exporters write of shapes in between is often wrong, and not needed.
    """
    onnx = package()
    found = onnx.ModelProto(ir_version=proto.ir_version, opset_import=proto.opset_import, functions=proto.functions)
    graph, given = found.graph, {one.name for one in proto.graph.input}
    graph.CopyFrom(onnx.GraphProto(name=proto.graph.name, node=proto.graph.node, input=proto.graph.input))
    graph.output.extend(onnx.ValueInfoProto(name=one.name) for one in proto.graph.output)
    for tensor in proto.graph.initializer:
        if prod(tensor.dims) <= MOST_TELLING and tensor.data_location != tensor.EXTERNAL:
            graph.initializer.append(tensor)
        elif tensor.name not in given:
            graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    return found


def _line(error: Exception) -> str:
    """The first line of an error's words, without the names of errors."""
    words = re.sub(r"\[\w+Error\]|Inference error\(s\):", "", str(error).strip().partition("\n")[0])
    return " ".join(words.split()).removesuffix(".").replace(" :", ":")


def _tensors(proto: Any) -> Iterator[Any]:
    yield from proto.graph.initializer
    for node in proto.graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t


def kind_of(number: int, who: str) -> np.dtype:
    """The dtype that ONNX has under a number. Raises ValueError for none."""
    try:
        return np.dtype(package().helper.tensor_dtype_to_np_dtype(number))
    except KeyError as error:
        raise ValueError(f"{who} has numbers of kind {number}, which ONNX has not") from error


def _check_place(tensor: Any, path: str, size: int) -> None:
    """Raises ValueError where a tensor's numbers, of at least so many bytes, are to be read from elsewhere than the
    folder of its file, or are not there."""
    if tensor.data_location != tensor.EXTERNAL:
        return
    fields = {entry.key: entry.value for entry in tensor.external_data}
    place, who = PurePosixPath(fields.get("location", "")), f"model file {path}: the numbers of {tensor.name!r}"
    folder = Path(path).absolute().parent.resolve()
    found = (folder / place).resolve()
    if place.is_absolute() or ".." in place.parts or not place.parts or not found.is_relative_to(folder):
        raise ValueError(
            f"{who} are to be read from {str(place)!r}, which is not in its folder: castile reads no others"
        )
    try:
        status = found.stat()
    except OSError as error:
        raise ValueError(f"{who}: {found}: {error.strerror}") from error
    try:
        offset, length = int(fields.get("offset", 0)), int(fields.get("length", size))
    except ValueError as error:
        raise ValueError(f"{who} have an offset and a length that should be whole numbers ({error})") from error
    if not S_ISREG(status.st_mode) or offset < 0 or length < 0 or offset + length > status.st_size:
        raise ValueError(f"{who} should be bytes {offset} to {offset + length} of {found}, which has {status.st_size}")
    if length < size:
        raise ValueError(f"{who} should be {length} bytes of {found}, and take {size}")


def numbers(tensor: Any, path: str, learned: bool = False, sure: bool = False) -> Known:
    """What a TensorProto holds, read when it is asked for."""
    onnx = package()

    def make() -> np.ndarray:
        if tensor.data_location == tensor.EXTERNAL and not tensor.HasField("raw_data"):
            there = type(tensor)()
            there.CopyFrom(tensor)
            onnx.external_data_helper.load_external_data_for_tensor(there, str(Path(path).absolute().parent))
            return onnx.numpy_helper.to_array(there)
        return onnx.numpy_helper.to_array(tensor)

    dtype = kind_of(tensor.data_type, f"model file {path}: {tensor.name!r}")
    return Known(tensor.name, tuple(tensor.dims), dtype, make, learned, sure)
