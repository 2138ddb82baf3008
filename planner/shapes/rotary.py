"""What kernels of rotary position embeddings give, work in and refuse."""

from castile.planner.bodies.vocabulary import Results, Spec, kernel, need, round_up


def _angles_bytes(x: Spec, heads: int) -> int:
    """A cosine and a sine in float64 for each position and pair, and those of one position in x's dtype."""
    pairs = x.shape[-1] // heads // 2
    return int(round_up(2 * 8 * x.shape[-2] * pairs)) + 2 * pairs * x.itemsize


@kernel(working=lambda outs, _, x, heads, **how: _angles_bytes(x, heads))
def rotary(x: Spec, *, heads: int, base: float, offset: int, interleaved: bool, inverse: bool) -> Results:
    """x's spec."""
    need(len(x.shape) >= 2, f"rotary: x must have positions and features, not the shape {x.shape}")
    need(x.shape[-1] % (2 * heads) == 0, f"rotary: the width {x.shape[-1]} is not an even multiple of {heads} heads")
    need(base > 0 and offset >= 0, f"rotary: base {base} must be positive and offset {offset} not negative")
    return (x,)
