"""Every kernel's forms against its definition, and its gradients against differences; kernels are found, not listed."""

import inspect
import tracemalloc
from collections.abc import Iterator
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from castile.kernels import reference
from castile.kernels.ids import OutOfRange
from castile.kernels.numpy.im2col import samples_at_once
from castile.kernels.table import Table, definitions, forms, native_accumulate
from castile.planner.bodies import vocabulary
from castile.planner.bodies.vocabulary import Spec
from castile.planner.shapes import attention, convolution
from tests.effort import examples
from tests.kernel_cases import Case, Draw, cases, kernels_with_cases

NAMES = sorted(definitions())
FOLDERS = ("numpy",)
# Of fewer operands each is altered in every way that is tried.
MOST_OPERANDS = 24


def spec_of(x: Any) -> Any:
    return Spec(x.shape, x.dtype.name) if isinstance(x, np.ndarray) else x


def several(results: Any) -> tuple[np.ndarray, ...]:
    return results if isinstance(results, tuple) else (results,)


def scratch_of(name: str, args: tuple[Any, ...], params: dict[str, Any], accumulate: bool) -> np.ndarray | None:
    """Poisoned memory of exactly the declared bytes, on a multiple of 64."""
    specs = tuple(map(spec_of, args))
    outs = vocabulary.results(name, specs, params)
    nbytes = vocabulary.workspace(name, specs, outs, params, accumulate)
    assert nbytes % 64 == 0
    memory = np.full(nbytes + 64, 0xFF, "uint8")
    start = -memory.ctypes.data % 64
    return memory[start : start + nbytes] if nbytes else None


def unwritten(x: np.ndarray) -> np.ndarray:
    """An array like x that nobody has written."""
    return np.full_like(x, 77 if x.dtype.kind in "iu" else np.nan)


def sliced(x: np.ndarray, step: int = 1) -> np.ndarray:
    """x as a box inside a larger array that holds garbage, every step-th element of it."""
    filler = 77 if x.dtype.kind in "iu" else np.nan
    whole = np.full([step * n + 3 for n in x.shape], filler, x.dtype)
    view = whole[(..., *(slice(2, 2 + step * n, step) for n in x.shape))]
    view[...] = x
    return view


def dense(x: np.ndarray) -> np.ndarray:
    return x.copy()


def stepped(x: np.ndarray) -> np.ndarray:
    return sliced(x, 2)


def narrow(x: np.ndarray) -> np.ndarray:
    """x as the left part of an array with longer rows, as a part of an image split along its width lies."""
    whole = np.full((*x.shape[:-1], *(2 * n for n in x.shape[-1:])), 77 if x.dtype.kind in "iu" else np.nan, x.dtype)
    view = whole[..., : x.shape[-1]] if x.ndim else whole
    view[...] = x
    return view


def uneven(x: np.ndarray) -> np.ndarray:
    """x with longer rows; whole numbers, and what is of one dim, with gaps."""
    return narrow(x) if x.ndim > 1 and x.dtype.kind == "f" else stepped(x)


def outermost(x: np.ndarray) -> np.ndarray:
    """x with its last dim outermost in memory, as classes of logits may be, and what has one dim with gaps."""
    return np.moveaxis(np.moveaxis(x, -1, 0).copy(order="C"), 0, -1) if x.ndim > 1 else stepped(x)


@cache
def defined(name: str, dtype: str) -> list[tuple[Case, tuple[np.ndarray, ...]]]:
    """The cases of a kernel with what its definition says."""
    return [((args, params), several(definitions()[name](*args, **params))) for args, params in cases(name, dtype)]


def check(
    folder: str, name: str, case: Case, place: Any, accumulate: bool, expected: Any = None, again: bool = True
) -> None:
    """Hold a form to what is expected: by default what the definition says in the case's own numbers; if `again` twice
    where it does not add, so that a call finds memory of its own as it left it.
    """
    args, params = case
    expected = several(definitions()[name](*args, **params)) if expected is None else expected
    start = [Draw(x.dtype.name, 1)(*x.shape) if accumulate else unwritten(x) for x in expected]
    outs = tuple(map(place, start))
    placed = tuple(place(x) if isinstance(x, np.ndarray) else x for x in args)
    around = [None if out.base is None else out.base.copy() for out in outs]
    scratch = scratch_of(name, args, params, accumulate)
    call = Table(folder).bind(name, placed, outs, params, scratch, accumulate)
    for _ in range(1 if accumulate or not again else 2):
        call()
    for out, before, want in zip(outs, start, expected, strict=True):
        want = want + before if accumulate else want
        tolerance = 1e-12 if want.dtype == np.float64 else 2e-6
        # what is summed of many numbers is as large on the way as their root says, whatever is left of it at the end
        terms = max((x.size for x in args if isinstance(x, np.ndarray)), default=0) / max(want.size, 1)
        scale = max(1.0, float(np.abs(want).max(initial=0)), terms**0.5)
        np.testing.assert_allclose(out, want, rtol=0, atol=tolerance * scale, err_msg=f"{name} {params}")
    for x, original in zip(placed, args, strict=True):
        if isinstance(x, np.ndarray):
            assert x.tobytes() == original.tobytes(), f"{name} wrote to what it reads"
    for out, before, whole in zip(outs, start, around, strict=True):
        if whole is not None:
            out[...] = before
            assert out.base.tobytes() == whole.tobytes(), f"{name} wrote beside its result"


