"""Elementary functions for use inside compiled loops, which they do not keep from being vectorised.

They know no kernel. Accurate to about 1e-7 of the result in float32 and 1e-15 in float64, by the polynomials of Cephes
(Moshier 1989). NaN stays, infinities give their limits.
"""

from math import sqrt  # noqa: F401  (one of the functions)
from typing import Any

import numpy as np
from numba import types
from numba.extending import overload

from castile.kernels.numpy.jit import exact_order, exp, f32, half_exp64, inlined


@exact_order
def _log32(x):  # type: ignore[no-untyped-def]
    tiny = x < f32(1.1754944e-38)
    scaled = x * f32(8388608) if tiny else x
    bits = np.float32(scaled).view(np.int32)
    # the power of two nearest to x below sqrt(2) times as much, and what x is of it
    above = (bits - np.int32(0x3F3504F3)) >> np.int32(23)
    m = np.int32(bits - (above << np.int32(23))).view(np.float32) - f32(1)
    n = f32(above) - (f32(23) if tiny else f32(0))
    z = m * m
    p = f32(7.0376836292e-2) * m + f32(-1.1514610310e-1)
    p = p * m + f32(1.1676998740e-1)
    p = p * m + f32(-1.2420140846e-1)
    p = p * m + f32(1.4249322787e-1)
    p = p * m + f32(-1.6668057665e-1)
    p = p * m + f32(2.0000714765e-1)
    p = p * m + f32(-2.4999993993e-1)
    p = p * m + f32(3.3333331174e-1)
    y = p * m * z + f32(-2.12194440e-4) * n - f32(0.5) * z
    y = m + y + f32(0.693359375) * n
    if x == f32(np.inf):
        y = x
    if x == f32(0):
        y = f32(-np.inf)
    if not x >= f32(0):
        y = f32(np.nan)
    return y


@exact_order
def _log1p32(x):  # type: ignore[no-untyped-def]
    # what 1 + x lost by rounding is made good to first order
    u = f32(1) + x
    lost = x - (u - f32(1))
    y = _log32(u)
    return y + lost / u if u > f32(0) and u < f32(1e7) else y


@exact_order
def _tanh32(x):  # type: ignore[no-untyped-def]
    z = x * x
    p = f32(-5.70498872745e-3) * z + f32(2.06390887954e-2)
    p = p * z + f32(-5.37397155531e-2)
    p = p * z + f32(1.33314422036e-1)
    p = p * z + f32(-3.33332819422e-1)
    near = p * z * x + x
    a = abs(x)
    far = f32(1) - f32(2) / (exp(a + a) + f32(1))
    far = -far if x < f32(0) else far
    return near if a < f32(0.625) else far


@exact_order
def _expm132(x):  # type: ignore[no-untyped-def]
    p = f32(1 / 40320) * x + f32(1 / 5040)
    p = p * x + f32(1 / 720)
    p = p * x + f32(1 / 120)
    p = p * x + f32(1 / 24)
    p = p * x + f32(1 / 6)
    p = p * x + f32(1 / 2)
    near = p * x * x + x
    return near if abs(x) < f32(0.5) else exp(x) - f32(1)


@exact_order
def _log64(x):  # type: ignore[no-untyped-def]
    tiny = x < 2.2250738585072014e-308
    scaled = x * 18014398509481984.0 if tiny else x
    bits = np.float64(scaled).view(np.int64)
    above = (bits - np.int64(0x3FE6A09E667F3BCD)) >> np.int64(52)
    m = np.int64(bits - (above << np.int64(52))).view(np.float64) - 1.0
    n = np.float64(above) - (54.0 if tiny else 0.0)
    z = m * m
    p = 1.01875663804580931796e-4 * m + 4.97494994976747001425e-1
    p = p * m + 4.70579119878881725854e0
    p = p * m + 1.44989225341610930846e1
    p = p * m + 1.79368678507819816313e1
    p = p * m + 7.70838733755885391666e0
    q = m + 1.12873587189167450590e1
    q = q * m + 4.52279145837532221105e1
    q = q * m + 8.29875266912776603211e1
    q = q * m + 7.11544750618563894466e1
    q = q * m + 2.31251620126765340583e1
    y = m * (z * p / q) - n * 2.121944400546905827679e-4 - 0.5 * z
    y = m + y + n * 0.693359375
    if x == np.inf:
        y = x
    if x == 0.0:
        y = np.float64(-np.inf)
    if not x >= 0.0:
        y = np.float64(np.nan)
    return y


@exact_order
def _log1p64(x):  # type: ignore[no-untyped-def]
    u = 1.0 + x
    lost = x - (u - 1.0)
    y = _log64(u)
    return y + lost / u if u > 0.0 and u < 1e16 else y


@exact_order
def _tanh64(x):  # type: ignore[no-untyped-def]
    z = x * x
    p = -9.64399179425052238628e-1 * z - 9.92877231001918586564e1
    p = p * z - 1.61468768441708447952e3
    q = (z + 1.12811678491632931402e2) * z + 2.23548839060100448583e3
    q = q * z + 4.84406305325125486048e3
    near = x + x * (z * p / q)
    a = abs(x)
    far = 1.0 - 2.0 / (exp(a + a) + 1.0)
    far = -far if x < 0.0 else far
    return near if a < 0.625 else far


