"""Rotary position embeddings: each pair of a head's features is rotated by an angle that grows with the position.

It knows no attention. Sines are costly, so those of a position are made from those of earlier ones by angle addition,
in float64, doubling their number each time.
"""

from functools import partial

import numpy as np

from castile.kernels.calls import Call, chain, nothing
from castile.kernels.form import prepares
from castile.kernels.numpy.jit import compiled, inlined
from castile.kernels.numpy.pointers import after, pointer
from castile.kernels.numpy.views import (
    Scratch,
    element_strides,
    flat,
    has_contiguous_rows,
    is_forward,
    merge_dims,
    outer_offsets,
)


@prepares
def rotary(
    out: np.ndarray,
    x: np.ndarray,
    *,
    heads: int,
    base: float,
    offset: int,
    interleaved: bool,
    inverse: bool,
    scratch: np.ndarray,
) -> Call | None:
    """See the definition."""
    if x.size == 0:
        return nothing
    apart = [a.reshape(*a.shape[:-1], heads, a.shape[-1] // heads, copy=False) for a in (out, x)]
    if not (is_forward(*apart) and has_contiguous_rows(*apart)):
        return None
    num, num_heads, width = apart[0].shape[-3:]
    memory = Scratch(scratch)
    angles = memory.take((2 * num * (width // 2),), np.dtype("float64"))
    turn = memory.take((width,), x.dtype)
    shape, strides = merge_dims(x.shape[:-2], [a.strides[:-2] for a in (out, x)])
    sizes = (shape[-1] if shape else 1, num, num_heads, width)
    steps = [
        (one[-1] // x.itemsize if one else 0, *element_strides(a)[-3:-1]) for a, one in zip(apart, strides, strict=True)
    ]
    calls: list[Call] = [partial(_angles, angles, num, width // 2, float(base), offset, inverse)]
    for offsets in outer_offsets(shape[:-1], [one[:-1] for one in strides]):
        flats = [flat(a, start // x.itemsize, 1) for a, start in zip((out, x), offsets, strict=True)]
        calls.append(partial(_rotate, sizes, *flats, *steps, angles, turn, interleaved))
    return chain(calls)


@compiled
def _angles(angles, num, pairs, base, offset, inverse):  # type: ignore[no-untyped-def]
    """Cosines, then sines, of every position and pair."""
    c, s = angles[: num * pairs], angles[num * pairs :]
    for j in range(pairs):
        turn = base ** (-j / pairs)
        if inverse:
            turn = -turn
        c[j], s[j] = np.cos(offset * turn), np.sin(offset * turn)
        done = 1
        while done < num:
            by_c, by_s = np.cos(done * turn), np.sin(done * turn)
            for n in range(min(done, num - done)):
                u, v = c[n * pairs + j], s[n * pairs + j]
                c[(done + n) * pairs + j] = u * by_c - v * by_s
                s[(done + n) * pairs + j] = v * by_c + u * by_s
            done *= 2


@inlined
def _head(x, steps, sample, position, head):  # type: ignore[no-untyped-def]
    return after(pointer(x), sample * steps[0] + position * steps[1] + head * steps[2])


@compiled
def _rotate(sizes, out, x, out_steps, x_steps, angles, turn, interleaved):  # type: ignore[no-untyped-def]
    """Heads of samples turned; steps are from sample to sample, position to position and head to head."""
    samples, num, heads, width = sizes
    half = width // 2
    c, s = pointer(turn), after(pointer(turn), half)
    for n in range(num):
        for j in range(half):
            c[j], s[j] = angles[n * half + j], angles[(num + n) * half + j]
        for i in range(samples):
            for h in range(heads):
                o, v = _head(out, out_steps, i, n, h), _head(x, x_steps, i, n, h)
                if interleaved:
                    for j in range(half):
                        a, b = v[2 * j], v[2 * j + 1]
                        o[2 * j] = a * c[j] - b * s[j]
                        o[2 * j + 1] = b * c[j] + a * s[j]
                else:
                    for j in range(half):
                        a, b = v[j], v[half + j]
                        o[j] = a * c[j] - b * s[j]
                        o[half + j] = b * c[j] + a * s[j]
