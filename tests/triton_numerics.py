"""Every Triton form against its definition, in Triton's interpreter; forms and cases are found, not listed.

Run by `make test` in a process of its own with TRITON_INTERPRET=1, as Triton interprets or compiles, never both.
"""

from typing import Any
from unittest import mock

import numpy as np
import pytest
import triton
from hypothesis import given, settings
from hypothesis import strategies as st
from triton import language as tl

from castile.kernels.table import Table, definitions
from castile.kernels.triton import convolution
from castile.kernels.triton.launch import Launch, LaunchPlan, Workspace, bound, workspace_numbers
from castile.kernels.triton.multi_tensor import multi_tensor_sum
from castile.kernels.triton.snippet import Snippet, snippet
from castile.planner.bodies import vocabulary
from tests import triton_programs
from tests.kernel_cases import Case, Draw, cases
from tests.test_kernels import check, dense, laid_out, outermost, several, stepped, unwritten
from tests.test_together import MANY, check_each, one_by_one
from tests.triton_cases import NAMES, OF_LOGITS, cast, error, launches, plain, plan, results
from tests.triton_cases_images import is_image, turned
from tests.triton_cases_long import LONG, long_apart

assert triton.knobs.runtime.interpret, "these checks need TRITON_INTERPRET=1"


# As they come, and those that logits are for with the last dim outermost, too.
PLACED = pytest.mark.parametrize(
    "name, place", [*((name, np.array) for name in NAMES), *((name, outermost) for name in OF_LOGITS)]
)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("place", [dense, stepped, outermost], ids=lambda place: place.__name__)
def test_form_equals_definition(name: str, place: Any) -> None:
    """Twice where a call has memory of its own, which it then finds as it left it: else it has nothing to go by but
    what it is given. Where arrays do not lie apart the first case alone is computed twice. Long cases take turns to lie
    in one way or the other.
    """
    few, long = cases(name, "float32"), LONG.get(name, []) if place is not outermost else long_apart(name)
    if name not in OF_LOGITS:
        few, long = few if place is stepped else few[::2], long[place is stepped :: 2]
    for number, case in enumerate([*few, *long]):
        outs = tuple(place(unwritten(np.empty(one.shape, one.dtype))) for one in results(name, *case))
        made = plan(name, outs, case)
        assert made is not None, f"{name} {case[1]} falls back to its definition"
        again = (place is stepped or number == 0) and bool(workspace_numbers(launches(made)))
        # Adding differs from writing in the last line of a kernel only.
        check("triton", name, case, place, number % 3 == 1, _exact(name, case), again)


def _innermost(name: str, case: Case) -> Any:
    """What puts the channels of the images of a case innermost, and copies the rest; None where there are no images."""
    lay = turned(case, _laid)
    there = any(is_image(x, case) for x in (*case[0], *results(name, *case)))
    return (lambda x: lay(x.copy())) if there else None


def _laid(x: np.ndarray, order: list[int]) -> np.ndarray:
    """x with its dims in this order in memory."""
    laid = np.empty([x.shape[dim] for dim in order], x.dtype).transpose(np.argsort(order))
    laid[...] = x
    return laid


@pytest.mark.parametrize("name", NAMES)
def test_images_may_have_their_channels_innermost(name: str) -> None:
    for number, case in enumerate([*cases(name, "float32"), *LONG.get(name, [])]):
        place = _innermost(name, case)
        if place is not None:
            check("triton", name, case, place, number % 3 == 1, _exact(name, case), again=False)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", NAMES)
def test_low_precision_loses_no_more_than_it_must(name: str, dtype: str) -> None:
    # the narrower one rounds more: it has most of the cases
    few = cases(name, "float32")[:: 3 if dtype == "bfloat16" else 6]
    for number, case in enumerate([*few, *LONG.get(name, [])[:1]]):
        low = cast(name, case, dtype)
        exact = several(_define(name, cast(name, low, "float64")))
        rounded = plain(name, low, dtype)
        place = (_innermost(name, low) if number % 2 else None) or np.array
        outs = tuple(place(unwritten(x)) for x in rounded)
        made = plan(name, outs, (tuple(place(x) if isinstance(x, np.ndarray) else x for x in low[0]), low[1]))
        assert made is not None, f"{name} does not take {dtype}"
        with triton_programs.watched() as faults:
            bound(made, made.settings[0])()
        assert not faults, low[1]
        for got, near, want in zip(outs, rounded, exact, strict=True):
            scale = max(1.0, float(np.abs(want).max(initial=0)))
            most = 2 * error(near, want) + 2e-6 * scale
            assert error(got, want) <= most, f"{name} {low[1]}: {error(got, want)} where {most} is allowed"


