"""Dims and places: another shape, another order, side by side, a range, more at the ends."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from castile.launch.importers.onnx import shaping
from castile.launch.importers.onnx.bodies import kind
from castile.launch.importers.onnx.file import kind_of
from castile.launch.importers.onnx.network import Call
from castile.launch.importers.onnx.operators import handles
from castile.launch.importers.onnx.values import Known, Several, Unsupported, Value, Whole, is_real, known
from castile.planner.op import Tensor, find

# An index of more pieces than this is no sum of slices.
MOST_PIECES = 64


def listed(c: Call, number: int, attribute: str) -> list[int] | None:
    """Whole numbers that newer operators have as an input, and older ones as an attribute; None for none."""
    given = c.known(number) if c.has(number) else c.get(attribute)
    return None if given is None else [int(n) for n in np.asarray(given).reshape(-1)]


@handles("Identity", "Cast", "CastLike")
def same(c: Call) -> Value:
    x = c.value(0)
    if c.op == "Identity":
        return x
    c.get("saturate"), c.get("round_mode")
    to = c.kind(1) if c.op == "CastLike" else kind_of(c.get("to"), c.name)
    c.has(1)
    is_floating = is_real(to)
    if not isinstance(x, Known) and not is_floating and to.kind not in "biu":
        raise Unsupported(f"to {to.name}")
    if isinstance(x, Known):
        # only CastLike comes with known numbers: in which floating-point numbers it computes is castile's choice
        return x if x.is_floating and is_floating else x.derived("", x.shape, lambda array: array.astype(to), to)
    if not isinstance(x, Tensor):
        return x
    return _real(c, x) if is_floating else _whole(c, x, to)


def _real(c: Call, x: Tensor) -> Tensor:
    """Numbers that depend on samples as floating-point ones; whole ones with the precision of others from here on."""
    real = c.net.real(x)
    if c.kind(0).kind not in "biu" or real.dtype == c.g.dtype:
        return real
    return c.g.apply(find("real")(c.g.dtype), c.name, real)


def _whole(c: Call, x: Tensor, to: np.dtype) -> Value:
    """Numbers that depend on samples as whole ones, or as what holds."""
    if to.kind == "b" and c.kind(0).kind != "b":
        return Whole(c.g.apply(find("compare")("==", 0.0, 0.0, 1.0), c.name, c.net.real(x)), to)
    if x.floating and is_real(c.kind(0)):
        x = c.g.whole(c.name, x)
    return Whole(x, to) if x.floating or to.kind == "b" else x


@handles("Shape")
def shape(c: Call) -> Known:
    found = c.shape(0)[c.get("start", 0) : c.get("end")]
    return known(c.name, np.array(found, np.int64))


@handles("Size")
def size(c: Call) -> Known:
    return known(c.name, np.array(prod(c.shape(0)), np.int64))


@handles("Reshape")
def reshape(c: Call) -> Tensor:
    x, shape = c.tensor(0), listed(c, 1, "shape") or []
    if not c.get("allowzero", 0):
        shape = [x.shape[n] if length == 0 else length for n, length in enumerate(shape)]
    return shaping.reshaped(c.g, c.name, x, _meant(c, x, shape))


def _meant(c: Call, x: Tensor, shape: list[int]) -> tuple[int, ...]:
    """The shape that a file says, where the batch that the file was written for stands for the batch that there is."""
    total, of_file, batch = prod(x.shape), c.net.file_batch, c.net.batch
    if of_file and shape and shape[0] == of_file and x.shape[:1] == (batch,):
        shape = [batch, *shape[1:]]
    elif of_file and -1 not in shape and prod(shape) * batch == total * of_file:
        at = _samples(x, shape, of_file, batch)
        shape = [length // of_file * batch if n == at else length for n, length in enumerate(shape)]
    if -1 in shape:
        rest = -prod(shape)
        shape = [total // rest if length == -1 and rest else length for length in shape]
    if prod(shape) != total:
        raise Unsupported(f"from shape {x.shape} to {tuple(shape)}, which has not as many elements")
    return tuple(shape)


def _samples(x: Tensor, shape: list[int], of_file: int, batch: int) -> int:
    """Which dim of a shape has the samples in it, with what stands before them still before; -1 for none."""
    found = [n for n, length in enumerate(shape) if length % of_file == 0]
    ahead = [prod(x.shape[:n]) for n, length in enumerate(x.shape) if length == batch]
    # features are joined with no samples, which a file for one sample does not tell
    inside = [n for n in found if prod(shape[:n]) in ahead and (n == 0 or n < len(shape) - 1 or shape[n] == of_file)]
    own = [n for n in found if shape[n] == of_file]
    return next((n for n in (*(n for n in inside if n in own), *inside, *own, *found)), -1)


@handles("Flatten")
def flatten(c: Call) -> Tensor:
    x = c.tensor(0)
    axis = c.get("axis", 1)
    axis = axis + len(x.shape) if axis < 0 else axis
    return shaping.reshaped(c.g, c.name, x, (prod(x.shape[:axis]), prod(x.shape[axis:])))


@handles("Squeeze")
def squeeze(c: Call) -> Tensor:
    x, dims = c.tensor(0), listed(c, 1, "axes")
    gone = {n % len(x.shape) for n in dims} if dims else {n for n, length in enumerate(x.shape) if length == 1}
    return shaping.reshaped(c.g, c.name, x, tuple(length for n, length in enumerate(x.shape) if n not in gone))


@handles("Unsqueeze")
def unsqueeze(c: Call) -> Tensor:
    x, dims = c.tensor(0), listed(c, 1, "axes") or []
    ndim = len(x.shape) + len(dims)
    made, lengths = {n % ndim for n in dims}, iter(x.shape)
    return shaping.reshaped(c.g, c.name, x, tuple(1 if n in made else next(lengths) for n in range(ndim)))


@handles("Transpose")
def transpose(c: Call) -> Tensor:
    x = c.tensor(0)
    dims = tuple(c.get("perm", range(len(x.shape))[::-1]))
    if sorted(dims) != list(range(len(x.shape))):
        raise Unsupported(f"to dims {dims} of an array of {len(x.shape)}")
    return shaping.permuted(c.g, c.name, x, dims)


@handles("Concat")
def concat(c: Call) -> Tensor:
    dim = c.get("axis", 1)
    there = [_of_each(c, n, dim) for n in range(len(c.args)) if 0 not in c.shape(n)]
    return shaping.joined(c.g, c.name, there, dim)


def _of_each(c: Call, number: int, dim: int) -> Tensor:
    """An input; numbers that a file holds for each of its samples, all alike, are there for each that there is."""
    x, others = c.value(number), [one.shape for one in c.args if isinstance(one, Tensor)]
    if any(isinstance(one, Tensor | Whole) and not is_real(kind(one)) for one in c.args):
        # whole numbers that depend on samples beside such that are known
        return c.floating(number)
    if not isinstance(x, Known) or x.follow is not None or not others or dim % len(x.shape) == 0:
        return c.tensor(number)
    lengths = x.shape[0], others[0][0]
    if lengths != (c.net.file_batch, c.net.batch) or c.net.file_batch == c.net.batch or (x.array != x.array[:1]).any():
        return c.tensor(number)
    one = c.net.operand(x if x.shape[0] == 1 else x.derived("", (1, *x.shape[1:]), lambda array: array[:1]))
    return stretched(c, c.inner(f"each{number}"), one, (c.net.batch, *x.shape[1:]))


@handles("Split")
def split(c: Call) -> tuple[Value, ...]:
    x, sizes = c.tensor(0), listed(c, 1, "split")
    dim = c.get("axis", 0) % len(x.shape)
    if sizes is None:
        count = c.get("num_outputs", c.results)
        sizes = _each(x.shape[dim], -(-x.shape[dim] // count), count)
    return _pieces(c, x, dim, sizes)


def _each(length: int, each: int, count: int) -> list[int]:
    """The lengths of so many pieces of a dim, each as long as can be."""
    return [max(min(each, length - n * each), 0) for n in range(count)]


def _pieces(c: Call, x: Tensor, dim: int, sizes: list[int]) -> tuple[Value, ...]:
    """A dim in pieces of these sizes."""
    if len(sizes) == 1:
        return (x,)
    pieces = iter(c.g.split(c.name, x, dim=dim, sizes=tuple(size for size in sizes if size)))
    return tuple(next(pieces) if size else empty(c.name, x, dim) for size in sizes)


def empty(name: str, x: Tensor, dim: int) -> Known:
    """None of the elements of a dim, which is left out wherever it is put."""
    return known(f"{name}.empty", np.zeros((*x.shape[:dim], 0, *x.shape[dim + 1 :]), np.float32))


@handles("SplitToSequence")
def split_to_sequence(c: Call) -> Several:
    x, split, keep = c.value(0), c.known(1), c.get("keepdims", 1)
    dim = c.get("axis", 0) % len(x.shape)
    if split is not None and split.ndim:
        sizes = [int(n) for n in split]
    else:
        each = 1 if split is None else int(split)
        sizes = _each(x.shape[dim], each, -(-x.shape[dim] // each))
    is_less, less = split is None and not keep, (*x.shape[:dim], *x.shape[dim + 1 :])
    if isinstance(x, Known) and not c.net.is_trained(x):
        known_pieces = [_part(x, n, dim, sizes) for n in range(len(sizes))]
        return Several(tuple(piece.reshaped(less) if is_less else piece for piece in known_pieces))
    pieces = [c.net.operand(piece) for piece in _pieces(c, c.tensor(0), dim, sizes)]
    if is_less:
        pieces = [shaping.reshaped(c.g, c.inner(f"piece{n}"), piece, less) for n, piece in enumerate(pieces)]
    return Several(tuple(pieces))


def _part(x: Known, number: int, dim: int, sizes: list[int]) -> Known:
    """One of the pieces of known numbers."""
    start, shape = sum(sizes[:number]), (*x.shape[:dim], sizes[number], *x.shape[dim + 1 :])
    return x.derived(str(number), shape, lambda a: a.take(range(start, start + sizes[number]), dim))


@handles("SequenceAt")
def sequence_at(c: Call) -> Value:
    pieces = c.value(0)
    if not isinstance(pieces, Several):
        raise Unsupported("of no sequence")
    return pieces.pieces[int(c.known(1))]


@handles("Slice")
def cut(c: Call) -> Value:
    x = c.tensor(0)
    starts, stops = listed(c, 1, "starts") or [], listed(c, 2, "ends") or []
    dims, steps = listed(c, 3, "axes") or list(range(len(starts))), listed(c, 4, "") or [1] * len(starts)
    for n, (start, stop, dim, step) in enumerate(zip(starts, stops, dims, steps, strict=True)):
        dim %= len(x.shape)
        places = list(range(x.shape[dim]))[slice(start, stop, step)]
        if not places:
            return empty(c.name, x, dim)
        x = picked(c, f"{c.name}.{n}" if n < len(starts) - 1 else c.name, x, dim, places)
    return x


def ranges(places: Sequence[int]) -> list[list[int]]:
    """Places as ranges of neighbours, in their order."""
    runs: list[list[int]] = []
    for place in places:
        if runs and runs[-1][1] == place:
            runs[-1][1] += 1
        else:
            runs.append([place, place + 1])
    return runs


def picked(c: Call, name: str, x: Tensor, dim: int, places: Sequence[int]) -> Tensor:
    """The elements of a dim at these places, in their order."""
    if list(places) == list(range(x.shape[dim])):
        return x
    runs = ranges(places)
    if len(runs) > MOST_PIECES:
        raise Unsupported(f"that takes {len(runs)} pieces of a dim")
    if len(runs) == 1:
        return shaping.sliced(c.g, name, x, dim, *runs[0])
    pieces = [shaping.sliced(c.g, f"{name}.piece{n}", x, dim, start, stop) for n, (start, stop) in enumerate(runs)]
    return shaping.joined(c.g, name, pieces, dim)


@handles("Expand")
def expand(c: Call) -> Tensor:
    x, shape = c.tensor(0), listed(c, 1, "") or []
    if c.net.file_batch and shape[:1] == [c.net.file_batch] and len(shape) >= len(x.shape):
        shape = [c.net.batch, *shape[1:]]
    return stretched(c, c.name, x, tuple(np.broadcast_shapes(x.shape, tuple(shape))))


def stretched(c: Call, name: str, x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """x with dims of one, and dims that it lacks before, as long as those of a shape."""
    if x.shape == shape:
        return x
    x = shaping.reshaped(c.g, f"{name}.dims", x, (1,) * (len(shape) - len(x.shape)) + x.shape)
    return x if x.shape == shape else c.g.expand(name, x, shape)


@handles("Pad")
def pad(c: Call) -> Tensor:
    x, ends = c.tensor(0), listed(c, 1, "pads") or listed(c, 1, "paddings") or []
    dims, mode = listed(c, 3, "") or list(range(len(x.shape))), c.get("mode", b"constant").decode()
    value = float(np.asarray(c.known(2, c.get("value", 0.0))).reshape(()))
    pads = dict(zip([dim % len(x.shape) for dim in dims], zip(ends, ends[len(dims) :], strict=False), strict=True))
    if mode == "constant":
        return padded(c, c.name, x, [pads.get(dim, (0, 0)) for dim in range(len(x.shape))], value)
    for dim, (before, after) in pads.items():
        places = np.pad(np.arange(x.shape[dim]), (before, after), mode)
        x = picked(c, c.inner(f"dim{dim}"), x, dim, places.tolist())
    return x


def padded(c: Call, name: str, x: Tensor, pads: Sequence[tuple[int, int]], value: float = 0.0) -> Tensor:
    """x with so many elements of a value before and after each dim; fewer than none are left out."""
    for dim, (before, after) in enumerate(pads):
        if before < 0 or after < 0:
            inside = f"{name}.inside{dim}"
            x = c.g.slice(inside, x, dim, max(-before, 0), x.shape[dim] - max(-after, 0))
    more = [(dim, max(before, 0), max(after, 0)) for dim, (before, after) in enumerate(pads) if max(before, after) > 0]
    for number, (dim, before, after) in enumerate(more, start=1):
        x = c.g.pad(name if number == len(more) else f"{name}.dim{dim}", x, dim, before, after, value)
    return x


@handles("DepthToSpace")
def depth_to_space(c: Call) -> Tensor:
    block = c.get("blocksize")
    before = "(c p q)" if c.get("mode", b"DCR") == b"CRD" else "(p q c)"
    return c.g.transpose(c.name, c.tensor(0), f"b {before} h w -> b c (h p) (w q)", p=block, q=block)


@handles("SpaceToDepth")
def space_to_depth(c: Call) -> Tensor:
    block = c.get("blocksize")
    after = "(c p q)" if c.get("mode", b"DCR") == b"CRD" else "(p q c)"
    return c.g.transpose(c.name, c.tensor(0), f"b c (h p) (w q) -> b {after} h w", p=block, q=block)


@handles("Tile")
def tile(c: Call) -> Tensor:
    x, times = c.tensor(0), listed(c, 1, "") or []
    if min(times, default=1) < 1:
        raise Unsupported(f"{min(times)} times")
    for dim, count in enumerate(times):
        if count > 1 and x.shape[dim] == 1:
            x = c.g.expand(c.inner(f"dim{dim}"), x, (*x.shape[:dim], count, *x.shape[dim + 1 :]))
        elif count > 1:
            x = c.g.concat(c.inner(f"dim{dim}"), dim, *[x] * count)
    return x
