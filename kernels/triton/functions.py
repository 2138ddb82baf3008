"""Device functions: offsets of elements, loads and stores of rows, and elementary functions in float32.

They know no kernel. exp, log and erf are Triton's, to about 2e-7 of the result; the others are made from them, by the
polynomials of Cephes (Moshier 1989) where a difference would lose digits. NaN propagates.
"""

# Annotations of a @triton.jit function mean something to Triton, and it knows no others.
# mypy: disable-error-code="no-untyped-def"

import triton
from triton import language as tl

# By which a number is multiplied whose e to the power is wanted as a power of 2.
LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def offsets(index, sizes, steps):
    """The offsets of elements, given their row-major numbers `index` in an array of `sizes` with these steps."""
    offset = index * 0
    for dim in tl.static_range(len(sizes) - 1, 0, -1):
        offset += index % sizes[dim] * steps[dim]
        index = index // sizes[dim]
    return offset + index * steps[0]


@triton.jit
def aligned(x, base):
    """x, a number or an address that is as aligned to 16 bytes as `base`: the compiler forgets that behind branches."""
    if x.dtype.is_ptr():
        itemsize: tl.constexpr = x.dtype.element_ty.primitive_bitwidth // 8
        found = base + (x.to(tl.int64) - base.to(tl.int64)) // 16 * (16 // itemsize)
    else:
        found = x // 16 * 16
    return found


@triton.jit
def abs(x):
    """Without its sign."""
    return tl.abs(x)


@triton.jit
def exp(x):
    """e to the x."""
    return tl.exp(x)


@triton.jit
def log(x):
    """Natural logarithm."""
    return tl.log(x)


@triton.jit
def sqrt(x):
    """Square root, correctly rounded."""
    return tl.sqrt_rn(x)


@triton.jit
def erf(x):
    """Error function."""
    return tl.erf(x)


@triton.jit
def sigmoid(x):
    """1 / (1 + e to the -x)."""
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def expm1(x):
    """e to the x, less 1."""
    p = x * (1.0 / 40320) + 1.0 / 5040
    p = p * x + 1.0 / 720
    p = p * x + 1.0 / 120
    p = p * x + 1.0 / 24
    p = p * x + 1.0 / 6
    p = p * x + 0.5
    return tl.where(tl.abs(x) < 0.5, p * x * x + x, tl.exp(x) - 1.0)


@triton.jit
def log1p(x):
    """Natural logarithm of 1 + x; what 1 + x lost by rounding is made good to first order."""
    u = 1.0 + x
    y = tl.log(u)
    return tl.where((u > 0.0) & (u < 1e7), y + (x - (u - 1.0)) / u, y)


@triton.jit
def tanh(x):
    """Hyperbolic tangent."""
    z = x * x
    p = z * -5.70498872745e-3 + 2.06390887954e-2
    p = p * z - 5.37397155531e-2
    p = p * z + 1.33314422036e-1
    p = p * z - 3.33332819422e-1
    a = tl.abs(x)
    far = 1.0 - 2.0 / (tl.exp(a + a) + 1.0)
    return tl.where(a < 0.625, p * z * x + x, tl.where(x < 0.0, -far, far))


@triton.jit
def shifted_sine(x, ahead: tl.constexpr):
    """The sine of x plus `ahead` quarter turns; the range is reduced in float64, which is accurate up to a million."""
    wide = x.to(tl.float64)
    n = tl.floor(wide * 0.6366197723675814 + 0.5)
    r = (wide - n * 1.5707963267341256 - n * 6.0771005063039e-11).to(tl.float32)
    n += ahead
    quarter = n - 4.0 * tl.floor(0.25 * n)
    z = r * r
    p = z * -1.9515295891e-4 + 8.3321608736e-3
    p = p * z - 1.6666654611e-1
    q = z * 2.443315711809948e-5 - 1.388731625493765e-3
    q = q * z + 4.166664568298827e-2
    y = tl.where((quarter == 1.0) | (quarter == 3.0), q * z * z - 0.5 * z + 1.0, p * z * r + r)
    return tl.where(quarter > 1.0, -y, y)


@triton.jit
def sin(x):
    """Sine of an angle in radians."""
    return shifted_sine(x, 0.0)


@triton.jit
def cos(x):
    """Cosine of an angle in radians."""
    return shifted_sine(x, 1.0)


@triton.jit
def sign(x):
    """-1, 0 or 1."""
    return tl.where(x > 0.0, 1.0, tl.where(x < 0.0, -1.0, x))


@triton.jit
def maximum(a, b):
    """The larger one; NaN if one is NaN."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def minimum(a, b):
    """The smaller one; NaN if one is NaN."""
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def where(condition, a, b):
    """a where the condition holds, else b."""
    return tl.where(condition, a, b)


@triton.jit
def plus(a, b):
    """The sum."""
    return a + b


@triton.jit
def all_plus(x):
    """The sum of each row."""
    return tl.sum(x, 1)


@triton.jit
def all_maximum(x):
    """The largest element of each row; NaN if one is NaN."""
    odd = tl.max((x != x).to(tl.int32), 1)
    return tl.where(odd > 0, float("nan"), tl.max(x, 1))


@triton.jit
def block_of_rows(here, start, NUM: tl.constexpr, BLOCK: tl.constexpr):
    """The columns of a block, as [1,BLOCK], and its mask, as [rows,BLOCK]."""
    col = (start + tl.arange(0, BLOCK))[None, :]
    return col, here[:, None] & (col < NUM)


@triton.jit
def row_starts(x, place, SKEW: tl.constexpr):
    """The addresses of rows and their skew: with SKEW the multiple of 16 bytes before each row, and how many elements
    later it begins; otherwise its own beginning and 0.
    """
    if SKEW:
        return x + place // 8 * 8, place % 8
    else:
        return x + place, place * 0


@triton.jit
def row_block(here, skew, start, SKEW: tl.constexpr, NUM: tl.constexpr, BLOCK: tl.constexpr):
    """As `block_of_rows`, for rows from `row_starts`; with SKEW without their `row_edges`, so that loads are 16 bytes
    each.
    """
    at = (start + tl.arange(0, BLOCK))[None, :]
    if SKEW:
        first, last = (skew[:, None] + 7) // 8, (skew[:, None] + NUM) // 8
        return at, here[:, None] & (at // 8 >= first) & (at // 8 < last)
    else:
        return at, here[:, None] & (at < NUM)


@triton.jit
def row_edges(here, skew, NUM: tl.constexpr):
    """The few elements at both ends of rows that share their 16 bytes with other rows."""
    k = tl.arange(0, 16)[None, :]
    last = (skew[:, None] + NUM) // 8 * 8
    at = tl.where(k < 8, k, last + k - 8)
    return at, here[:, None] & tl.where(k < 8, (skew[:, None] > 0) & (k >= skew[:, None]), at < skew[:, None] + NUM)


@triton.jit
def load_rows(x, col, step: tl.constexpr, mask, other: tl.constexpr):
    """A block of rows in float32; x points to where rows begin."""
    return tl.load(x[:, None] + col * step, mask=mask, other=other).to(tl.float32)


@triton.jit
def load_vector(x, col, step: tl.constexpr, NUM: tl.constexpr):
    """A block of a vector that all rows share, as [1,BLOCK] in float32."""
    return tl.load(x + col * step, mask=col < NUM, other=0.0).to(tl.float32)


@triton.jit
def store_rows(out, col, step: tl.constexpr, value, mask):
    """Write a block of rows."""
    tl.store(out[:, None] + col * step, value.to(out.dtype.element_ty), mask=mask)
