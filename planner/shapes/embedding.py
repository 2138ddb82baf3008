"""What kernels of embeddings give, work in and refuse."""

from castile.planner.bodies.vocabulary import Results, Spec, integers, kernel, need, same


@kernel()
def embedding(ids: Spec, table: Spec, *, first: int, known: int) -> Results:
    """ids.shape + (d,)."""
    integers("embedding", ids=ids)
    need(len(table.shape) == 2, f"embedding: the table must have 2 dims, not {table.shape}")
    within("embedding", first, table.shape[0], known)
    return (Spec((*ids.shape, table.shape[1]), table.dtype),)


@kernel(adds=True, casts=True)
def embedding_grad(dy: Spec, ids: Spec, *, rows: int, first: int, known: int) -> Results:
    """[rows, d]."""
    within("embedding_grad", first, rows, known)
    integers("embedding_grad", ids=ids)
    same("embedding_grad: shapes", dy=dy.shape[:-1], ids=ids.shape)
    return (Spec((rows, dy.shape[-1]), dy.dtype),)


def within(what: str, first: int, rows: int, known: int) -> None:
    """ValueError unless these rows of a table are among all that there are."""
    need(0 <= first <= known - rows, f"{what}: rows {first} to {first + rows} lie not within {known}")
