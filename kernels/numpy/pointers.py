"""Pointers inside compiled loops, short rows moved four elements at a time, and small buffers on the stack.

It knows no kernel. The compiler vectorises no loop over fewer elements than several registers hold; here four
neighbours are one load and one store, whatever the loop around them. Unlike arrays and slices, pointers count no
references and wrap no negative index, which would cost more than a short row. Nothing is checked, and what is pointed
to must outlive the loop, as a kernel's arguments do.
"""

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from castile.kernels.numpy.jit import compiled, inlined

# Elements of working memory: three of float64 leave room in the smallest first-level cache.
BLOCK = 512

_LANES = 4
# Longer rows are vectorised well enough by the compiler.
_SHORT = 32


@intrinsic
def pointer(typing: Any, x: Any) -> Any:
    """The address of an array's first element; its elements are read and written by index."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return cgutils.create_struct_proxy(x)(context, builder, args[0]).data

    return types.CPointer(x.dtype)(x), generate


@intrinsic
def spare(typing: Any, x: Any) -> Any:
    """A buffer of BLOCK elements of an array's dtype, on the stack of the function that has this call in its own body.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return cgutils.alloca_once(builder, context.get_data_type(x.dtype), size=BLOCK)

    return types.CPointer(x.dtype)(x), generate


@intrinsic
def spares(typing: Any, x: Any, num: Any) -> Any:
    """`num` contiguous buffers as `spare` gives one, aligned to vectors."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        size = builder.mul(args[1], context.get_constant(types.intp, BLOCK))
        held = builder.alloca(context.get_data_type(x.dtype), size=size)
        held.align = 64
        return held

    return types.CPointer(x.dtype)(x, types.intp), generate


@intrinsic
def after(typing: Any, place: Any, num: Any) -> Any:
    """The pointer `num` elements further on."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.gep(args[0], [args[1]])

    return place(place, types.intp), generate


@intrinsic
def _copy_four(typing: Any, target: Any, source: Any) -> Any:
    """target[:4] = source[:4]."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        (to, of), align = _vectors(context, builder, target, args)
        builder.store(builder.load(of, align=align), to, align=align)
        return context.get_dummy_value()

    return types.none(target, source), generate


@intrinsic
def _add_four(typing: Any, target: Any, source: Any) -> Any:
    """target[:4] += source[:4]."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        (to, of), align = _vectors(context, builder, target, args)
        total = builder.fadd(builder.load(to, align=align), builder.load(of, align=align))
        builder.store(total, to, align=align)
        return context.get_dummy_value()

    return types.none(target, source), generate


def _vectors(context: Any, builder: Any, kind: Any, places: Any) -> tuple[list[Any], int]:
    """Pointers to vectors instead of their first elements, and their alignment in bytes."""
    vector = ir.VectorType(context.get_data_type(kind.dtype), _LANES)
    return [builder.bitcast(place, vector.as_pointer()) for place in places], kind.dtype.bitwidth // 8


@compiled
def copy_rows(target, target_step, source, source_step, rows, cols):  # type: ignore[no-untyped-def]
    """Copy rows of `cols` contiguous elements; each row starts a step after the one before it."""
    if cols < _LANES or cols > _SHORT:
        for r in range(rows):
            copy_run(after(target, r * target_step), after(source, r * source_step), cols)
        return
    for r in range(rows):
        o, v = after(target, r * target_step), after(source, r * source_step)
        for j in range(0, cols - _LANES, _LANES):
            _copy_four(after(o, j), after(v, j))
        # The last four may overlap those before them.
        _copy_four(after(o, cols - _LANES), after(v, cols - _LANES))


@compiled
def add_rows(target, target_step, source, source_step, rows, cols):  # type: ignore[no-untyped-def]
    """As `copy_rows`, adding to target."""
    fours = cols // _LANES * _LANES if cols <= _SHORT else 0
    for r in range(rows):
        o, v = after(target, r * target_step), after(source, r * source_step)
        for j in range(0, fours, _LANES):
            _add_four(after(o, j), after(v, j))
        for j in range(fours, cols):
            o[j] += v[j]


@inlined
def copy_run(target, source, num):  # type: ignore[no-untyped-def]
    """target[:num] = source[:num]."""
    for j in range(num):
        target[j] = source[j]


@inlined
def fill(target, value, num):  # type: ignore[no-untyped-def]
    """target[:num] = value."""
    for j in range(num):
        target[j] = value
