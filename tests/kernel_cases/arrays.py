"""Cases of the kernels of arrays: sums of products, sums, shapes and copies."""

from collections.abc import Iterator

from tests.kernel_cases import MANY, SHAPES, Case, Draw


def case_contract(draw: Draw) -> Iterator[Case]:
    for spec, a, b in [
        ("...i,oi->...o", (2, 3, 5), (7, 5)),
        ("...i,oi->...o", (1, 1), (1, 1)),
        ("...o,oi->...i", (63, 65), (65, 66)),
        ("...o,...i->oi", (4, 3, 5), (4, 3, 6)),
        ("bshd,bthd->bhst", (2, 5, 3, 4), (2, 6, 3, 4)),
        ("bhst,bthd->bshd", (2, 3, 5, 6), (2, 6, 3, 4)),
        ("bhst,bshd->bthd", (2, 3, 5, 6), (2, 5, 3, 4)),
        ("ib,jb->ijb", (4, 3), (5, 3)),
        ("ij,j->i", (4, 3), (3,)),
        ("i,j->ji", (4,), (3,)),
        ("i,i->", (63,), (63,)),
        ("ij,jk->k", (4, 3), (3, 2)),
        ("abc,cbd->da", (2, 3, 4), (4, 3, 5)),
        ("...,...->...", (3, 4), (3, 4)),
        ("ii,ij->j", (3, 3), (3, 2)),
    ]:
        yield (spec, draw(*a), draw(*b)), {}
    yield ("abc->ca", draw(3, 4, 5)), {}
    yield ("ab,bc,cd->ad", draw(3, 4), draw(4, 5), draw(5, 2)), {}


def case_contract_pointwise(draw: Draw) -> Iterator[Case]:
    linear, bias = "...i,oi->...o", "s, b -> s + b"
    for rows, inner, columns in [((2, 3), 5, 7), ((1,), 1, 1), ((63,), 65, 66), ((2, 1), 1, 9), ((), 70, 33)]:
        yield (linear, bias, draw(*rows, inner), draw(columns, inner), draw(columns)), {}
        yield (
            (linear, "s, b -> (s + b) * sigmoid(a * (s + b))", draw(*rows, inner), draw(columns, inner), draw()),
            {"a": 2},
        )
    residual = "s, b, x -> x + where(s + b > 0, s + b, 0)"
    # blocks full of rows and columns, of columns alone, and of neither
    for rows, columns in [((2, 16), 64), ((3, 5), 32), ((4, 3), 6)]:
        yield (linear, residual, draw(*rows, 40), draw(columns, 40), draw(columns), draw(*rows, columns)), {}
    # of tables that stand still along one of several leading dims
    yield (linear, "s, p, q -> s * p - q", draw(4, 3, 5), draw(66, 5), draw(3, 66), draw(4, 1, 1)), {}
    # names that a kernel could have for itself
    yield (
        ("bshd,bthd->bhst", "total, m -> total * c + m", draw(2, 5, 3, 4), draw(2, 6, 3, 4), draw(2, 1, 5, 1)),
        {"c": 3},
    )
    yield ("ki,kj->ji", "x, y, a -> a * x - y", draw(40, 33), draw(40, 18), draw(18, 1), draw(33)), {}
    yield ("...o,oi->...i", "s -> maximum(s, 0)", draw(5, 3), draw(3, 4)), {}
    yield ("ij,j->i", bias, draw(4, 3), draw(3), draw(4)), {}
    yield ("i,j->ji", bias, draw(4), draw(3), draw(3, 1)), {}
    yield ("i,i->", bias, draw(63), draw(63), draw()), {}
    yield ("ij,jk->k", bias, draw(4, 3), draw(3, 2), draw(2)), {}
    yield ("ii,ij->j", bias, draw(3, 3), draw(3, 2), draw(1)), {}


def case_add(draw: Draw) -> Iterator[Case]:
    for shape in SHAPES:
        yield (draw(*shape), draw(*shape)), {}
    yield (draw(2, 3, 4), draw(3, 1)), {}
    yield (draw(2, 3, 4), draw()), {}


def case_add_bias(draw: Draw) -> Iterator[Case]:
    for shape in SHAPES:
        for dim in range(-1, len(shape)):
            yield (draw(*shape), draw(shape[dim])), {"dim": dim}


def case_reshape(draw: Draw) -> Iterator[Case]:
    for a, b in [((2, 3, 4), (2, 12)), ((6, 4), (2, 3, 2, 2)), ((1, 5), (5,)), ((2, 3), (3, 2)), ((40, 60), (20, 120))]:
        yield (draw(*a),), {"shape": b}


def case_copy(draw: Draw) -> Iterator[Case]:
    yield tuple(draw(*shape) for shape in (*MANY, ())), {}
    for shape in [*SHAPES, ()]:
        yield (draw(*shape),), {}


def case_zero(draw: Draw) -> Iterator[Case]:
    for shape in [*SHAPES, ()]:
        yield (), {"shape": shape, "dtype": draw.dtype}
