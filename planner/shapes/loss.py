"""What kernels of losses give, work in and refuse."""

from castile.planner.bodies.vocabulary import Results, Spec, integers, kernel, like, same, total, wide


@kernel()
def cross_entropy(logits: Spec, labels: Spec, *, scale: float) -> Results:
    """loss [], lse."""
    integers("cross_entropy", labels=labels)
    same("cross_entropy: shapes", logits=logits.shape[:-1], labels=labels.shape)
    return total((), logits.dtype), Spec(logits.shape[:-1], wide(logits.dtype))


@kernel()
def cross_entropy_grad(dy: Spec, logits: Spec, labels: Spec, lse: Spec, *, scale: float) -> Results:
    """Like logits."""
    loss, rows = cross_entropy(logits, labels, scale=scale)
    like("cross_entropy_grad", dy=dy, loss=loss)
    like("cross_entropy_grad", lse=lse, cross_entropy=rows)
    return (logits,)
