"""Lines of arithmetic, broadcasting, reductions and dropout: what the laws of operators do not say of them."""

import numba
import numpy as np
import pytest

from castile.kernels import reference
from castile.kernels.expression import FUNCTIONS, parse
from castile.kernels.numpy import codegen
from castile.kernels.numpy.pointers import after, pointer, spare
from castile.kernels.numpy.strided import FIRST, elementwise, fetch, settle
from castile.kernels.reference.dropout import _philox
from castile.kernels.table import Table
from castile.planner.graph import Graph
from castile.planner.op import Init, find
from castile.planner.ops.dropout import Dropout
from castile.runtime.compiled import compiling_seconds
from tests.op_cases import case
from tests.op_laws import node_of, recorded, run


def computed(line: str, *xs: np.ndarray) -> np.ndarray:
    out = np.full(np.broadcast_shapes(*(x.shape for x in xs)), np.nan, xs[0].dtype)
    Table("numpy").bind("pointwise", (line, *xs), (out,), {})()
    return out


# The limits of a function, and numbers at which its parts meet.
SPECIAL = [np.nan, np.inf, -np.inf, 0.0, 1e-30, -1e-3, 0.4999, 0.5, -0.625, 1.0, 1.4142135, -2.0, 80.0, -80.0]
SPECIAL += [3.1415927, -1.5707964, 1e5]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", sorted(set(FUNCTIONS) - {"maximum", "minimum", "where"}))
def test_a_function_is_accurate_everywhere(name: str, dtype: str) -> None:
    rng = np.random.default_rng(0)
    x = np.concatenate([SPECIAL, *(rng.normal(size=500) * s for s in (1e-20, 1e-5, 1e-2, 1, 10))]).astype(dtype)
    want = reference.pointwise(f"x -> {name}(x)", x.astype("float64"))
    got = computed(f"x -> {name}(x)", x)
    # below this a float32 may be taken for zero
    real = np.isfinite(want) & (np.abs(want) > 1e-37)
    assert (got[np.isnan(want)] != got[np.isnan(want)]).all() and (got[np.isinf(want)] == want[np.isinf(want)]).all()
    error = np.abs(got[real] - want[real]) / np.abs(want[real])
    assert error.max() < {"float32": 3e-7, "float64": 1e-15}[dtype]


def test_the_larger_of_a_number_and_nan_is_nan() -> None:
    a, b = np.array([np.nan, 1.0, np.nan]), np.array([1.0, np.nan, np.nan])
    for name in ("maximum", "minimum"):
        assert np.isnan(computed(f"a, b -> {name}(a, b)", a, b)).all()
    top = np.zeros(())
    Table("numpy").bind("max_over", (np.append(np.arange(200.0), np.nan),), (top,), {"dims": (0,)})()
    assert np.isnan(top)


@pytest.mark.parametrize("text", ["x -> x ** 2", "x -> x.sum()", "x -> tan(x)", "x -> [x]", "x -> x if x else 0"])
def test_what_is_no_arithmetic_is_refused(text: str) -> None:
    with pytest.raises(AssertionError, match="expression"):
        parse(text)


@numba.njit
def _first(walk, x, out):  # type: ignore[no-untyped-def]
    plan, held = pointer(walk), spare(x)
    out[0] = fetch(plan, after(plan, FIRST), pointer(x), 0, held)[1]
    settle(plan, after(plan, FIRST), pointer(x), 0, held)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_what_moves_blocks_is_in_no_loop_that_calls_it(dtype: str) -> None:
    x, out = np.arange(12, dtype=dtype).reshape(3, 4).T, np.zeros(1, dtype)
    work = elementwise(_first, [x], out)
    assert work is not None
    work()
    assert out[0] == x[0, 1] and np.array_equal(x.ravel("K"), np.arange(12))
    made = _first.inspect_llvm(_first.signatures[-1])
    assert f"block_gathered.{dtype}" in made and "copy_rows" not in made


