"""What is counted in compiled kernels, estimated of them, and told of all settings.

Run by `make test` in a process of its own without TRITON_INTERPRET.
"""

import json
from collections import Counter
from dataclasses import replace
from math import prod
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import triton
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.gpu import cases
from benchmarks.gpu.calls import calls
from castile.kernels.estimates.chips import CHIPS, H200
from castile.kernels.estimates.compiled import Compiled, code, compiled, parameters
from castile.kernels.estimates.counting import Counts, count_program
from castile.kernels.estimates.estimate import estimate, lost, moved_bytes, of_call, of_plan
from castile.kernels.estimates.ptx import semantics
from castile.kernels.estimates.sectors import SECTOR
from castile.kernels.triton.contract import Tile
from castile.kernels.triton.launch import Launch, LaunchPlan
from tests import triton_chips
from tests.kernel_cases import Case
from tests.test_kernel_loops import followed
from tests.test_waves import MEASURED, TILES
from tests.triton_arrays import array, outermost
from tests.triton_cases import NAMES, OF_LOGITS, STEPPED, fake_plan, large, launches, plan, results
from tests.triton_chips import adds_a_constant_to_pairs, spills, trades
from tests.triton_estimate import measured
from tests.triton_every import Found, Part, by_code, compile_all, faults, kept, parts, resources, table, worth

assert not triton.knobs.runtime.interpret, "these checks compile, which TRITON_INTERPRET forbids"

# What each word is, in numbers without bounds of so many bits: as the manual of PTX has it.
WORDS = {
    "add": lambda x, y, bits: x + y,
    "sub": lambda x, y, bits: x - y,
    "mul.lo": lambda x, y, bits: x * y,
    "min": lambda x, y, bits: min(x, y),
    "max": lambda x, y, bits: max(x, y),
    "shl": lambda x, y, bits: x << y % bits,
    "shr": lambda x, y, bits: x >> y % bits,
    "div": lambda x, y, bits: abs(x) // abs(y or 1) * (-1 if (x < 0) != (y < 0) else 1),
    "rem": lambda x, y, bits: abs(x) % abs(y or 1) * (-1 if x < 0 else 1),
}


@given(st.sampled_from(sorted(WORDS)), st.sampled_from(["s32", "u32", "s64", "u64"]), st.integers(), st.integers())
def test_whole_numbers_are_worked_out_as_a_processor_does(word: str, kind: str, x: int, y: int) -> None:
    bits = int(kind[1:])
    one, other = (_within(n, kind[0] == "s", bits) for n in (x, y))
    if word in ("shl", "shr"):
        other %= bits
    if word in ("div", "rem"):
        other = other or 1
    compute = semantics(f"{word}.{kind}")
    assert compute is not None
    got = compute(*(np.array([_within(n, True, bits)]) for n in (one, other)))
    assert int(got[0]) == _within(WORDS[word](one, other, bits), True, bits)
    less = semantics(f"setp.lt.{kind}")
    assert less is not None
    assert bool(less(*(np.array([_within(n, True, bits)]) for n in (one, other)))[0]) == (one < other)


def _within(n: int, signed: bool, bits: int) -> int:
    """What so many bits hold of a number."""
    n %= 2**bits
    return n - 2**bits if signed and n >= 2 ** (bits - 1) else n


TEXT = """
.visible .entry one(
	.param .u64 .ptr .global .align 1 one_param_0,
	.param .u32 one_param_1
)
.reqntid 64
{
	.reg .b32 	%r<9>;
	ld.param.b64 	%rd1, [one_param_0];
	ld.param.b32 	%r1, [one_param_1];
	mov.u32 	%r2, %tid.x;
	mul.wide.u32 	%rd2, %r2, 36;
	add.s64 	%rd3, %rd1, %rd2;
	mov.pred 	%p1, -1;
	mov.b32 	%r3, 0;
$L__BB0_1:                              // =>This Inner Loop Header: Depth=1
	@%p1 st.global.b32 [ %rd3 + 0 ], { %r3 };
	@!%p1 st.global.b32 [ %rd3 + 4 ], { %r3 };
	add.s32 	%r3, %r3, 1;
	setp.lt.s32 	%p2, %r3, %r1;
	@%p2 bra 	$L__BB0_1;
	ld.global.b32 { %r4 }, [ %rd3 + 0 ];
	setp.gt.s32 	%p3, %r4, 7;
	@%p3 bra 	$L__BB0_1;
	add.s32 	%r5, %r4, 1;
	st.global.b32 [ %rd3 + 0 ], { %r5 };
	ret;
}
"""