@pytest.mark.parametrize("name", NAMES)
def test_kernel_is_complete(name: str) -> None:
    assert name in forms("numpy"), f"{name} has no numpy form"
    assert name in vocabulary.names(), f"{name} has no entry in the vocabulary"
    assert name in kernels_with_cases(), f"{name} has no case"
    args, params = cases(name, "float64")[0]
    specs = tuple(map(spec_of, args))
    outs = vocabulary.results(name, specs, params)
    plain, adding = (vocabulary.workspace(name, specs, outs, params, accumulate) for accumulate in (False, True))
    held = 0 if native_accumulate(forms("numpy")[name]) else sum(vocabulary.round_up(out.nbytes) for out in outs)
    assert adding - plain == held, f"{name}: form and vocabulary differ in who adds"


def test_nothing_without_definition() -> None:
    assert vocabulary.names() == NAMES == Table("reference").names()
    assert kernels_with_cases() == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_form_takes_the_definitions_parameters(name: str) -> None:
    def keywords(f: Any) -> dict[str, Any]:
        given = (p for p in inspect.signature(f).parameters.values() if p.kind is p.KEYWORD_ONLY)
        return {p.name: p.default for p in given if p.name not in ("scratch", "accumulate")}

    assert keywords(forms("numpy")[name]) == keywords(definitions()[name])


@pytest.mark.parametrize("accumulate", [False, True], ids=["write", "add"])
@pytest.mark.parametrize("place", [dense, sliced, uneven, stepped], ids=["dense", "sliced", "uneven", "stepped"])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("folder", FOLDERS)
def test_form_equals_definition(folder: str, name: str, place: Any, accumulate: bool) -> None:
    for dtype in ("float64", "float32"):
        for case, expected in defined(name, dtype):
            check(folder, name, case, place, accumulate, expected)


@pytest.mark.parametrize("name", NAMES)
def test_the_last_dim_may_be_outermost(name: str) -> None:
    for number, (case, expected) in enumerate(defined(name, "float32")):
        check("numpy", name, case, outermost, number % 3 == 1, expected)


@pytest.mark.parametrize("name", NAMES)
def test_reference_form(name: str) -> None:
    for accumulate in (False, True):
        check("reference", name, cases(name, "float64")[0], dense, accumulate)


@pytest.mark.parametrize("name", NAMES)
def test_vocabulary_tells_the_results(name: str) -> None:
    for dtype in ("float64", "float32"):
        for args, params in cases(name, dtype):
            real = tuple(map(spec_of, several(definitions()[name](*args, **params))))
            assert vocabulary.results(name, tuple(map(spec_of, args)), params) == real


@pytest.mark.parametrize("name", [name for name in NAMES if vocabulary.adds_onto(name)])
def test_the_last_array_is_what_a_result_is_added_to(name: str) -> None:
    added = 0
    for args, params in cases(name, "float64"):
        define = definitions()[name]
        if "onto" in inspect.signature(define).bind(*args, **params).arguments:
            assert np.array_equal(define(*args, **params), define(*args[:-1], **params) + args[-1])
            added += 1
    assert added, f"no case of {name} has something to add to"


def large_case(name: str) -> Case:
    """The case of a kernel with most elements, several times over in the first dim where that is possible."""
    return max(cases(name, "float32"), key=lambda case: sum(x.size for x in case[0] if isinstance(x, np.ndarray)))


@pytest.mark.parametrize("place", [dense, sliced, narrow])
@pytest.mark.parametrize("name", NAMES)
def test_form_allocates_nothing(name: str, place: Any) -> None:
    args, params = large_case(name)
    for accumulate in (False, True):
        outs = tuple(place(np.zeros_like(x)) for x in several(definitions()[name](*args, **params)))
        placed = tuple(place(x) if isinstance(x, np.ndarray) else x for x in args)
        call = Table("numpy").bind(name, placed, outs, params, scratch_of(name, args, params, accumulate), accumulate)
        call()
        tracemalloc.start()
        call()
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        call()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak - before < 4096, f"{name} allocates {peak - before} bytes"