@exact_order
def _expm164(x):  # type: ignore[no-untyped-def]
    return 2.0 * half_exp64(x) if abs(x) < 0.5 else exp(x) - 1.0


@inlined
def _beyond(x, ahead):  # type: ignore[no-untyped-def]
    """How far x is from the nearest quarter of a turn, and which of the four that is, so many ahead.

    The quarter is subtracted in three parts (those of fdlibm), of which the first has zeros behind it for products.
    """
    n = np.floor(x * 0.6366197723675814 + 0.5)
    r = x - n * 1.5707963267341256 - n * 6.0771005063039e-11 - n * 2.0222662487959506e-21
    n += ahead
    return r, n - 4.0 * np.floor(0.25 * n)


@exact_order
def _turned32(x, ahead):  # type: ignore[no-untyped-def]
    far, quarter = _beyond(np.float64(x), ahead)
    r = f32(far)
    z = r * r
    p = f32(-1.9515295891e-4) * z + f32(8.3321608736e-3)
    p = p * z + f32(-1.6666654611e-1)
    q = f32(2.443315711809948e-5) * z + f32(-1.388731625493765e-3)
    q = q * z + f32(4.166664568298827e-2)
    y = q * z * z - f32(0.5) * z + f32(1) if quarter == 1.0 or quarter == 3.0 else p * z * r + r
    return -y if quarter > 1.0 else y


@exact_order
def _turned64(x, ahead):  # type: ignore[no-untyped-def]
    r, quarter = _beyond(x, ahead)
    z = r * r
    p = 1.58962301576546568060e-10 * z - 2.50507477628578072866e-8
    p = p * z + 2.75573136213857245213e-6
    p = p * z - 1.98412698295895385996e-4
    p = p * z + 8.33333333332211858878e-3
    p = p * z - 1.66666666666666307295e-1
    q = -1.13585365213876817300e-11 * z + 2.08757008419747316778e-9
    q = q * z - 2.75573141792967388112e-7
    q = q * z + 2.48015872888517045348e-5
    q = q * z - 1.38888888888730564116e-3
    q = q * z + 4.16666666666665929218e-2
    y = q * z * z - 0.5 * z + 1.0 if quarter == 1.0 or quarter == 3.0 else p * z * r + r
    return -y if quarter > 1.0 else y


def log(x: Any) -> Any:
    """Natural logarithm; of 0 it is -inf, of less NaN."""
    raise NotImplementedError


@overload(log)
def _log(x):  # type: ignore[no-untyped-def]
    return (lambda x: _log32(x)) if x == types.float32 else (lambda x: _log64(x))


def log1p(x: Any) -> Any:
    """Natural logarithm of 1 + x."""
    raise NotImplementedError


@overload(log1p)
def _log1p(x):  # type: ignore[no-untyped-def]
    return (lambda x: _log1p32(x)) if x == types.float32 else (lambda x: _log1p64(x))


def expm1(x: Any) -> Any:
    """e to the x, less 1."""
    raise NotImplementedError


@overload(expm1)
def _expm1(x):  # type: ignore[no-untyped-def]
    return (lambda x: _expm132(x)) if x == types.float32 else (lambda x: _expm164(x))


def tanh(x: Any) -> Any:
    """Hyperbolic tangent."""
    raise NotImplementedError


@overload(tanh)
def _tanh(x):  # type: ignore[no-untyped-def]
    return (lambda x: _tanh32(x)) if x == types.float32 else (lambda x: _tanh64(x))


def sin(x: Any) -> Any:
    """Sine of an angle in radians, accurate up to a million of them; NaN of infinity."""
    raise NotImplementedError


@overload(sin)
def _sin(x):  # type: ignore[no-untyped-def]
    return (lambda x: _turned32(x, 0.0)) if x == types.float32 else (lambda x: _turned64(x, 0.0))


def cos(x: Any) -> Any:
    """Cosine of an angle in radians, as `sin`."""
    raise NotImplementedError


@overload(cos)
def _cos(x):  # type: ignore[no-untyped-def]
    return (lambda x: _turned32(x, 1.0)) if x == types.float32 else (lambda x: _turned64(x, 1.0))


@inlined
def sigmoid(x):  # type: ignore[no-untyped-def]
    """1 / (1 + e to the -x)."""
    return f32(1) / (f32(1) + exp(-x))


@inlined
def maximum(a, b):  # type: ignore[no-untyped-def]
    """The larger one; NaN if one is NaN."""
    return a if a > b or a != a else b


@inlined
def minimum(a, b):  # type: ignore[no-untyped-def]
    """The smaller one; NaN if one is NaN."""
    return a if a < b or a != a else b


@inlined
def where(condition, a, b):  # type: ignore[no-untyped-def]
    """a where the condition holds, else b."""
    return a if condition else b
