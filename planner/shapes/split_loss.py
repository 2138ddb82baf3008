"""What kernels of a cross-entropy over blocks of classes give, work in and refuse."""

from castile.planner.vocabulary import Results, Spec, integers, kernel, like, need, same, wide


@kernel()
def block_entropy(logits: Spec, labels: Spec, *, blocks: int, first: int, classes: int) -> Results:
    """[..., blocks, 2]."""
    integers("block_entropy", labels=labels)
    same("block_entropy: shapes", logits=logits.shape[:-1], labels=labels.shape)
    width = logits.shape[-1]
    need(blocks > 0 and width % blocks == 0, f"block_entropy: {width} classes do not divide into {blocks} blocks")
    need(0 <= first <= classes - width, f"block_entropy: {first} to {first + width} lie not within {classes} classes")
    return (Spec((*labels.shape, blocks, 2), wide(logits.dtype)),)


@kernel()
def block_entropy_grad(dy: Spec, logits: Spec, labels: Spec, y: Spec, *, first: int, classes: int) -> Results:
    """Like logits."""
    made = block_entropy(logits, labels, blocks=y.shape[-2], first=first, classes=classes)[0]
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
