"""Cases of the kernels of embeddings."""

from collections.abc import Iterator

from tests.kernel_cases import Case, Draw


def case_embedding(draw: Draw) -> Iterator[Case]:
    for shape, rows, cols, dtype, first, known in [
        ((3, 5), 7, 4, "int64", 0, 7),
        ((63,), 3, 1, "int32", 0, 3),
        ((1, 1), 1, 1, "uint8", 0, 1),
        ((60,), 99, 33, "int64", 0, 99),
        # some rows of more
        ((4, 9), 5, 4, "int32", 4, 13),
        ((40,), 3, 7, "uint8", 0, 5),
    ]:
        yield (draw.ids(known, *shape, dtype=dtype), draw(rows, cols)), {"first": first, "known": known}


def case_embedding_grad(draw: Draw) -> Iterator[Case]:
    for (ids, table), params in case_embedding(draw):
        yield (draw(*ids.shape, table.shape[1]), ids), {"rows": len(table), **params}
