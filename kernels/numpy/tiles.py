"""Matrix products in vector registers: small tiles whose sums stay in registers until they are complete.

It knows no kernel. The compiler would not keep two dozen sums in registers by itself, so loops are written with LLVM
vectors here. Nothing is checked: pointers must be valid up to the next whole vector, except in `tile_panel`.
"""

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import binding, ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

# Bytes of a vector register.
_WIDTH = 64 if binding.get_host_cpu_features().get("avx512f") else 32

# Rows of a tile: with three vectors each, their sums fill the registers but for what is multiplied.
ROWS = 8 if _WIDTH == 64 else 4

# Rows and columns of a square that is transposed in registers.
SQUARE = 8

_FUSED = ("contract", "reassoc")


def lanes(itemsize: int) -> int:
    """Elements of a vector register."""
    return _WIDTH // itemsize


def tile_product(rows: int, vectors: int) -> Callable[..., None]:
    """A compiled function (out, step, x, offsets, w, num) that computes rows x vectors sums and stores them:

    out[m * step + j] = sum over k < num of w[k * rows + m] * x[offsets[k] + j] for every lane j of `vectors` vectors.
    """

    @intrinsic
    def tile(typing: Any, out: Any, step: Any, x: Any, offsets: Any, w: Any, num: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            to, stride, source, places, factors, count = args
            vector = _vector(context, out)
            start = [ir.Constant(vector, None)] * (rows * vectors)

            def turn(k: Any, sums: list[Any]) -> list[Any]:
                here = builder.gep(source, [builder.load(builder.gep(places, [k]))])
                seen = [_load(builder, here, vector, j) for j in range(vectors)]
                column = builder.gep(factors, [builder.mul(k, _number(rows))])
                wide = [_spread(builder, builder.load(_at(builder, column, m)), vector) for m in range(rows)]
                terms = [(m, j) for m in range(rows) for j in range(vectors)]
                return [_add(builder, one, wide[m], seen[j]) for one, (m, j) in zip(sums, terms, strict=True)]

            sums = _loop(builder, count, start, turn)
            for m in range(rows):
                row = builder.gep(to, [builder.mul(stride, _number(m))])
                for j in range(vectors):
                    _store(builder, sums[m * vectors + j], row, vector, j)
            return context.get_dummy_value()

        return types.none(out, types.intp, x, offsets, w, types.intp), generate

    return tile


def tile_inner_products(rows: int, taps: int) -> Callable[..., None]:
    """A compiled function (out, a, step, x, offsets, num) that adds rows x taps inner products to out:

    out[m * taps + k] += sum over j < num of a[m * step + j] * x[offsets[k] + j]; num is in whole vectors.
    """

    @intrinsic
    def tile(typing: Any, out: Any, a: Any, step: Any, x: Any, offsets: Any, num: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            to, left, stride, source, places, count = args
            vector = _vector(context, out)
            ones = [builder.gep(left, [builder.mul(stride, _number(m))]) for m in range(rows)]
            others = [builder.gep(source, [builder.load(_at(builder, places, k))]) for k in range(taps)]
            start = [ir.Constant(vector, None)] * (rows * taps)

            def turn(n: Any, sums: list[Any]) -> list[Any]:
                place = builder.mul(n, _number(vector.count))
                first = [_load(builder, builder.gep(one, [place]), vector, 0) for one in ones]
                second = [_load(builder, builder.gep(one, [place]), vector, 0) for one in others]
                pairs = [(m, k) for m in range(rows) for k in range(taps)]
                return [_add(builder, one, first[m], second[k]) for one, (m, k) in zip(sums, pairs, strict=True)]

            for n, total in enumerate(_loop(builder, count, start, turn)):
                place = _at(builder, to, n)
                builder.store(builder.fadd(builder.load(place), _sum(builder, total, vector)), place)
            return context.get_dummy_value()

        return types.none(out, a, types.intp, x, offsets, types.intp), generate

    return tile


def tile_panel(rows: int, vectors: int) -> Callable[..., None]:
    """A compiled function (out, step, a, a_row, a_col, x, x_step, num, height, width, adds) for any steps:

    out[m * step + j] = sum over k < num of a[m * a_row + k * a_col] * x[k * x_step + j], or += where `adds` is 1 and
    not 0, for m < height, at most `rows`, and j < width, which ends in the last of `vectors` vectors. Nothing beyond
    these is read or written.
    """

    @intrinsic
    def tile(
        typing: Any, out: Any, step: Any, a: Any, a_row: Any, a_col: Any, x: Any, x_step: Any, num: Any, height: Any,
        width: Any, adds: Any,
    ) -> Any:  # fmt: skip
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            to, stride, left, row, col, source, down, count, high, wide, more = args
            vector = _vector(context, out)
            last = builder.sub(wide, _number((vectors - 1) * vector.count))
            some, held = _first(builder, vector, last), _first(builder, vector, builder.mul(more, last))
            full = _first(builder, vector, builder.mul(more, _number(vector.count)))
            # rows beyond the last read what that one reads, and are not stored
            lower = builder.sub(high, _number(1))
            lines = [builder.gep(left, [builder.mul(row, _least(builder, _number(m), lower))]) for m in range(rows)]

            def turn(k: Any, sums: list[Any]) -> list[Any]:
                here = builder.gep(source, [builder.mul(down, k)])
                seen = [_load(builder, here, vector, j) for j in range(vectors - 1)]
                seen.append(_load_some(builder, here, vector, vectors - 1, some))
                place = builder.mul(col, k)
                factors = [_spread(builder, builder.load(builder.gep(line, [place])), vector) for line in lines]
                return [_add(builder, one, factors[n // vectors], seen[n % vectors]) for n, one in enumerate(sums)]

            sums = _loop(builder, count, [ir.Constant(vector, None)] * (rows * vectors), turn)
            for m in range(rows):
                with builder.if_then(builder.icmp_signed("<", _number(m), high)):
                    line = builder.gep(to, [builder.mul(stride, _number(m))])
                    for j in range(vectors):
                        mask = held if j == vectors - 1 else full
                        total = builder.fadd(_load_some(builder, line, vector, j, mask), sums[m * vectors + j])
                        if j == vectors - 1:
                            _store_some(builder, total, line, vector, j, some)
                        else:
                            _store(builder, total, line, vector, j)
            return context.get_dummy_value()

        size = types.intp
        return types.none(out, size, a, size, size, x, size, size, size, size, size), generate

    return tile


@intrinsic
def transpose_square(typing: Any, out: Any, step: Any, x: Any, x_step: Any) -> Any:
    """out[j * step + i] = x[i * x_step + j] for i and j below SQUARE."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        to, stride, source, down = args
        vector = ir.VectorType(context.get_data_type(out.dtype), SQUARE)
        align = out.dtype.bitwidth // 8
        lines = []
        for i in range(SQUARE):
            place = builder.gep(source, [builder.mul(down, _number(i))])
            lines.append(builder.load(builder.bitcast(place, vector.as_pointer()), align=align))
        # in each turn pairs of lines exchange every other lane, then every other two, then four
        for far in (1, 2, 4):
            lines = [_exchange(builder, lines, i, far) for i in range(SQUARE)]
        for j, line in enumerate(lines):
            place = builder.gep(to, [builder.mul(stride, _number(j))])
            builder.store(line, builder.bitcast(place, vector.as_pointer()), align=align)
        return context.get_dummy_value()

    return types.none(out, types.intp, x, types.intp), generate


def _exchange(builder: Any, lines: list[Any], i: int, far: int) -> Any:
    """Line i in a step of a transposition: pairs of lines that are `far` apart exchange the lanes that the other lacks.
    """
    low, high = lines[i & ~far], lines[i | far]
    # lanes of the upper line are numbered on from those of the lower one
    if i & far:
        order = [j + far if not j & far else SQUARE + j for j in range(SQUARE)]
    else:
        order = [j if not j & far else SQUARE + j - far for j in range(SQUARE)]
    return builder.shuffle_vector(low, high, ir.Constant(ir.VectorType(ir.IntType(32), SQUARE), order))


def _loop(builder: Any, count: Any, start: list[Any], turn: Callable[[Any, list[Any]], list[Any]]) -> list[Any]:
    """The sums after `turn` was called `count` times, at least once, with the sums so far and the iteration's number.
    """
    before = builder.basic_block
    body, done = builder.append_basic_block("turn"), builder.append_basic_block("done")
    builder.branch(body)
    builder.position_at_end(body)
    number = builder.phi(count.type)
    sums = [builder.phi(one.type) for one in start]
    result = turn(number, sums)
    following = builder.add(number, _number(1))
    number.add_incoming(_number(0), before)
    number.add_incoming(following, builder.basic_block)
    for phi, first, later in zip(sums, start, result, strict=True):
        phi.add_incoming(first, before)
        phi.add_incoming(later, builder.basic_block)
    builder.cbranch(builder.icmp_signed("<", following, count), body, done)
    builder.position_at_end(done)
    return result


def _number(value: int) -> Any:
    return ir.Constant(cgutils.intp_t, value)


def _at(builder: Any, place: Any, index: int) -> Any:
    return builder.gep(place, [_number(index)])


def _vector(context: Any, kind: Any) -> Any:
    return ir.VectorType(context.get_data_type(kind.dtype), lanes(kind.dtype.bitwidth // 8))


def _align(vector: Any) -> int:
    return _WIDTH // vector.count


def _load(builder: Any, place: Any, vector: Any, index: int) -> Any:
    where = builder.bitcast(_at(builder, place, index * vector.count), vector.as_pointer())
    return builder.load(where, align=_align(vector))


def _store(builder: Any, value: Any, place: Any, vector: Any, index: int) -> None:
    where = builder.bitcast(_at(builder, place, index * vector.count), vector.as_pointer())
    builder.store(value, where, align=_align(vector))


def _least(builder: Any, a: Any, b: Any) -> Any:
    return builder.select(builder.icmp_signed("<", a, b), a, b)


def _first(builder: Any, vector: Any, num: Any) -> Any:
    """A mask of the first so many lanes."""
    numbers = ir.VectorType(ir.IntType(32), vector.count)
    few = _spread(builder, builder.trunc(num, numbers.element), numbers)
    return builder.icmp_signed("<", ir.Constant(numbers, list(range(vector.count))), few)


def _load_some(builder: Any, place: Any, vector: Any, index: int, mask: Any) -> Any:
    """As `_load`, of the lanes of a mask; the others are zeros, and what would be there is not touched."""
    where = builder.bitcast(_at(builder, place, index * vector.count), vector.as_pointer())
    given = (where, ir.Constant(ir.IntType(32), _align(vector)), mask, ir.Constant(vector, None))
    return builder.call(_masked(builder, "load", vector, vector, given), given)


def _store_some(builder: Any, value: Any, place: Any, vector: Any, index: int, mask: Any) -> None:
    where = builder.bitcast(_at(builder, place, index * vector.count), vector.as_pointer())
    given = (value, where, ir.Constant(ir.IntType(32), _align(vector)), mask)
    builder.call(_masked(builder, "store", vector, ir.VoidType(), given), given)


def _masked(builder: Any, what: str, vector: Any, result: Any, given: Sequence[Any]) -> Any:
    name = f"llvm.masked.{what}.v{vector.count}f{_WIDTH * 8 // vector.count}.p0"
    return cgutils.get_or_insert_function(builder.module, ir.FunctionType(result, [x.type for x in given]), name)


def _spread(builder: Any, value: Any, vector: Any) -> Any:
    """A vector of one number in all lanes."""
    single = builder.insert_element(ir.Constant(vector, ir.Undefined), value, ir.Constant(ir.IntType(32), 0))
    everywhere = ir.Constant(ir.VectorType(ir.IntType(32), vector.count), None)
    return builder.shuffle_vector(single, ir.Constant(vector, ir.Undefined), everywhere)


def _add(builder: Any, total: Any, a: Any, b: Any) -> Any:
    return builder.fadd(total, builder.fmul(a, b, flags=_FUSED), flags=_FUSED)


def _sum(builder: Any, value: Any, vector: Any) -> Any:
    """The sum of a vector's lanes, by halves."""
    count = vector.count
    while count > 1:
        count //= 2
        half = ir.VectorType(ir.IntType(32), count)
        parts = [ir.Constant(half, [n + first for n in range(count)]) for first in (0, count)]
        low, high = (builder.shuffle_vector(value, value, part) for part in parts)
        value = builder.fadd(low, high)
    return builder.extract_element(value, ir.Constant(ir.IntType(32), 0))
