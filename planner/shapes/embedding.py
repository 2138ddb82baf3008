"""What kernels of embeddings give, work in and refuse."""

from castile.planner.vocabulary import Results, Spec, integers, kernel, need, same


@kernel()
def embedding(ids: Spec, table: Spec) -> Results:
    """ids.shape + (d,)."""
    integers("embedding", ids=ids)
    need(len(table.shape) == 2, f"embedding: the table must have 2 dims, not {table.shape}")
    return (Spec((*ids.shape, table.shape[1]), table.dtype),)


@kernel(adds=True, casts=True)
def embedding_grad(dy: Spec, ids: Spec, *, rows: int) -> Results:
    """[rows, d]."""
    integers("embedding_grad", ids=ids)
    same("embedding_grad: shapes", dy=dy.shape[:-1], ids=ids.shape)
    return (Spec((rows, dy.shape[-1]), dy.dtype),)
