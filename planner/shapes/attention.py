"""What kernels of attention give, work in and refuse."""

from castile.planner.bodies.vocabulary import Results, Spec, kernel, like, need, round_up, same, wide

SCORES_CAP = 1 << 19


def _scores_bytes(q: Spec, kk: Spec, heads: int) -> int:
    """Score rows of t and one more elements, as many as the cap holds, but at least one."""
    row = (kk.shape[1] + 1) * q.itemsize
    return row * min(q.shape[0] * heads * q.shape[1], max(1, SCORES_CAP // row))


@kernel(working=lambda outs, _, q, kk, v, heads, **how: _scores_bytes(q, kk, heads))
def attention(q: Spec, kk: Spec, v: Spec, *, heads: int, causal: bool, offset: int, scale: float) -> Results:
    """y like q, and lse [b,heads,s], wide: the gradient takes exponentials of what it lacks."""
    need(len(q.shape) == 3 and len(kk.shape) == 3, f"attention: q {q.shape} and kk {kk.shape} must have 3 dims")
    like("attention", kk=kk, v=v)
    same("attention: samples and dtype", q=(q.shape[0], q.dtype), kk=(kk.shape[0], kk.dtype))
    need(q.shape[2] % heads == 0, f"attention: the width {q.shape[2]} is not a multiple of {heads} heads")
    shared = kk.shape[2] > 0 and q.shape[2] % kk.shape[2] == 0 and kk.shape[2] % (q.shape[2] // heads) == 0
    need(shared, f"attention: the width {kk.shape[2]} of kk is no share of {heads} heads of q {q.shape}")
    need(scale > 0 and offset >= 0, f"attention: scale {scale} must be positive and offset {offset} not negative")
    return q, Spec((q.shape[0], heads, q.shape[1]), wide(q.dtype))


@kernel(working=lambda outs, _, dy, q, kk, *more, heads, **how: 2 * round_up(_scores_bytes(q, kk, heads)))
def attention_grad(
    dy: Spec, q: Spec, kk: Spec, v: Spec, y: Spec, lse: Spec, *, heads: int, causal: bool, offset: int, scale: float
) -> Results:
    """dq, dk, dv."""
    forward = attention(q, kk, v, heads=heads, causal=causal, offset=offset, scale=scale)
    like("attention_grad", dy=dy, q=q, y=y)
    like("attention_grad", lse=lse, attention=forward[1])
    return q, kk, v