@pytest.mark.parametrize("name", [name for name in NAMES if "entropy" in name and "split" not in name])
def test_losses_of_classes_that_are_outermost_allocate_nothing(name: str) -> None:
    test_form_allocates_nothing(name, outermost)


def test_sgd_in_place() -> None:
    for args, params in cases("sgd", "float32"):
        expected = reference.sgd(*args, **params)
        given = tuple(x.copy() for x in args)
        outs = tuple(x for n, x in enumerate(given) if n % (4 + params.get("guarded", False)) in (0, 2))
        Table("numpy").bind("sgd", given, outs, params)()
        for got, want in zip(outs, expected, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_scratch_smaller_than_one_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in pieces: single rows of columns, single rows of scores; of some size in pieces of several."""
    for cap in (64, 1024):
        monkeypatch.setattr(convolution, "COLUMNS_CAP", cap)
        monkeypatch.setattr(attention, "SCORES_CAP", cap)
        for name in NAMES:
            if name.startswith(("conv2d", "attention")):
                for case in cases(name, "float64"):
                    if cap > 64 or sum(x.size for x in case[0] if isinstance(x, np.ndarray)) < 2000:
                        check("numpy", name, case, sliced, True)


@pytest.mark.parametrize("name", ["conv2d", "conv2d_grad_input", "conv2d_grad_weight"])
@pytest.mark.parametrize("accumulate", [False, True])
def test_small_images_are_convolved_as_products_of_as_many_as_scratch_holds(name: str, accumulate: bool) -> None:
    x, y, w = (5, 30, 2, 2), (5, 34, 2, 2), (34, 30, 3, 3)
    scratch = np.full(128 + 2 * 4 * (9 * 30 + 34) * 8, 255, np.uint8)
    assert samples_at_once(y, w, 9, len(scratch), 8) == 2
    rng = np.random.default_rng(0)
    shapes, more = {
        "conv2d": ((x, w), {}),
        "conv2d_grad_input": ((y, w), {"shape": x}),
        "conv2d_grad_weight": ((y, x), {"kernel": (3, 3)}),
    }[name]
    args = tuple(rng.normal(size=shape) for shape in shapes)
    params = {"stride": (1, 1), "pads": (1, 1, 1, 1)} | more
    expected = definitions()[name](*args, **params)
    out = np.ones_like(expected)
    Table("numpy").bind(name, args, (out,), params, scratch, accumulate)()
    np.testing.assert_allclose(out, expected + accumulate, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("place", [dense, sliced])
def test_infinities_and_nan_pass(place: Any) -> None:
    odd = place(np.array([[np.nan, 1.0, 2.0], [np.inf, 1.0, 2.0], [-np.inf, 90.0, -90.0]], "float32"))
    with np.errstate(all="ignore"):
        for name, params in [("relu", {}), ("gelu", {"approximate": "tanh"}), ("gelu", {"approximate": "none"})]:
            out = np.empty((3, 3), "float32")
            Table("numpy").bind(name, (odd,), (out,), params)()
            assert np.isnan(out[0, 0]) and out[1, 0] == np.inf, name
        loss, lse = np.empty((), "float32"), np.empty(3, "float32")
        labels = np.array([0, 1, 1])
        Table("numpy").bind("cross_entropy", (odd, labels), (loss, lse), {"scale": 1.0})()
    assert np.isnan(loss) and np.isnan(lse[0]) and not np.isfinite(lse[1]) and lse[2] == 90


def altered(case: Case, values: tuple[float, ...]) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """The operands with one of the values at the first, the middle or the last place of one of them, and a name of it.

    Of many operands each has one of these in turn.
    """
    args, params = case
    for n, x in enumerate(args):
        if not (isinstance(x, np.ndarray) and x.dtype.kind == "f" and 0 < x.size < 5000):
            continue
        every = list(product(sorted({0, x.size // 2, x.size - 1}), values))
        # eleven is prime to how many arrays a parameter has, so that each of its arrays meets every one
        for at, value in every if len(args) < MOST_OPERANDS else [every[n % 11 % len(every)]]:
            odd = x.copy()
            odd.flat[at] = value
            yield f"operand {n} at {at} {params}", (*args[:n], odd, *args[n + 1 :])


def results_of(name: str, given: tuple[Any, ...], params: dict[str, Any]) -> list[tuple[np.ndarray, np.ndarray]]:
    """What a form makes of operands, and what its definition does, of floating results."""
    with np.errstate(all="ignore"):
        expected = several(definitions()[name](*given, **params))
        outs = tuple(np.zeros_like(one) for one in expected)
        Table("numpy").bind(name, given, outs, params, scratch_of(name, given, params, False))()
    return [(out, want) for out, want in zip(outs, expected, strict=True) if want.dtype.kind == "f"]


@pytest.mark.parametrize("name", NAMES)
def test_what_is_not_a_number_is_not_lost(name: str) -> None:
    """Where a definition hands a NaN on, so does a form: that a training has gone wrong is seen in its loss."""
    for case in cases(name, "float32")[:3]:
        for words, odd in altered(case, (np.nan,)):
            for out, want in results_of(name, odd, case[1]):
                assert np.isnan(out).any() or not np.isnan(want).any(), words


def made_of_infinities(name: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """What a form makes of operands with an infinity, here and there, and what its definition makes."""
    for case in cases(name, "float32")[:8]:
        for _, odd in altered(case, (np.inf, -np.inf)):
            yield from results_of(name, odd, case[1])


@pytest.mark.parametrize("name", NAMES)
def test_what_is_finite_beside_infinities_is_so_in_a_form_too(name: str) -> None:
    """All that is finite and nothing else, with the signs of infinities, unless the definition speaks of them."""
    differs = 0
    for out, want in made_of_infinities(name):
        signs = np.isinf(out) & np.isinf(want)
        assert np.array_equal(out[signs], want[signs])
        assert np.isfinite(out).all() == np.isfinite(want).all() or "infinit" in (definitions()[name].__doc__ or "")
        differs += not np.array_equal(np.isfinite(out), np.isfinite(want))
    assert bool(differs) == ("infinit" in (definitions()[name].__doc__ or "")), differs


@pytest.mark.parametrize("name", NAMES)
def test_integers_that_a_definition_refuses_are_refused(name: str) -> None:
    """A form says so as its definition does: by that people are told that their data are at fault."""
    for args, params in cases(name, "float32")[:2]:
        outs = several(definitions()[name](*args, **params))
        scratch = scratch_of(name, args, params, False)
        for n, wrong in product(range(len(args)), (-1, 2**15)):
            ids = args[n]
            kept = isinstance(ids, np.ndarray) and ids.dtype.kind in "iu" and np.iinfo(ids.dtype)
            if not (kept and ids.size and kept.min <= wrong <= kept.max):
                continue
            bad = ids.copy()
            bad.flat[-1] = wrong
            given = (*args[:n], bad, *args[n + 1 :])
            try:
                definitions()[name](*given, **params)
            except OutOfRange:
                with pytest.raises(OutOfRange):
                    Table("numpy").bind(name, given, tuple(map(unwritten, outs)), params, scratch)()


def test_table_refuses_unknown_forms() -> None:
    with pytest.raises(ValueError, match="no forms"):
        Table("abacus")


def test_source_is_that_of_the_form() -> None:
    for name in NAMES:
        assert f"def {name}(" in Table("numpy").source(name) != Table("reference").source(name)


def test_calls_are_bit_equal_when_repeated() -> None:
    for name in NAMES:
        args, params = large_case(name)
        runs = []
        for _ in range(2):
            outs = tuple(unwritten(x) for x in several(definitions()[name](*args, **params)))
            Table("numpy").bind(name, args, outs, params, scratch_of(name, args, params, False))()
            runs.append([x.tobytes() for x in outs])
        assert runs[0] == runs[1], name


def side_by_side(arrays: list[np.ndarray], between: int) -> list[np.ndarray]:
    """Copies of arrays one behind the other in one memory, on multiples of 64 bytes, so many further bytes apart."""
    begins = np.cumsum([0, *(vocabulary.round_up(x.nbytes) + between for x in arrays)]).tolist()
    memory = np.full(begins[-1] + 64, 0xFF, "uint8")
    first, placed = -memory.ctypes.data % 64, []
    for begin, x in zip(begins, arrays, strict=False):
        placed.append(memory[first + begin : first + begin + x.nbytes].view(x.dtype).reshape(x.shape))
        placed[-1][...] = x
    return placed


@pytest.mark.parametrize("name", NAMES)
def test_where_arrays_lie_changes_no_bit(name: str) -> None:
    """Copies of parameters stay equal though each is renewed elsewhere in memory."""
    for dtype, adds in product(("float64", "float32"), (False, True)):
        for (args, params), expected in defined(name, dtype):
            outs = [Draw(x.dtype.name, 1)(*x.shape) if adds else unwritten(x) for x in expected]
            scratch = scratch_of(name, args, params, adds)
            given = [*(x for x in args if isinstance(x, np.ndarray)), *outs, *([] if scratch is None else [scratch])]
            runs = []
            for between in (4096, 0, 0):
                order = np.random.default_rng(len(runs)).permutation(len(given))
                behind = side_by_side([given[n] for n in order], between)
                left = iter([behind[n] for n in np.argsort(order)])
                there = tuple(next(left) if isinstance(x, np.ndarray) else x for x in args)
                made = tuple(next(left) for _ in outs)
                Table("numpy").bind(name, there, made, params, next(left, None), adds)()
                runs.append([x.tobytes() for x in made])
            assert all(run == runs[0] for run in runs), f"{name} {params}"


@st.composite
def contractions(draw: st.DrawFn) -> tuple[str, list[tuple[int, ...]], list[list[int]], list[int]]:
    """A spec of two operands, their shapes, the order of each array's dims in memory (result last), and the box cut."""
    lengths = {label: draw(st.integers(1, 4)) for label in "abcdef"}
    terms = [draw(st.permutations("abcdef"))[: draw(st.integers(0, 4))] for _ in range(2)]
    present = sorted({*terms[0], *terms[1]})
    result = [label for label in draw(st.permutations(present)) if draw(st.booleans())]
    orders = [list(draw(st.permutations(range(len(one))))) for one in (*terms, result)]
    margins = [draw(st.integers(0, 1)) for _ in range(3)]
    spec = f"{''.join(terms[0])},{''.join(terms[1])}->{''.join(result)}"
    return spec, [tuple(lengths[label] for label in term) for term in terms], orders, margins


def laid_out(x: np.ndarray, order: list[int], margin: int) -> np.ndarray:
    """x with its dims in this order in memory, cut out of an array that is larger by `margin` at each end."""
    whole = np.full([x.shape[dim] + 2 * margin for dim in order], np.nan, x.dtype)
    inner = whole[(..., *(slice(margin, margin + x.shape[dim]) for dim in order))]
    view = inner.transpose(np.argsort(order))
    view[...] = x
    return view


@settings(max_examples=examples(300), deadline=None)
@given(drawn=contractions(), accumulate=st.booleans())
def test_any_contraction_on_any_layout(drawn: Any, accumulate: bool) -> None:
    spec, shapes, orders, margins = drawn
    draw = Draw("float64", 3)
    x, y = (draw(*shape) for shape in shapes)
    want = reference.contract(spec, x, y)
    before = draw(*want.shape)
    out = laid_out(before if accumulate else np.full_like(want, np.nan), orders[2], margins[2])
    args = (spec, laid_out(x, orders[0], margins[0]), laid_out(y, orders[1], margins[1]))
    Table("numpy").bind("contract", args, (out,), {}, None, accumulate)()
    np.testing.assert_allclose(out, want + before if accumulate else want, rtol=1e-12, atol=1e-12)


@settings(max_examples=200, deadline=None)
@given(data=st.data(), name=st.sampled_from(["add", "copy", "relu_grad", "sum_over"]), accumulate=st.booleans())
def test_elementwise_work_on_any_layout(data: st.DataObject, name: str, accumulate: bool) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 5), max_size=6)))
    draw = Draw("float64", 4)
    args = tuple(draw(*shape) for _ in range(2 if name in ("add", "relu_grad") else 1))
    kept = data.draw(st.lists(st.booleans(), min_size=len(shape), max_size=len(shape)))
    params = {"dims": tuple(dim for dim, keeps in enumerate(kept) if not keeps)} if name == "sum_over" else {}

    def place(x: np.ndarray) -> np.ndarray:
        return laid_out(x, list(data.draw(st.permutations(range(x.ndim)))), data.draw(st.integers(0, 2)))

    check("numpy", name, (args, params), place, accumulate)


def test_a_window_of_minus_infinities_gives_its_gradient_to_the_first() -> None:
    x, dy = np.full((1, 1, 5, 5), -np.inf), np.arange(1.0, 10.0).reshape(1, 1, 3, 3)
    for kernel, stride, pads in (((3, 3), (1, 1), (0, 0, 0, 0)), ((3, 3), (2, 2), (1, 1, 1, 1))):
        params = {"kernel": kernel, "stride": stride, "pads": pads}
        out, expected = np.full((1, 1, 5, 5), np.nan), np.full((1, 1, 5, 5), np.nan)
        for form, result in (("numpy", out), ("reference", expected)):
            Table(form).bind("max_pool2d_grad", (dy, x), (result,), params)()
        assert np.array_equal(out, expected)
