"""What kernels of a cross-entropy over blocks of classes give, work in and refuse."""

from castile.planner.bodies.vocabulary import Results, Spec, integers, kernel, like, need, same, wide


@kernel()
def block_entropy(logits: Spec, labels: Spec, *, blocks: int, first: int, of: int, classes: int) -> Results:
    """[..., blocks, 2]."""
    integers("block_entropy", labels=labels)
    same("block_entropy: shapes", logits=logits.shape[:-1], labels=labels.shape)
    need(0 < of <= classes, f"block_entropy: {classes} classes cannot be cut into {of} blocks")
    ends = first, first + blocks
    need(0 <= first < ends[1] <= of, f"block_entropy: there are no blocks {first} to {ends[1]} of {of}")
    lo, hi = (-(-end * classes // of) for end in ends)
    need(logits.shape[-1] == hi - lo, f"block_entropy: {blocks} blocks have {hi - lo} logits, not {logits.shape[-1]}")
    return (Spec((*labels.shape, blocks, 2), wide(logits.dtype)),)


@kernel()
def block_entropy_grad(dy: Spec, logits: Spec, labels: Spec, y: Spec, *, first: int, of: int, classes: int) -> Results:
    """Like logits."""
    made = block_entropy(logits, labels, blocks=y.shape[-2], first=first, of=of, classes=classes)[0]
    like("block_entropy_grad", dy=dy, y=y, block_entropy=made)
    return (logits,)


@kernel()
def split_cross_entropy(parts: Spec, *, scale: float) -> Results:
    """loss [], lse."""
    need(len(parts.shape) >= 2 and parts.shape[-1] == 2, f"split_cross_entropy: parts are no pairs: {parts.shape}")
    return Spec((), parts.dtype), Spec(parts.shape[:-2], parts.dtype)


@kernel()
def split_cross_entropy_grad(dy: Spec, parts: Spec, lse: Spec, *, scale: float) -> Results:
    """Like parts."""
    loss, rows = split_cross_entropy(parts, scale=scale)
    like("split_cross_entropy_grad", dy=dy, loss=loss)
    like("split_cross_entropy_grad", lse=lse, split_cross_entropy=rows)
    return (parts,)
