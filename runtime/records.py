"""Records: named tuples of arrays that compiled loops take by reference, and load fields of where they use them.

As a value such a tuple is seven numbers for each of its arrays, which every function hands on to every other: a hundred
arrays cost more to hand on, and to compile, than most functions do. It does not know what the arrays hold. Imports
numba, and is imported where that is installed.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.core.typing.templates import AttributeTemplate
from numba.extending import (
    NativeValue,
    infer_getattr,
    lower_getattr_generic,
    models,
    register_model,
    typeof_impl,
    unbox,
)

_NUMBER = ir.IntType(32)


class Record(types.Type):
    """The compiled type of a named tuple whose fields have these types: the address of its fields.

    Types of one name are one type, and what was compiled is found again by it: it tells which field lies where.
    """

    def __init__(self, kind: Any, fields: tuple[Any, ...]) -> None:
        self.kind, self.fields = kind, fields
        described = [f"{name}: {field}" for name, field in zip(kind._fields, fields, strict=True)]
        super().__init__(f"Record({kind.__module__}.{kind.__qualname__}, {', '.join(described)})")

    def place(self, name: str) -> int:
        """Which of the fields that is."""
        return int(self.kind._fields.index(name))


def by_reference(kind: Any) -> None:
    """From now on loops without reference counts take named tuples of this kind as records.

    They may read its fields by name, and do nothing else with it; elements of its arrays they may change.
    """

    @typeof_impl.register(kind)
    def found(value: Any, context: Any) -> Record:
        return Record(kind, tuple(typeof_impl(field, context) for field in value))


@register_model(Record)
class _Model(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Record) -> None:
        fields = [manager.lookup(field).get_data_type() for field in kind.fields]
        super().__init__(manager, kind, ir.LiteralStructType(fields).as_pointer())


@infer_getattr
class _Fields(AttributeTemplate):
    key = Record

    def generic_resolve(self, kind: Record, name: str) -> Any:
        return kind.fields[kind.place(name)] if name in kind.kind._fields else None


@unbox(Record)
def _unboxed(kind: Record, tuple_: Any, c: Any) -> NativeValue:
    """The fields lie on the stack of what the interpreter calls."""
    place = cgutils.alloca_once(c.builder, c.context.get_value_type(kind).pointee)
    is_error = cgutils.alloca_once_value(c.builder, cgutils.false_bit)
    for number, field in enumerate(kind.fields):
        native = c.unbox(field, c.pyapi.tuple_getitem(tuple_, number))
        data = c.context.data_model_manager.lookup(field).as_data(c.builder, native.value)
        c.builder.store(data, _within(c.builder, place, number))
        with c.builder.if_then(native.is_error, likely=False):
            c.builder.store(cgutils.true_bit, is_error)
    return NativeValue(place, is_error=c.builder.load(is_error))


@lower_getattr_generic(Record)
def _field(context: Any, builder: Any, kind: Record, place: Any, name: str) -> Any:
    number = kind.place(name)
    return _loaded(context, builder, kind.fields[number], _within(builder, place, number))


def _loaded(context: Any, builder: Any, kind: Any, place: Any) -> Any:
    """The value of a type that lies there."""
    if isinstance(kind, types.Array):
        return _array(context, builder, kind, place)
    if isinstance(kind, types.BaseTuple):
        items = [_loaded(context, builder, item, _within(builder, place, k)) for k, item in enumerate(kind)]
        return context.make_tuple(builder, kind, items)
    return context.data_model_manager.lookup(kind).from_data(builder, _number(builder, place))


def _array(context: Any, builder: Any, kind: Any, place: Any) -> Any:
    """Of an array no more than loops ask for: what follows from its type is no load, and nobody owns it."""
    value, names = context.get_value_type(kind), context.data_model_manager.lookup(kind)._fields
    nbytes = context.get_abi_sizeof(context.get_data_type(kind.dtype))
    known: dict[str, Any] = {"meminfo": None, "parent": None, "itemsize": nbytes}
    is_row = kind.ndim == 1
    if is_row and kind.layout == "C":
        known["strides"] = [context.get_constant(types.intp, nbytes)]
    parts = [known.get(name, ir.Undefined) for name in names]
    found = ir.Constant(value, [ir.Constant(t, part) for t, part in zip(value.elements, parts, strict=True)])
    for k, (name, part) in enumerate(zip(names, value.elements, strict=True)):
        if name in known or (is_row and name == "nitems"):
            continue
        if not isinstance(part, ir.ArrayType):
            found = builder.insert_value(found, _number(builder, _within(builder, place, k)), k)
            continue
        for dim in range(kind.ndim):
            one = _number(builder, _within(builder, place, k, dim))
            found = builder.insert_value(found, one, [k, dim])
            if is_row and name == "shape":
                found = builder.insert_value(found, one, names.index("nitems"))
    return found


def _number(builder: Any, place: Any) -> Any:
    """What lies there, which nothing changes while the loops run: it is loaded once, whatever is stored in between."""
    load = builder.load(place)
    load.set_metadata("invariant.load", builder.module.add_metadata([]))
    return load


def _within(builder: Any, place: Any, *path: int) -> Any:
    return builder.gep(place, [_NUMBER(0), *(_NUMBER(step) for step in path)], inbounds=True)