def test_lines_have_no_walk_of_their_own_and_who_waits_for_them_is_told() -> None:
    before = compiling_seconds()
    for kind in (codegen.compile_write, codegen.compile_add, codegen.compile_update, codegen.compile_sum):
        line = kind(
            codegen.LoopSpec(
                "x, y -> x - 7.25 * y", (False,) * (1 + (kind is not codegen.compile_update)), (), "float64"
            )
        )
        assert "block_gathered" not in line.made.inspect_llvm()
        spent = compiling_seconds()
        assert spent > before, "what compiles counts"
        before = spent


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("dims", [(), (0,), (1,), (0, 1, 2)])
@pytest.mark.parametrize("cols", [1, 7, 63, 64, 65, 300, 512, 513, 1100])
def test_rows_of_any_length_are_walked_however_they_lie(cols: int, dims: tuple[int, ...], dtype: str) -> None:
    """Written, added to and summed over any dims, of rows that are walked where they lie, in blocks, on the stack."""
    rng = np.random.default_rng(cols)
    shape = (3, 5, cols)
    ways = (np.array, lambda x: np.repeat(x, 2, -1)[..., ::2], lambda x: np.repeat(x, 2, 1)[:, ::2], np.asfortranarray)
    # Whole numbers, whose sums are the same in any order.
    x, y, few = (rng.integers(-9, 9, n).astype(dtype) for n in (shape, shape, (5, 1)))
    for n, way in enumerate(ways):
        args = ("x, y, z -> x * y - z", way(x), ways[n - 1](y), few)
        name, params = ("sum_pointwise", {"dims": dims}) if dims else ("pointwise", {})
        want = getattr(reference, name)(*args, **params)
        for adds in (False, True):
            out = way(np.full(want.shape, 3, dtype)) if want.ndim == 3 else np.full(want.shape, 3, dtype)
            Table("numpy").bind(name, args, (out,), params, None, adds)()
            assert np.array_equal(out, want + 3 * adds)


def test_a_line_is_compiled_once_for_each_dtype() -> None:
    loops = [codegen.LoopSpec("x -> x + 1", (False,), (), dtype) for dtype in ("float32", "float32", "float64")]
    first, again, other = (codegen.compile_write(loop) for loop in loops)
    assert first is again and first.made.native_name != other.made.native_name


def test_numbers_of_a_line_have_the_dtype_of_its_arrays() -> None:
    x = np.float32([1.0])
    loop = codegen.compile_write(codegen.LoopSpec("x -> 0.1 * x", (False,), (), "float32"))
    computed("x -> 0.1 * x", x)
    for form in ("numpy", "reference"):
        out = np.zeros(1, "float32")
        Table(form).bind("pointwise", ("x -> 0.1 * x", x), (out,), {})()
        assert out[0] == np.float32(0.1), form
    assert "double" not in loop.made.inspect_llvm()


def graph(*shapes: tuple[int, ...]) -> tuple[Graph, list]:
    g = Graph("g", "float64")
    return g, [g.input(f"x{n}", s, " ".join(f"a{n}{d}" for d in range(len(s)))) for n, s in enumerate(shapes)]


def test_the_result_is_named_after_the_longer_operand() -> None:
    g, (x, y) = graph((3, 1, 5), (4, 5))
    z = g.mul("z", x, y)
    assert z.shape == (3, 4, 5) and z.axes == ("a00", "a10", "a02")
    w = g.param("w", (6, 3, 1, 1), ("g", "b", "c", "d"), Init("ones"))
    assert g.sub("u", z, w).axes == ("g", "a00", "a10", "a02")


def test_axes_of_one_name_that_are_not_aligned_are_told_apart() -> None:
    g = Graph("g", "float64")
    x, y = g.input("x", (3, 4), "b d"), g.param("y", (5, 1, 1), ("b", "c", "d"), Init("ones"))
    assert g.add("z", x, y).axes == ("b", "b_", "d")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda g, x: g.mul("m", x, g.input("y", (4, 2), "b d")), "m|x0.*y.*do not broadcast"),
        (lambda g, x: g.sum("s", x, dims=2), "sum: dims .2,.*x0"),
        (lambda g, x: g.mean("s", x, dims=(0, -2)), "distinct dims"),
        (lambda g, x: g.dropout("d", x, rate=1.0), "below 1, got 1.0"),
        (lambda g, x: g.mse("e", x, g.input("y", (4, 2), "b d")), "mse"),
    ],
)
def test_operands_that_do_not_fit_are_refused_in_words(make, words: str) -> None:
    g, (x,) = graph((4, 3))
    with pytest.raises(ValueError, match=words):
        make(g, x)


