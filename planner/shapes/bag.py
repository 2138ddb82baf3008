"""What kernels of bags of embeddings give, work in and refuse."""

from castile.planner.bodies.vocabulary import Results, Spec, integers, kernel, need, same
from castile.planner.shapes.embedding import within


@kernel()
def embedding_bag(ids: Spec, table: Spec, *weights: Spec, scale: float, first: int, known: int) -> Results:
    """ids.shape[:-1] + (d,)."""
    _check("embedding_bag", ids, weights)
    need(len(table.shape) == 2, f"embedding_bag: the table must have 2 dims, not {table.shape}")
    within("embedding_bag", first, table.shape[0], known)
    return (Spec((*ids.shape[:-1], table.shape[1]), table.dtype),)


@kernel(adds=True, casts=True)
def embedding_bag_grad(dy: Spec, ids: Spec, *weights: Spec, rows: int, scale: float, first: int, known: int) -> Results:
    """[rows, d]."""
    within("embedding_bag_grad", first, rows, known)
    _check("embedding_bag_grad", ids, weights)
    same("embedding_bag_grad: bags", dy=dy.shape[:-1], ids=ids.shape[:-1])
    return (Spec((rows, dy.shape[-1]), dy.dtype),)


@kernel()
def embedding_bag_weights_grad(dy: Spec, ids: Spec, table: Spec, *, scale: float, first: int, known: int) -> Results:
    """ids.shape."""
    within("embedding_bag_weights_grad", first, table.shape[0], known)
    _check("embedding_bag_weights_grad", ids, ())
    same("embedding_bag_weights_grad: bags", dy=dy.shape[:-1], ids=ids.shape[:-1])
    same("embedding_bag_weights_grad: features", dy=dy.shape[-1], table=table.shape[-1])
    return (Spec(ids.shape, dy.dtype),)


def _check(what: str, ids: Spec, weights: tuple[Spec, ...]) -> None:
    integers(what, ids=ids)
    need(len(ids.shape) > 0 and ids.shape[-1] > 0, f"{what}: a bag of ids {ids.shape} must hold something")
    need(len(weights) < 2, f"{what}: it takes one array of weights, not {len(weights)}")
    for one in weights:
        same(f"{what}: shapes", ids=ids.shape, weights=one.shape)
