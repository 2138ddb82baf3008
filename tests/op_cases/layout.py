"""Cases of operators: contraction, dims in another order, side by side, a range of one."""

from castile.planner.op import find
from tests.op_cases import case


def cases_contract(rng):
    contract = find("contract")

    def of(text, a, b, marks=("", "")):
        left = text.split("->")[0].split(",")
        operands = [(rng.normal(size=shape), mark + term.strip()) for shape, mark, term in zip((a, b), marks, left)]
        return case(contract(text), *operands)

    yield of("b h s d, b h t d -> b h s t", (2, 3, 5, 2), (2, 3, 4, 2))
    yield of("b s h d, b t h d -> b h t s", (2, 3, 4, 2), (2, 5, 4, 2), ("", "*"))
    yield of("b s d, d -> b s", (3, 4, 5), (5,), ("", "*"))
    yield of("b i, b j -> b i j", (3, 4), (3, 2))
    yield of("o i, b i -> b o", (4, 3), (5, 3), ("*", ""))
    yield of("i, i -> ", (7,), (7,))
    generic = contract("... i, i o -> o ...")
    yield case(generic, (rng.normal(size=(3, 2, 5)), "b s i"), (rng.normal(size=(5, 3)), "*i o"))


def cases_transpose(rng):
    transpose, x = find("transpose"), rng.normal(size=(5, 3, 2, 4))
    yield case(transpose("b s h d -> b h s d"), (x, "b s h d"))
    yield case(transpose("a b c d -> d b a c"), (x, "a b c d"))
    yield case(transpose("b h s d -> b s (h d)"), (x, "b h s d"))
    yield case(transpose("b s (h d) -> b h s d", (("h", 4),)), (rng.normal(size=(2, 3, 12)), "b s i"))
    yield case(transpose("(a b) (c d) -> (c a) (b d)", (("b", 2), ("d", 2))), (rng.normal(size=(6, 6)), "m n"))
    yield case(transpose("... s d -> ... d s"), (rng.normal(size=(2, 3, 4)), "b s d"))


def cases_concat(rng):
    for dim, lengths, before, behind, axes in (
        (0, (3, 2), (), (4,), "b d"),
        (1, (1, 4, 2), (3,), (), "b s"),
        (2, (3, 2), (2, 3), (), "b s d"),
        (1, (2, 5), (2,), (3, 2), "b c h w"),
    ):
        operands = [(rng.normal(size=(*before, n, *behind)), axes) for n in lengths]
        yield case(find("concat")(dim), *operands)
    table, x = rng.normal(size=(2, 4)), rng.normal(size=(3, 4))
    yield case(find("concat")(0), (table, "*s d"), (x, "s d"))


def cases_slice(rng):
    for shape, axes, dim, start, stop in (
        ((7,), "b", 0, 2, 5),
        ((3, 6), "b d", 1, 0, 4),
        ((3, 5, 4), "b s d", 1, 4, 5),
        ((5, 4), "*s d", 0, 1, 5),
        ((2, 3, 5, 4), "b c h w", 2, 1, 4),
    ):
        yield case(find("slice")(dim, start, stop), (rng.normal(size=shape), axes))


def cases_expand(rng):
    expand = find("expand")
    yield case(expand((5, 4, 3)), (rng.normal(size=(5, 1, 3)), "b s d"))
    yield case(expand((5, 4, 3)), (rng.normal(size=(1, 4, 1)), "*b s d"))
    yield case(expand((2, 6)), (rng.normal(size=(1, 1)), "b d"))
    yield case(expand((2, 3)), (rng.normal(size=(2, 3)), "b d"))


def cases_pad(rng):
    for shape, axes, settings in (
        ((5,), "b", (0, 2, 1)),
        ((3, 4), "b d", (1, 0, 3, -2.5)),
        ((2, 3, 4), "b s d", (1, 6, 0)),
        ((2, 3, 5, 4), "b c h w", (2, 1, 2, 1.0)),
    ):
        yield case(find("pad")(*settings), (rng.normal(size=shape), axes))
