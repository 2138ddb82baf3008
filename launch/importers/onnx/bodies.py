"""Operators that the rules of ONNX write with others: the nodes that stand for one.

It does not know operators of castile's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from castile.launch.importers.onnx.file import package
from castile.launch.importers.onnx.values import Value


def body(node: Any, version: int, args: Sequence[Value | None]) -> Any:
    """How the rules of ONNX write an operator with others; None where they do not."""
    onnx = package()
    try:
        schema = onnx.defs.get_schema(node.op_type, version, node.domain)
    except onnx.defs.SchemaError:
        return None
    if schema.has_function:
        return _plain(schema.function_body)
    if not schema.has_context_dependent_function:
        return None
    types = [_type(one).SerializeToString() if one is not None else b"" for one in args]
    try:
        made = schema.get_context_dependent_function(node.SerializeToString(), types)
    except Exception:
        return None
    body = onnx.FunctionProto()
    body.ParseFromString(made)
    return _plain(body)


def _plain(body: Any) -> Any:
    """A body without graphs within its nodes, which see names from outside; None for others."""
    inside = any(attribute.HasField("g") for node in body.node for attribute in node.attribute)
    return body if body.node and not inside else None


def _type(value: Value) -> Any:
    onnx = package()
    code = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(value.dtype))
    return onnx.helper.make_tensor_type_proto(code, value.shape)


def attributes(part: Any, given: Mapping[str, Any]) -> list[Any]:
    """The attributes of a node of a function's body, where some are the function's own."""
    found = []
    for attribute in part.attribute:
        if not attribute.ref_attr_name:
            found.append(attribute)
        elif attribute.ref_attr_name in given:
            copy = type(attribute)()
            copy.CopyFrom(given[attribute.ref_attr_name])
            copy.name = attribute.name
            found.append(copy)
    return found
