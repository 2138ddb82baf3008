"""Cases of the kernels of attention."""

from collections.abc import Iterator

from castile.kernels import reference
from tests.kernel_cases import Case, Draw


def case_attention(draw: Draw) -> Iterator[Case]:
    for b, s, t, heads, groups, d, causal, offset in [
        (2, 5, 7, 3, 3, 4, False, 0),
        (1, 1, 1, 1, 1, 1, True, 0),
        (2, 70, 70, 2, 2, 3, True, 0),
        (1, 3, 9, 2, 2, 5, True, 4),
        (2, 130, 63, 1, 1, 2, True, 0),
        (1, 130, 131, 2, 2, 2, False, 0),
        (1, 100, 101, 3, 3, 2, True, 1),
        (2, 5, 7, 6, 2, 3, False, 0),
        (2, 70, 70, 4, 1, 2, True, 0),
        # Heads as wide and sequences as long as whole blocks.
        (1, 128, 192, 2, 1, 16, True, 64),
        (1, 70, 75, 4, 2, 3, True, 5),
    ]:
        params = {"heads": heads, "causal": causal, "offset": offset, "scale": 0.7}
        yield (draw(b, s, heads * d), draw(b, t, groups * d), draw(b, t, groups * d)), params


def case_attention_grad(draw: Draw) -> Iterator[Case]:
    for (q, kk, v), params in case_attention(draw):
        y, lse = reference.attention(q, kk, v, **params)
        yield (draw(*q.shape), q, kk, v, y, lse), params