@PLACED
def test_what_is_no_number_stays_none(name: str, place: Any) -> None:
    """Whoever skips steps that overflowed, or ends a training, has to see it, whichever operand it comes in."""
    args, params = cases(name, "float32")[1]
    for n in [n for n, x in enumerate(args) if isinstance(x, np.ndarray) and x.dtype.kind == "f" and x.size][:6]:
        case = (tuple(np.full_like(x, np.nan) if k == n else x for k, x in enumerate(args)), params)
        with np.errstate(all="ignore"):
            wanted = several(_define(name, case))
            outs = tuple(place(np.zeros_like(x)) for x in wanted)
            made = plan(name, outs, _placed(case, place))
            assert made is not None
            bound(made, made.settings[0])()
        for got, want in zip(outs, wanted, strict=True):
            assert want.dtype.kind != "f" or np.isnan(got[np.isnan(want)]).all(), f"{name} {params}: operand {n}"


@pytest.mark.parametrize("name", [name for name in NAMES if vocabulary.casts(name)])
def test_wide_results_of_16_bits_are_not_rounded_on_the_way(name: str) -> None:
    for case in cases(name, "float32")[::3]:
        low = cast(name, case, "bfloat16")
        wanted = several(_define(name, cast(name, low, "float32")))
        outs = tuple(unwritten(np.empty(x.shape, "float32")) for x in wanted)
        made = plan(name, outs, low)
        assert made is not None, f"{name} does not cast"
        bound(made, made.settings[0])()
        for got, want in zip(outs, wanted, strict=True):
            assert error(got, want) <= 4e-6 * max(1.0, float(np.abs(want).max(initial=0))), f"{name} {low[1]}"


@PLACED
def test_every_setting_computes_the_same(name: str, place: Any) -> None:
    case = max(cases(name, "float32"), key=lambda case: sum(x.size for x in case[0] if isinstance(x, np.ndarray)))
    wanted = several(_define(name, case))
    outs = tuple(place(want) for want in wanted)
    made = plan(name, outs, _placed(case, place))
    assert made is not None
    for setting in made.settings:
        for out in outs:
            out[...] = unwritten(out)
        with triton_programs.watched() as faults:
            bound(made, setting)()
        assert not faults, setting
        for got, want in zip(outs, wanted, strict=True):
            scale = max(1.0, float(np.abs(want).max(initial=0)))
            np.testing.assert_allclose(got, want, rtol=0, atol=2e-6 * scale, err_msg=str(setting))


def _placed(case: Case, place: Any) -> Case:
    return tuple(place(x) if isinstance(x, np.ndarray) else x for x in case[0]), case[1]