@given(st.integers(1, 50), st.sampled_from([0, 2**44]))
def test_a_program_is_followed_through_its_loops(turns: int, place: int) -> None:
    found = count_program(TEXT, 64, (0, 0, 0), (1, 1, 1), [np.array([place]), np.array([turns])])
    assert found.instructions == 2 * (7 + 5 * turns + 5), "of two warps, and what memory holds decides no branch"
    assert found.requests == 2 * (turns + 2), "none where a predicate holds nowhere"
    sectors = len({(place + 36 * n) // SECTOR for n in range(64)})
    assert (found.touched, found.asked) == (sectors, sectors)
    assert found.partly == len({36 * n // SECTOR for n in range(64)}), "four bytes of each"
    assert found.turns == 1


def only(name: str, case: Case) -> Launch:
    found = fake_plan(name, case)
    assert found is not None
    (launch,) = launches(found)
    return launch


def all_counted(launch: Launch) -> list[Counts]:
    """What each program of a launch does."""
    found, grid = compiled(launch, 90), (*launch.grid, 1, 1)[:3]
    params = [None if one is None else np.array([one]) for one in parameters(launch, 90)]
    places = (np.unravel_index(n, grid[::-1])[::-1] for n in range(prod(grid)))
    return [count_program(found.ptx, 32 * launch.warps, tuple(map(int, place)), grid, params) for place in places]


@pytest.mark.parametrize("name, num", [("copy", 1), ("relu", 1), ("add", 2), ("softmax", 1)])
def test_what_programs_touch_is_what_they_have_to_move(name: str, num: int) -> None:
    for shape in ((7, 1024), (3, 4096)):
        launch = only(name, (tuple(array(shape, "bfloat16") for _ in range(num)), {}))
        every = all_counted(launch)
        assert sum(one.touched for one in every) * SECTOR == moved_bytes(launch)
        assert sum(one.asked for one in every) == sum(one.touched for one in every)
        assert sum(one.wrote for one in every) * SECTOR == prod(shape) * 2
        assert not any(one.again or one.partly for one in every)


def test_steps_between_elements_cost_sectors() -> None:
    near, apart = (array((8, 4096), "bfloat16")[:, : 2048 * step : step] for step in (1, 2))
    one, two = (sum(found.touched for found in all_counted(only("copy", ((x,), {})))) for x in (near, apart))
    assert two * 2 == one * 3, "twice as many are read, and as many written"


def test_a_row_that_is_not_held_is_read_again_and_lost_where_many_run() -> None:
    for rows, block, is_lost in ((8192, 4096, True), (100, 4096, False), (8192, 65536, False)):
        offered = fake_plan("softmax", ((array((rows, 50264), "bfloat16"),), {}))
        assert offered is not None
        (launch,) = offered.launches(next(one for one in offered.settings if one[1] == block))
        found = compiled(launch, 90)
        params = [None if one is None else np.array([one]) for one in parameters(launch, 90)]
        one = count_program(found.ptx, 32 * launch.warps, (5, 0, 0), (*launch.grid, 1, 1), params)
        row = 50264 * 2 // SECTOR
        again = row * (block < 50264)
        far = sum(num for others, num in one.again.items() if others > row // 2)
        assert again <= far <= 1.02 * again and 2 * row <= one.touched <= 2 * row + 2
        moved = estimate(launch, found, H200).alone["memory"] * CHIPS[90].bytes_per_second / moved_bytes(launch)
        assert (moved > 1.5) == is_lost, moved


LONG = {
    "a product": ("contract", (("to,ti->oi", array((20000, 128), "bfloat16"), array((20000, 256), "bfloat16")), {})),
    "one of rows that begin anywhere": (
        "contract", (("to,ti->oi", array((6000, 67), "float32"), array((6000, 130), "float32")), {}),
    ),
    "rows that are read twice": ("softmax", ((array((132, 400000), "bfloat16"),), {})),
    "sums": ("sum_over", ((array((60000, 256), "float32"),), {"dims": (0,)})),
}  # fmt: skip


@pytest.mark.parametrize("case", LONG)
def test_turns_of_kernels_are_counted_as_if_they_were_followed(case: str) -> None:
    found = fake_plan(*LONG[case])
    assert found is not None
    for launch in found.launches(found.settings[0]):
        program, grid = compiled(launch, 90), (*launch.grid, 1, 1)[:3]
        params = [None if one is None else np.array([one]) for one in parameters(launch, 90)]
        place = (prod(grid) // 2 % grid[0], 0, 0)
        once = count_program(program.ptx, 32 * launch.warps, place, grid, params)
        with followed():
            assert once == count_program(program.ptx, 32 * launch.warps, place, grid, params)


def test_halves_of_sectors_are_seen() -> None:
    whole, half = (np.zeros((64, 64 * step), "float32")[:, ::step] for step in (1, 2))
    x = np.zeros((64, 64), "float32")
    for out, parts_written in ((whole, False), (half, True)):
        found = plan("relu", (out,), ((x,), {}))
        assert found is not None
        (launch,) = launches(found)
        assert any(one.partly for one in all_counted(launch)) == parts_written


@pytest.mark.parametrize("name", [name for name in OF_LOGITS if "entropy" in name and "split" not in name])
def test_logits_whose_classes_are_outermost_are_read_and_written_in_vectors(name: str) -> None:
    *_, case = large(name, "bfloat16")
    outs = tuple(outermost(array(one.shape, one.dtype)) for one in results(name, *case))
    made = plan(name, outs, (tuple(map(outermost, case[0])), case[1]))
    assert made is not None
    found = max(of_plan(made, H200), key=lambda one: one.least)
    moving, asking, least = found.alone["memory"], found.alone["requests"], found.least
    assert moving < 1.25 * least and asking < least / 8


def test_a_product_is_written_along_what_lies_together() -> None:
    """By a kernel that is the same, whichever operand that is of."""
    x, w = array((512, 768), "bfloat16"), array((1024, 768), "bfloat16")
    columns = plan("contract", (outermost(array((512, 1024), "bfloat16")),), (("ti,vi->tv", x, w), {}))
    same = plan("contract", (array((1024, 512), "bfloat16"),), (("vi,ti->vt", w, x), {}))
    assert columns is not None and same is not None

    def codes(made: LaunchPlan) -> list[str]:
        return [code(launch, 90) for setting in made.settings for launch in made.launches(setting)]

    assert codes(columns) == codes(same)


@pytest.mark.parametrize("kernel", [1, 3])
def test_phases_of_columns_are_written_together(kernel: int) -> None:
    dy, w = array((2, 64, 16, 16), "bfloat16"), array((64, 32, kernel, kernel), "bfloat16")
    how = {"shape": (2, 32, 32, 32), "stride": (2, 2), "pads": (kernel // 2,) * 4}
    found = fake_plan("conv2d_grad_input", ((dy, w), how))
    assert found is not None
    every = all_counted(launches(found)[-1])
    assert every and not any(one.partly for one in every)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["copy", "layer_norm", "softmax", "sum_over", "norm", "max_pool2d"])
def test_estimates_are_within_a_factor_of_two_of_what_an_h200_took(name: str) -> None:
    took = measured()
    for case in cases.streams():
        if case.kernel == name:
            seconds = sum(one.seconds for call in calls(case) for one in of_call(call.named, H200))
            assert 0.5 < seconds / took[case.name] < 2, case.name


@pytest.mark.slow
@pytest.mark.parametrize("case", MEASURED, ids=str)
def test_settings_are_ranked_as_an_h200_ranked_them(case: Any) -> None:
    """One that has a processor to itself waits while its sums are written."""
    spec, *shapes = case
    made = fake_plan("contract", ((spec, *(array(shape, "bfloat16") for shape in shapes)), {}))
    assert made is not None
    settings = {(one.m, one.n, one.warps): one for one in made.settings if isinstance(one, Tile)}
    told, took = [], MEASURED[case]
    for tile in TILES:
        # Short sums had memory for as many steps as others then.
        parts = [replace(one, stages=4 if tile[1] == 64 else 3) for one in made.launches(settings[tile])]
        told.append(sum(estimate(one, compiled(one, 90), H200).seconds for one in parts))
    assert np.corrcoef(*(np.argsort(np.argsort(x)) for x in (told, took)))[0, 1] > 0.8
    assert took[int(np.argmin(told))] <= 1.05 * min(took)
    assert all(0.8 < one / other < 1.25 for one, other in zip(told, np.multiply(took, 1e-6), strict=True))


@given(st.lists(st.integers(0, 10**6), min_size=1), st.integers(1, 10**4), st.integers(0, 10**9))
def test_what_all_programs_touch_together_is_not_lost_where_the_cache_holds_it(
    others: list[int], held: int, nbytes: int
) -> None:
    one, cache = Counts(again=Counter(others)), CHIPS[90]
    assert lost(one, held, nbytes, cache) <= lost(one, held, 2 * nbytes, cache) <= len(others)
    assert nbytes > cache.cache_bytes / 2 or not lost(one, held, nbytes, cache)


def test_code_is_told_apart_by_what_decides_it() -> None:
    def of(shape: tuple[int, ...], dtype: str, setting: int = 0, chip: int = 90) -> str:
        found = fake_plan("relu", ((array(shape, dtype),), {}))
        assert found is not None
        (launch,) = found.launches(found.settings[setting])
        return code(launch, chip)

    first = of((64, 4096), "bfloat16")
    assert first == of((32, 8192), "bfloat16")
    others = [of((64, 4096), "float16"), of((64, 4096), "bfloat16", 1), of((64, 4096), "bfloat16", chip=80)]
    assert len({first, *others}) == 4


@pytest.fixture(scope="module")
def some() -> list[Part]:
    return parts(chips=[80, 90], dtypes=["bfloat16"], names=["relu"])[::5]


@pytest.fixture(scope="module")
def ran(some: list[Part], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Found]:
    """The file of a run, and what came of it."""
    path = tmp_path_factory.mktemp("run") / "deep" / "kept.jsonl"
    return path, compile_all(by_code(some), path, 1)


def test_a_run_that_was_cut_off_goes_on(some: list[Part], ran: tuple[Path, Found], capfd: Any) -> None:
    wanted, (path, first) = by_code(some), ran
    assert set(first) == set(wanted) == set(kept(path))
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    assert len(kept(path)) == len(wanted) - 1
    capfd.readouterr()
    assert compile_all(wanted, path, 1) == first
    assert "1 of 1 compiled" in capfd.readouterr().out
    assert sorted(path.read_bytes().splitlines()) == sorted(whole.splitlines())
    assert compile_all(wanted, path, 1) == first and not capfd.readouterr().out
    assert json.loads(path.read_text().splitlines()[0])["code"] in wanted


def test_what_no_launch_could_use_is_told(some: list[Part], ran: tuple[Path, Found]) -> None:
    wanted, (_, found) = by_code(some), ran
    assert faults(wanted, found) == []
    for key, same in wanted.items():
        default = any(part.default for part in same)
        limit = CHIPS[same[0].chip].shared_bytes
        wrong: list[tuple[dict[str, Any], bool]] = [
            ({"shared": limit + 1}, True), ({"shared": limit}, False), ({"registers": 255, "warps": 32}, True),
            ({"stack": 64}, default), ({"problem": "no"}, True), ({"adds_a_constant_to_pairs": True}, True),
        ]  # fmt: skip
        for change, told in wrong:
            lines = faults(wanted, found | {key: found[key] | change})
            assert len(lines) == told and all(same[0].kernel in line for line in lines), change
    text = table(some, wanted, found)
    assert text.startswith(f"Triton {triton.__version__}") and "sm_80" in text and "sm_90" in text


def test_all_that_may_be_asked_for_is_compiled_in_some_way() -> None:
    every = parts(chips=[90])
    chosen = worth(every)
    assert len(chosen) < len(every) / 4
    whole = [part for part in every if part.way not in STEPPED]
    for seen in (
        lambda part: (part.kernel, part.setting, part.launch.kernel.__name__),
        lambda part: (part.kernel, part.setting, part.dtype == "float32"),
        lambda part: (part.kernel, part.dtype),
    ):
        assert set(map(seen, whole)) <= set(map(seen, chosen))
    for narrow in ("float16", "bfloat16"):
        left = {(part.kernel, part.way) for part in every} - {
            (part.kernel, part.way) for part in chosen if part.default and part.dtype == narrow
        }
        assert all(narrow == "float16" and way in STEPPED for _, way in left)


@pytest.mark.parametrize("seed", range(3))
def test_in_float16_a_setting_takes_the_shared_memory_that_it_takes_in_bfloat16(seed: int) -> None:
    rng = np.random.default_rng(seed)
    chip = int(rng.choice(list(CHIPS)))
    made = {dtype: parts([chip], [dtype], NAMES[seed::40]) for dtype in ("bfloat16", "float16")}
    for number in rng.integers(0, len(made["bfloat16"]), 3):
        one, other = (made[dtype][number] for dtype in made)
        assert (one.kernel, one.way, one.setting, one.since) == (other.kernel, other.way, other.setting, other.since)
        if one.since <= chip:
            assert resources(one.launch, chip)["shared"] == resources(other.launch, chip)["shared"], other.named


@pytest.mark.slow
def test_what_is_left_out_fits_too(tmp_path: Path) -> None:
    every = parts()
    left = by_code(every)
    for key in by_code(worth(every)):
        del left[key]
    some = dict(Random(0).sample(sorted(left.items(), key=lambda one: one[0]), 100))
    assert faults(some, compile_all(some, tmp_path / "kept", 1)) == []


def test_few_registers_may_be_traded_for_a_program() -> None:
    def one(registers: int, stack: int) -> Compiled:
        return Compiled("one", 90, 100, registers, stack, 0, 8, "")

    assert trades(one(128, 8)) and trades(one(80, 32))
    assert not trades(one(128, 40)), "these are not few"
    assert not trades(one(136, 8)), "no more programs are held than with two registers more"


@pytest.mark.parametrize("others, told", [("%r7", True), ("%r9", False)])
def test_sums_that_ptxas_gets_wrong_are_known(others: str, told: bool) -> None:
    """As those were that lost the rows of maxima in windows on an H200."""
    first, second = (f"add.s16x2 %r{n}, %r{n - 1}, {word};" for n, word in ((3, "%r7"), (5, others)))
    constants = "mov.b32 %r7, 393222;\n\tmov.b32 %r9, 65537;"
    assert adds_a_constant_to_pairs(f"{constants}\n\t{first}\n\tadd.s32 %r4, %r3, %r7;\n\t{second}") == told


def test_with_the_triton_that_is_named_a_default_leaves_out_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for named in (True, False):
        monkeypatch.setattr(triton_chips, "NAMED", named)
        for registers, stack in ((128, 0), (128, 8), (136, 8), (255, 96)):
            made = Compiled("one", 90, 2400, registers, stack, 0, 8, "")
            assert spills(made) == (stack > 0 and (named or (registers, stack) != (128, 8)))
