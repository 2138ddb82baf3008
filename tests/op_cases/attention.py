"""Cases of operators: attention."""

from castile.planner.ops.attention import Attention
from tests.op_cases import case


def cases_attention(rng):
    # batch, queries, keys, heads, width of a head
    for b, s, t, h, d in ((2, 5, 5, 3, 2), (3, 4, 4, 4, 1), (1, 7, 7, 2, 4), (2, 5, 3, 2, 3), (2, 3, 6, 1, 2)):
        for causal in (False, True):
            q, keys, values = (rng.normal(size=(b, n, h * d)) for n in (s, t, t))
            yield case(Attention(h, causal), (q, "b s d"), (keys, "b s d"), (values, "b s d"))
    for b, s, h, r, d in ((2, 5, 3, 2, 2), (1, 4, 1, 3, 1)):
        for causal in (False, True):
            q, keys, values = (rng.normal(size=(b, s, n * d)) for n in (h * r, h, h))
            yield case(Attention(h, causal, r), (q, "b s d"), (keys, "b s d"), (values, "b s d"))