# Known answers of Philox 4x32-10: counter of two halves, key, the words.
KNOWN = [
    (0, 0, 0, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    (2**64 - 1, 2**64 - 1, 2**64 - 1, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    (0x85A308D3243F6A88, 0x0370734413198A2E, 0x299F31D0A4093822, "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


@pytest.mark.parametrize(("low", "high", "key", "words"), KNOWN)
def test_philox_gives_its_known_answers(low: int, high: int, key: int, words: str) -> None:
    found = _philox(np.array([low], np.uint64), np.uint64(high), np.array(key, np.uint64))
    assert " ".join(f"{int(word[0]):08x}" for word in found) == words


def dropped(noise: int, rate: float = 0.25, salt: int = 1, shape: tuple[int, ...] = (200, 300)) -> np.ndarray:
    out, params = np.empty(shape), {"rate": rate, "salt": salt, "offset": (0,) * len(shape), "whole": shape}
    Table("numpy").bind("dropout", (np.ones(shape), np.array(noise)), (out,), params)()
    return out


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.25, 0.9])
def test_dropout_leaves_out_its_share_and_scales_the_rest(rate: float) -> None:
    y = dropped(5, rate)
    assert set(np.unique(y)) <= {0.0, 1 / (1 - rate)}
    deviation = np.sqrt(rate * (1 - rate) / y.size)
    assert abs((y == 0).mean() - rate) <= 4 * deviation
    for dim in (0, 1):
        share = (y == 0).mean(axis=dim)
        assert abs(share.std() - np.sqrt(rate * (1 - rate) / y.shape[dim])) <= 0.2 * deviation * np.sqrt(share.size)


def test_dropout_differs_from_step_to_step_and_from_node_to_node() -> None:
    g, (x,) = graph((4, 3))
    salts = {g.nodes[g.dropout(name, x).name].op.salt for name in ("one", "two")}
    masks = [dropped(noise, 0.5, salt) == 0 for noise in (1, 2) for salt in salts]
    for i, a in enumerate(masks):
        for b in masks[:i]:
            assert abs((a == b).mean() - 0.5) < 0.02


def test_a_gradient_is_dropped_where_its_element_was() -> None:
    g, (x,) = graph((6, 5))
    g.dropout("d", x, rate=0.5)
    node, noise, ones = g.nodes["d"], np.array(3), np.ones((6, 5))
    assert isinstance(node.op, Dropout)
    y = node.op.forward(reference, ones, noise, at=node.whole())
    assert np.array_equal(node.op.grad_inputs(reference, ones, ones, noise, at=node.whole())[0], y)


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "maximum", "minimum"])
def test_gradients_of_one_tensor_given_twice_add_up(name: str) -> None:
    """Into one array: the first is written, the second added to it."""
    rng = np.random.default_rng(0)
    x, d = rng.uniform(1, 2, (2, 3, 4)), rng.normal(size=(2, 3, 4))
    c = case(find(name)(), (x, "b s d"), (x, "b s d"))
    part = node_of(c).whole()
    y = tuple(run(c, "F", part, c.arrays, None, None))
    first, second = run(c, "B", part, c.arrays, d, y)
    recording, inputs = recorded(c, "B", part, c.arrays, d, y)
    shared = np.full(x.shape, np.nan)
    body = recording.body([False, True], ["float64"] * 2, [()] * (len(recording.reads) + 2))
    views = [inputs[n] for n in recording.reads] + [shared, shared]
    for call in body.calls:
        args = [views[a.index] if hasattr(a, "space") else a for a in call.args]
        outs = tuple(views[o.index] for o in call.outs)
        Table("numpy").bind(call.kernel, args, outs, dict(call.params), None, call.accumulate)()
    np.testing.assert_allclose(shared, first + second, rtol=1e-12, atol=1e-15)
