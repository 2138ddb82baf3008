"""Cases of the kernels of bags of embeddings."""

from collections.abc import Iterator

from tests.kernel_cases import Case, Draw


def case_embedding_bag(draw: Draw) -> Iterator[Case]:
    for shape, rows, cols, dtype, first, known in [
        ((3, 5), 7, 4, "int64", 0, 7),
        ((2,), 3, 1, "int32", 0, 3),
        ((1, 1), 1, 1, "uint8", 0, 1),
        ((2, 3, 4), 9, 17, "int32", 0, 9),
        ((60, 1), 99, 33, "int64", 0, 99),
        # some rows of more
        ((7, 5), 5, 4, "int32", 4, 13),
        ((40, 3), 2, 7, "uint8", 0, 5),
    ]:
        for weights in ([], [draw(*shape)]):
            params = {"scale": 0.25, "first": first, "known": known}
            yield (draw.ids(known, *shape, dtype=dtype), draw(rows, cols), *weights), params


def case_embedding_bag_grad(draw: Draw) -> Iterator[Case]:
    for (ids, table, *weights), params in case_embedding_bag(draw):
        yield (draw(*ids.shape[:-1], table.shape[1]), ids, *weights), {"rows": len(table), **params}


def case_embedding_bag_weights_grad(draw: Draw) -> Iterator[Case]:
    for (ids, table, *weights), params in case_embedding_bag(draw):
        if weights:
            yield (draw(*ids.shape[:-1], table.shape[1]), ids, table), params
