"""Gates of recurrent cells and their gradients, in one pass over memory.

It knows no product with the state.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from castile.kernels.calls import nothing
from castile.kernels.form import prepares
from castile.kernels.numpy.functions import sigmoid, tanh
from castile.kernels.numpy.jit import compiled, f32
from castile.kernels.numpy.pointers import after, pointer
from castile.kernels.numpy.views import element_strides, has_contiguous_rows, is_forward, span

Arrays = tuple[np.ndarray, ...]


@prepares
def lstm_cell(out: Arrays, x: np.ndarray, bias: np.ndarray, r: np.ndarray, c: np.ndarray) -> Callable[[], Any] | None:
    """See the definition."""
    return _work(_lstm, [*out, x, bias, r, c])


@prepares
def lstm_cell_grad(
    out: Arrays, dh: np.ndarray, dc: np.ndarray, gates: np.ndarray, before: np.ndarray, c: np.ndarray
) -> Callable[[], Any] | None:
    """See the definition."""
    return _work(_lstm_grad, [*out, dh, dc, gates, before, c])


@prepares
def gru_cell(
    out: Arrays, x: np.ndarray, bias_x: np.ndarray, r: np.ndarray, bias_r: np.ndarray, h: np.ndarray
) -> Callable[[], Any] | None:
    """See the definition."""
    return _work(_gru, [*out, x, bias_x, r, bias_r, h])


@prepares
def gru_cell_grad(out: Arrays, dh: np.ndarray, gates: np.ndarray, h: np.ndarray) -> Callable[[], Any] | None:
    """See the definition."""
    return _work(_gru_grad, [*out, dh, gates, h])


def _work(kernel: Callable[..., Any], arrays: list[np.ndarray]) -> Callable[[], Any] | None:
    """The work of `kernel(steps, samples, units, *flats)`; None if units do not lie side by side or a step is < 0.

    The first array is the new state or has its samples and units. `steps` has two numbers for each array, in elements:
    from one sample to the next (0 for a bias), and from one gate to the next.
    """
    samples, units = arrays[0].shape[0], arrays[0].shape[-1]
    if samples * units == 0:
        return nothing
    if not (is_forward(*arrays) and has_contiguous_rows(*arrays)):
        return None
    steps: list[int] = []
    for x in arrays:
        own = element_strides(x)
        steps += [0 if x.ndim == 2 else own[0], 0 if x.ndim == 3 else own[-2]]
    return partial(kernel, np.array(steps, np.int64), samples, units, *map(span, arrays))


# Short loops over the units of one sample: what one leaves in the first-level cache the next finds there, and each has
# few enough arrays for the compiler to see that they are apart.


@compiled
def _lstm(steps, samples, units, h, new, gates, x, bias, r, c):  # type: ignore[no-untyped-def]
    step = pointer(steps)
    for n in range(samples):
        for g in range(4):
            o, u = after(pointer(gates), n * step[4] + g * step[5]), after(pointer(x), n * step[6] + g * step[7])
            v, w = after(pointer(bias), g * step[9]), after(pointer(r), n * step[10] + g * step[11])
            if g == 2:
                for j in range(units):
                    o[j] = tanh(u[j] + v[j] + w[j])
            else:
                for j in range(units):
                    o[j] = sigmoid(u[j] + v[j] + w[j])
        into = after(pointer(gates), n * step[4])
        forget, candidate, outof = after(into, step[5]), after(into, 2 * step[5]), after(into, 3 * step[5])
        before, after_it = after(pointer(c), n * step[12]), after(pointer(new), n * step[2])
        for j in range(units):
            after_it[j] = forget[j] * before[j] + into[j] * candidate[j]
        o = after(pointer(h), n * step[0])
        for j in range(units):
            o[j] = outof[j] * tanh(after_it[j])


@compiled
def _lstm_grad(steps, samples, units, dx, dbefore, dh, dc, gates, before, c):  # type: ignore[no-untyped-def]
    step = pointer(steps)
    for n in range(samples):
        into = after(pointer(gates), n * step[8])
        forget, candidate, outof = after(into, step[9]), after(into, 2 * step[9]), after(into, 3 * step[9])
        d_into = after(pointer(dx), n * step[0])
        d_forget, d_candidate, d_outof = after(d_into, step[1]), after(d_into, 2 * step[1]), after(d_into, 3 * step[1])
        pull, pull_c, past = (
            after(pointer(dh), n * step[4]),
            after(pointer(dc), n * step[6]),
            after(pointer(before), n * step[10]),
        )
        now, d = after(pointer(c), n * step[12]), after(pointer(dbefore), n * step[2])
        for j in range(units):
            d_outof[j] = tanh(now[j])
        for j in range(units):
            d[j] = pull_c[j] + pull[j] * outof[j] * (f32(1) - d_outof[j] * d_outof[j])
        for j in range(units):
            d_outof[j] *= pull[j] * outof[j] * (f32(1) - outof[j])
        for j in range(units):
            d_into[j] = d[j] * candidate[j] * into[j] * (f32(1) - into[j])
        for j in range(units):
            d_candidate[j] = d[j] * into[j] * (f32(1) - candidate[j] * candidate[j])
        for j in range(units):
            d_forget[j] = d[j] * past[j] * forget[j] * (f32(1) - forget[j])
        for j in range(units):
            d[j] *= forget[j]


@compiled
def _gru(steps, samples, units, h, gates, x, bias_x, r, bias_r, before):  # type: ignore[no-untyped-def]
    step = pointer(steps)
    for n in range(samples):
        for g in range(2):
            o, u = after(pointer(gates), n * step[2] + g * step[3]), after(pointer(x), n * step[4] + g * step[5])
            v, w = after(pointer(bias_x), g * step[7]), after(pointer(r), n * step[8] + g * step[9])
            z = after(pointer(bias_r), g * step[11])
            for j in range(units):
                o[j] = sigmoid(u[j] + v[j] + w[j] + z[j])
        reset = after(pointer(gates), n * step[2])
        update, candidate, recalled = after(reset, step[3]), after(reset, 2 * step[3]), after(reset, 3 * step[3])
        w, z = after(pointer(r), n * step[8] + 2 * step[9]), after(pointer(bias_r), 2 * step[11])
        for j in range(units):
            recalled[j] = w[j] + z[j]
        u, v = after(pointer(x), n * step[4] + 2 * step[5]), after(pointer(bias_x), 2 * step[7])
        for j in range(units):
            candidate[j] = tanh(u[j] + v[j] + reset[j] * recalled[j])
        o, past = after(pointer(h), n * step[0]), after(pointer(before), n * step[12])
        for j in range(units):
            o[j] = candidate[j] + update[j] * (past[j] - candidate[j])


@compiled
def _gru_grad(steps, samples, units, dx, dr, dbefore, dh, gates, before):  # type: ignore[no-untyped-def]
    step = pointer(steps)
    for n in range(samples):
        reset = after(pointer(gates), n * step[8])
        update, candidate, recalled = after(reset, step[9]), after(reset, 2 * step[9]), after(reset, 3 * step[9])
        d_reset, r_reset = after(pointer(dx), n * step[0]), after(pointer(dr), n * step[2])
        d_update, r_update = after(d_reset, step[1]), after(r_reset, step[3])
        d_candidate, r_candidate = after(d_reset, 2 * step[1]), after(r_reset, 2 * step[3])
        pull, past = after(pointer(dh), n * step[6]), after(pointer(before), n * step[10])
        d = after(pointer(dbefore), n * step[4])
        for j in range(units):
            d_candidate[j] = pull[j] * (f32(1) - update[j]) * (f32(1) - candidate[j] * candidate[j])
        for j in range(units):
            r_candidate[j] = d_candidate[j] * reset[j]
        for j in range(units):
            r_reset[j] = d_candidate[j] * recalled[j] * reset[j] * (f32(1) - reset[j])
        for j in range(units):
            d_reset[j] = r_reset[j]
        for j in range(units):
            r_update[j] = pull[j] * (past[j] - candidate[j]) * update[j] * (f32(1) - update[j])
        for j in range(units):
            d_update[j] = r_update[j]
        for j in range(units):
            d[j] = pull[j] * update[j]
