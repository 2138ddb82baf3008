"""Cases of the kernels of embeddings."""

from collections.abc import Iterator

from tests.kernel_cases import Case, Draw


def case_embedding(draw: Draw) -> Iterator[Case]:
    for shape, rows, cols, dtype in [
        ((3, 5), 7, 4, "int64"),
        ((63,), 3, 1, "int32"),
        ((1, 1), 1, 1, "uint8"),
        ((60,), 99, 33, "int64"),
    ]:
        yield (draw.ids(rows, *shape, dtype=dtype), draw(rows, cols)), {}


def case_embedding_grad(draw: Draw) -> Iterator[Case]:
    for (ids, table), _ in case_embedding(draw):
        yield (draw(*ids.shape, table.shape[1]), ids), {"rows": len(table)}