@triton.jit
def _faulty(out, x, FAULT: tl.constexpr):  # type: ignore[no-untyped-def]
    n = tl.program_id(0) * 4 + tl.arange(0, 4)
    if FAULT == "two programs write one place":
        tl.store(out + n % 4, n)
    elif FAULT == "a program reads what another writes":
        tl.store(out + n, tl.load(out + (n + 4) % 8))
    elif FAULT == "a program comes back to what it wrote, with no barrier":
        tl.store(out + n, tl.load(x + n))
        tl.store(x + n, tl.load(out + n // 4 * 4))
    elif FAULT == "two numbers are written to one place at once":
        tl.store(out + n // 2, n)
    elif FAULT == "a place is in none of its arrays":
        tl.store(out + n, tl.load(x + n + 1))
    elif FAULT == "4 places do not lie together as was promised":
        tl.store(out + n, tl.load(x + tl.max_contiguous(n // 2, (4,))))
    else:
        tl.store(out + n, tl.load(x + tl.max_contiguous(n, (4,)), mask=n != 5))
        tl.debug_barrier()
        tl.store(out + n, tl.load(out + n // 4 * 4))


@pytest.mark.parametrize(
    "fault",
    [
        "", "two programs write one place", "a program reads what another writes",
        "a program comes back to what it wrote, with no barrier", "two numbers are written to one place at once",
        "a place is in none of its arrays", "4 places do not lie together as was promised",
    ],
)  # fmt: skip
def test_what_a_gpu_would_do_in_any_order_is_seen(fault: str) -> None:
    launch = Launch(_faulty, (2,), (np.zeros(8, "float32"), np.zeros(8, "float32")), {"FAULT": fault})
    with triton_programs.watched() as faults:
        bound(LaunchPlan((None,), lambda _: [launch]), None)()
    assert faults == ({f"_faulty: {fault}"} if fault else set())


@pytest.mark.parametrize("name", ["conv2d", "conv2d_grad_weight"])
def test_pictures_are_copied_some_samples_at_a_time(name: str) -> None:
    draw = Draw("float32")
    x, dy, w = draw(5, 3, 9, 16), draw(5, 4, 5, 8), draw(4, 3, 7, 7)
    how: dict[str, Any] = {"stride": (2, 2), "pads": (3, 3, 3, 3), "dilation": (1, 1), "groups": 1}
    case = ((x, w), how) if name == "conv2d" else ((dy, x), how | {"kernel": (7, 7)})
    case = cast(name, case, "bfloat16")
    want = _define(name, cast(name, case, "float32"))
    for adds in (False, True):
        out = np.ones(want.shape, "bfloat16") if adds else unwritten(want.astype("bfloat16"))
        with mock.patch.object(convolution, "_COPIED", 2000):
            made = plan(name, (out,), case, adds)
            assert made is not None
            bound(made, made.settings[0])()
        names = [launch.kernel.__name__ for launch in launches(made)]
        assert names.count("_copy_beside") == 3 + (name == "conv2d"), "two samples at a time, and weights"
        assert set(workspace_numbers(launches(made)).values()) == {0, 1}, "copies share their memory"
        assert error(out.astype("float32"), want + adds) <= 2.0**-7 * float(np.abs(want).max())


def test_steps_of_one_place_of_several_images_compute_the_same() -> None:
    """The first setting with channels as they come and innermost, each other one with one of these; windows of which
    some are outside, and more groups.
    """
    for number, case in enumerate(LONG["conv2d_grad_weight"]):
        low = cast("conv2d_grad_weight", case, "bfloat16")
        want = _define("conv2d_grad_weight", cast("conv2d_grad_weight", low, "float32"))
        for turn, place in enumerate((np.array, _innermost("conv2d_grad_weight", low))):
            args = (tuple(map(place, low[0])), low[1])
            adds = number % 2 > 0
            out = np.ones(want.shape, "bfloat16")
            made = plan("conv2d_grad_weight", (out,), args, adds)
            assert made is not None
            steps = {one: [launch.constants.get("IMAGES") for launch in made.launches(one)] for one in made.settings}
            found = [one for one, images in steps.items() if any(images)]
            assert made.settings[0] in found
            for setting in found[:1] + found[1 + turn :: 2]:
                out[...] = 1 if adds else np.nan
                with triton_programs.watched() as faults:
                    bound(made, setting)()
                assert not faults, setting
                assert error(out.astype("float32"), want + adds) <= 2.0**-7 * float(np.abs(want).max()), setting


@given(st.lists(st.lists(st.integers(0, 5), max_size=4), max_size=8))
def test_memory_is_shared_by_what_is_never_needed_at_once(named: list[list[int]]) -> None:
    rooms = [Workspace(1) for _ in range(6)]
    numbers = workspace_numbers([Launch(None, (1,), tuple(rooms[n] for n in some)) for some in named])
    most = 0
    for at in range(len(named)):
        alive = [n for n in range(6) if any(n in some for some in named[: at + 1]) and any(n in x for x in named[at:])]
        held = {numbers[rooms[n]] for n in alive}
        assert len(held) == len(alive)
        most = max(most, len(alive))
    assert set(numbers.values()) == set(range(most)), "no more than are needed at once"


@pytest.mark.parametrize("channels", [1, 3, 16])
def test_nothing_is_done_for_an_image_without_places(channels: int) -> None:
    draw = Draw("float32")
    how = {"stride": (1, 1), "pads": (0, 0, 0, 0), "dilation": (1, 1), "groups": 1}
    made = plan("conv2d", (draw(2, 4, 0, 1),), ((draw(2, channels, 3, 7), draw(4, channels, 4, 7)), how))
    assert made is not None and not launches(made)


@pytest.mark.parametrize("name", ["contract", "contract_pointwise"])
def test_products_by_blocks_equal_the_definition(name: str) -> None:
    """Settings that fetch whole blocks in turn, of shapes that tiles do not divide, in each order of dims."""
    draw, rng, launched = Draw("float32"), np.random.default_rng(1), 0
    for number, spec in enumerate(
        ("ik,jk->ij", "ik,kj->ji", "ki,jk->ij", "ki,kj->ij", "bki,jbk->bij", "bisk,bksj->sbij")
    ):
        dtype = ("float16", "bfloat16")[number % 2]
        size = {"i": int(rng.integers(16, 20)) * 8, "j": int(rng.integers(32, 36)) * 8, "k": 72, "b": 2, "s": 2}
        # One is summed in parts.
        size["k"] = 2056 if spec == "ki,kj->ij" else size["k"]
        xs = tuple(draw(*(size[label] for label in term)) for term in spec.split("->")[0].split(","))
        shape = tuple(size[label] for label in spec.split("->")[1])
        line = ("s, b, c, x -> x - 0.7 * maximum(s, b) * c", draw(shape[-1]), draw(*shape[1:-1], 1), draw(*shape))
        args = (spec, *xs) if name == "contract" else (spec, line[0], *xs, *line[1:])
        case = cast(name, (args, {}), dtype)
        want = _define(name, cast(name, case, "float32"))
        adds = number % 3 == 1
        out = np.ones(want.shape, dtype) if adds else unwritten(want.astype(dtype))
        made = plan(name, (out,), case, adds)
        assert made is not None
        walks = [one for one in made.settings if made.launches(one)[0].min_capability >= 90]
        assert walks, f"{spec} is not fetched in blocks"
        setting = walks[number % len(walks)]
        launched += len(made.launches(setting))
        bound(made, setting)()
        least = {"float16": 2.0**-11, "bfloat16": 2.0**-8}[dtype]
        assert error(out.astype("float32"), want + adds) <= 2 * least * float(np.abs(want).max()), f"{spec} {setting}"
    assert launched == 7


@settings(max_examples=40, derandomize=True, deadline=None)
@given(st.data())
def test_a_line_on_any_product_on_any_layout(data: st.DataObject) -> None:
    m, n, k, l = (
        one[: data.draw(st.integers(least, 2))] for one, least in (("ab", 1), ("cd", 1), ("ef", 1), ("gh", 0))
    )
    first, second, result = ("".join(data.draw(st.permutations(one))) for one in (m + k + l, n + k + l, m + n + l))
    size = {label: data.draw(st.integers(1 + (label in "ace"), 3)) for label in m + n + k + l}
    draw = Draw("float32", 3)
    x, y, z = (draw(*(size[label] for label in term)) for term in (first, second, result))
    table = draw(*(data.draw(st.sampled_from((1, n))) for n in z.shape[data.draw(st.integers(0, z.ndim)) :]))
    words = (f"{first},{second}->{result}", "s, t, z -> z - c * s * t")
    want, adds = _define("contract_pointwise", ((*words, x, y, table, z), {"c": 0.3})), data.draw(st.booleans())

    def place(one: np.ndarray) -> np.ndarray:
        return laid_out(one, list(data.draw(st.permutations(range(one.ndim)))), data.draw(st.integers(0, 1)))

    out = place(np.ones_like(want) if adds else np.full_like(want, np.nan))
    made = plan("contract_pointwise", (out,), ((*words, *map(place, (x, y, table, z))), {"c": 0.3}), adds)
    assert made is not None
    bound(made, data.draw(st.sampled_from(made.settings)))()
    np.testing.assert_allclose(out, want + adds, rtol=0, atol=4e-6 * max(1.0, float(np.abs(want).max())))


@pytest.mark.parametrize("place", [dense, stepped, outermost], ids=lambda place: place.__name__)
@pytest.mark.parametrize("name", ["add", "copy", "cut", "concat"])
def test_moments_are_added_in_float64(name: str, place: Any) -> None:
    for case in cases(name, "float64"):
        outs = tuple(place(unwritten(np.empty(one.shape, one.dtype))) for one in results(name, *case))
        assert plan(name, outs, case, True) is not None, f"{name} of float64 falls back to its definition"
        check("triton", name, case, place, True)


def test_infinities_and_nan_pass() -> None:
    odd = np.array([[np.nan, 1.0, 2.0], [np.inf, 1.0, 2.0], [-np.inf, 90.0, -90.0]], "float32")
    with np.errstate(all="ignore"):
        for name, params in [("relu", {}), ("gelu", {"approximate": "tanh"}), ("gelu", {"approximate": "none"})]:
            out = np.empty((3, 3), "float32")
            Table("triton").bind(name, (odd,), (out,), params)()
            assert np.isnan(out[0, 0]) and out[1, 0] == np.inf, name
        top = np.empty(3, "float32")
        Table("triton").bind("max_over", (odd,), (top,), {"dims": (1,)})()
        assert np.isnan(top[0]) and top[1] == np.inf and top[2] == 90
        loss, lse = np.empty((), "float32"), np.empty(3, "float32")
        Table("triton").bind("cross_entropy", (odd, np.array([0, 1, 1])), (loss, lse), {"scale": 1.0})()
    assert np.isnan(loss) and np.isnan(lse[0]) and not np.isfinite(lse[1]) and lse[2] == 90


def test_integers_out_of_range_give_nan_and_no_gradient() -> None:
    ids, table = np.array([0, -1, 4, 3]), np.ones((4, 5), "float32")
    out, slope = np.empty((4, 5), "float32"), np.empty((4, 5), "float32")
    Table("triton").bind("embedding", (ids, table), (out,), {"first": 0, "known": 4})()
    assert (np.isnan(out).all(axis=1) == [False, True, True, False]).all()
    Table("triton").bind("embedding_grad", (table, ids), (slope,), {"rows": 4, "first": 0, "known": 4})()
    assert (slope == np.array([1, 0, 0, 1])[:, None]).all()
    loss, lse = np.empty((), "float32"), np.empty(4, "float32")
    Table("triton").bind("cross_entropy", (table, np.array([0, 1, 2, 5])), (loss, lse), {"scale": 1.0})()
    assert np.isnan(loss) and np.isfinite(lse).all()


def test_results_may_be_written_over_what_they_are_made_of() -> None:
    for name, places, count in (("sgd", (0, 2), 4), ("adam", (0, 2, 3), 6), ("lion", (0, 2), 4)):
        for args, params in cases(name, "float32"):
            wanted = several(definitions()[name](*args, **params))
            held, length = [x.copy() for x in args], count + params.get("guarded", False)
            outs = tuple(x for n, x in enumerate(held) if n % length in places)
            Table("triton").bind(name, tuple(held), outs, params)()
            for got, want in zip(outs, wanted, strict=True):
                np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", MANY)
def test_a_launch_for_several_gives_the_bits_of_one_for_each(name: str) -> None:
    more = [case for case in cases(name, "float32") if len(one_by_one(name, case)) > 1]
    for case in (cast(name, more[0], "bfloat16"), more[-1]):
        check_each(Table("triton"), name, case, dense)


def test_many_are_cast_by_few_launches() -> None:
    """Bit for bit as NumPy rounds, whatever the dtypes on either side."""
    (xs, _), *_ = cases("copy", "float32")
    outs = tuple(unwritten(x.astype(("float16", "bfloat16", "float32")[n % 3])) for n, x in enumerate(xs))
    xs = tuple(x.astype(("float32", "float64", "float16", "int32")[n % 4]) for n, x in enumerate(xs))
    made = plan("copy", outs, (xs, {}))
    assert made is not None and len(made.launches(made.settings[0])) == 2
    bound(made, made.settings[0])()
    for got, x in zip(outs, xs, strict=True):
        np.testing.assert_array_equal(got, x.astype(got.dtype))


@pytest.mark.parametrize("place", [dense, stepped, outermost], ids=lambda place: place.__name__)
@pytest.mark.parametrize("num", [1, 3, 16, 17, 40])
def test_any_line_is_added_up_over_any_number_of_arrays(num: int, place: Any) -> None:
    what = Snippet(("x",), (), ("y = x + 1.0", "z = y * y"), ("z - x",))
    rng, few = np.random.default_rng(num), range(0, num, 16)
    arrays = tuple(place(rng.normal(size=(n % 5 + 2, 7)).astype("float32")) for n in range(num))
    want = sum(((x.astype(float) + 1) ** 2 - x).sum() for x in arrays)
    for adds in (False, True):
        out = np.full((), 3.0, "float32")
        made = multi_tensor_sum(what, out, arrays, adds)
        if place is dense and num % 16 != 1:
            assert len(made.launches(made.settings[0])) == 2 * len(few)
        bound(made, made.settings[-1])()
        np.testing.assert_allclose(out, want + 3.0 * adds, rtol=1e-5)


@pytest.mark.parametrize("line", ["x, y -> x * y", "x -> x; x * x", "x -> x * c"])
def test_what_cannot_be_added_up_is_refused(line: str) -> None:
    arrays = (np.ones(8, "float32"), np.ones(8, "float32"))
    with pytest.raises(AssertionError, match="names="):
        multi_tensor_sum(snippet(line, *(["c"] if "c" in line else [])), np.zeros((), "float32"), arrays, False)


def _exact(name: str, case: Case) -> list[np.ndarray]:
    """What the definition says in float64, rounded: long sums of its own in float32 are less exact than a form's."""
    found = several(_define(name, cast(name, case, "float64")))
    return [x.astype(one.dtype) for x, one in zip(found, results(name, *case), strict=True)]


def _define(name: str, case: Case) -> Any:
    with np.errstate(all="ignore"):
        return definitions()[name](*case[0], **case[1])
