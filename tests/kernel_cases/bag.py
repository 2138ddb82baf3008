"""Cases of the kernels of bags of embeddings."""

from collections.abc import Iterator

from tests.kernel_cases import Case, Draw


def case_embedding_bag(draw: Draw) -> Iterator[Case]:
    for shape, rows, cols, dtype in [
        ((3, 5), 7, 4, "int64"),
        ((2,), 3, 1, "int32"),
        ((1, 1), 1, 1, "uint8"),
        ((2, 3, 4), 9, 17, "int32"),
        ((60, 1), 99, 33, "int64"),
    ]:
        for weights in ([], [draw(*shape)]):
            yield (draw.ids(rows, *shape, dtype=dtype), draw(rows, cols), *weights), {"scale": 0.25}


def case_embedding_bag_grad(draw: Draw) -> Iterator[Case]:
    for (ids, table, *weights), params in case_embedding_bag(draw):
        yield (draw(*ids.shape[:-1], table.shape[1]), ids, *weights), {"rows": len(table), **params}


def case_embedding_bag_weights_grad(draw: Draw) -> Iterator[Case]:
    for (ids, table, *weights), params in case_embedding_bag(draw):
        if weights:
            yield (draw(*ids.shape[:-1], table.shape[1]), ids, table), params
