"""Operators that the rules of ONNX write with others: the nodes that stand for one.

It does not know operators of castile's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from castile.launch.importers.onnx.file import package
from castile.launch.importers.onnx.values import Several, Value, Whole
from castile.planner.op import Tensor


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


def with_whole_numbers(
    node: Any, version: int, args: Sequence[Value | None], made: tuple[Value, ...]
) -> tuple[Value, ...]:
    """What a node gives, told from floating-point numbers where the rules of ONNX say that it is whole ones."""
    try:
        schema = package().defs.get_schema(node.op_type, version, node.domain)
    except package().defs.SchemaError:
        return made
    alone = {one.type_param_str: one.allowed_type_strs[0] for one in schema.type_constraints if _is_alone(one)}
    formal = [schema.inputs[min(n, len(schema.inputs) - 1)].type_str for n in range(len(args))]
    # of inputs of one kind the first that is there
    of = {name: kind(one) for name, one in zip(formal[::-1], args[::-1], strict=True) if one is not None}
    found = []
    for n, one in enumerate(made):
        name = schema.outputs[min(n, len(schema.outputs) - 1)].type_str
        dtype = np.dtype(bool) if alone.get(name, name) == "tensor(bool)" else of.get(name)
        if isinstance(one, Tensor) and dtype is not None and dtype.kind in ("biu" if one.floating else "b"):
            one = Whole(one, dtype)
        found.append(one)
    return tuple(found)


def _is_alone(constraint: Any) -> bool:
    return len(constraint.allowed_type_strs) == 1


def kind(value: Value | None) -> np.dtype:
    """What numbers a value has in the file: of the graph's own, and of what is left out, as files usually say it."""
    if isinstance(value, Tensor):
        return np.dtype(np.float32 if value.floating else np.int64)
    return np.dtype(np.float32 if value is None or isinstance(value, Several) else value.dtype)


def _plain(body: Any) -> Any:
    """A body without graphs within its nodes, which see names from outside; None for others."""
    inside = any(attribute.HasField("g") for node in body.node for attribute in node.attribute)
    return body if body.node and not inside else None


def _type(value: Value) -> Any:
    onnx = package()
    code = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(value.dtype))
    return onnx.helper.make_tensor_type_proto(code, value.shape)


def inlined(node: Any, named: str, written: Any) -> list[Any]:
    """The nodes of a function's body in the place of a node, whose inner names begin with `named`."""
    inside = {"": ""}
    for formal, actual in zip(written.input, [*node.input, *[""] * len(written.input)], strict=False):
        inside[formal] = actual
    inside.update(zip(written.output, node.output, strict=False))
    inside |= {name: f"{named}.{name}" for part in written.node for name in part.output if name not in inside}
    given, found = {a.name: a for a in node.attribute}, []
    for part in written.node:
        copy = type(part)()
        copy.CopyFrom(part)
        del copy.input[:], copy.output[:], copy.attribute[:]
        copy.input.extend(inside[name] for name in part.input)
        copy.output.extend(inside[name] for name in part.output)
        copy.attribute.extend(_attributes(part, given))
        found.append(copy)
    return found


def _attributes(part: Any, given: Mapping[str, Any]) -> list[Any]:
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
