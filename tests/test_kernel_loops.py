"""Turns of loops that need not be followed: what is counted is what following every one of them counts."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from castile.kernels.estimates.counting import Counts, count_program
from castile.kernels.estimates.loop_skipping import LoopSkipper
from castile.kernels.estimates.ptx import Skippable, parse_ptx
from castile.kernels.estimates.ptx_interpreter import Interpreter
from tests.effort import examples

THREADS = 64
# Two arrays, far apart; loops that go back stay in what counts as theirs.
PLACES = (3 << 43, 5 << 43)
STEPS = st.sampled_from([0, 2, 8, 16, 48, 32, 64, 96, 256, 4608, -64])


@dataclass(frozen=True)
class Access:
    """What each turn of a loop reads or writes: of one of two arrays, from `begin` bytes on, so many apart by thread,
    `step` bytes further on each turn; of turns from `since` on, and before `until`. With a ring the place goes round.
    """

    array: int
    begin: int
    apart: int
    step: int
    writes: bool = False
    since: int = 0
    until: int = 1 << 30
    ring: int = 0


@dataclass(frozen=True)
class Loop:
    """So many turns; in each an inner loop of so many turns that touch what the accesses say."""

    turns: int
    accesses: tuple[Access, ...]
    inner: int = 0


accesses = st.builds(
    Access, st.integers(0, 1), st.sampled_from([0, 4, 32, 640, 8192]), st.sampled_from([0, 4, 16, 48, 4096]), STEPS,
    st.booleans(), st.integers(0, 20), st.integers(1, 100), st.integers(0, 5),
)  # fmt: skip
loops = st.builds(
    Loop, st.integers(1, 80), st.lists(accesses, min_size=1, max_size=2).map(tuple), st.sampled_from([0, 0, 0, 1, 5])
)


def text(these: Sequence[Loop]) -> str:
    """The program of these loops, one after the other."""
    lines = ["ld.param.b64 %rd1, [one_param_0]", "ld.param.b64 %rd2, [one_param_1]", "mov.u32 %r1, %tid.x"]
    for number, loop in enumerate(these):
        lines += _loop(loop, number)
    body = "\n".join(line if line.endswith(":") else f"\t{line};" for line in [*lines, "ret"])
    return f".visible .entry one()\n.reqntid {THREADS}\n{{\n{body}\n}}\n"


def _loop(loop: Loop, number: int) -> Iterator[str]:
    yield "mov.b32 %r2, 0"
    yield f"$L__BB{number}_1:"
    yield "mov.b32 %r4, 0"
    yield f"$L__BB{number}_2:"
    for access in loop.accesses:
        yield from _access(access)
    yield "add.s32 %r4, %r4, 1"
    yield f"setp.lt.s32 %p1, %r4, {loop.inner}"
    yield f"@%p1 bra $L__BB{number}_2"
    yield "add.s32 %r2, %r2, 1"
    yield "add.f32 %f1, %f1, %f2"
    yield "bar.sync 0"
    yield f"setp.lt.s32 %p1, %r2, {loop.turns}"
    yield f"@%p1 bra $L__BB{number}_1"


def _access(one: Access) -> Iterator[str]:
    turn = "%r2"
    if one.ring:
        turn = "%r5"
        yield f"rem.u32 %r5, %r2, {one.ring}"
    yield f"mad.wide.s32 %rd3, %r1, {one.apart}, %rd{one.array + 1}"
    yield f"mad.wide.s32 %rd4, {turn}, {one.step}, %rd3"
    yield f"setp.ge.s32 %p2, %r2, {one.since}"
    yield f"setp.lt.s32 %p3, %r2, {one.until}"
    yield "and.pred %p4, %p2, %p3"
    if one.writes:
        yield f"@%p4 st.global.b32 [%rd4+{one.begin}], {{%f1}}"
    else:
        yield f"@%p4 ld.global.b32 {{%f2}}, [%rd4+{one.begin}]"


def count(these: Sequence[Loop]) -> Counts:
    params = [np.array([place]) for place in PLACES]
    return count_program(text(these), THREADS, (0, 0, 0), (1, 1, 1), params)


@contextmanager
def followed() -> Iterator[None]:
    """Every turn is followed meanwhile."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LoopSkipper, "skip_ahead", lambda self, run: run)
        yield


@contextmanager
def working() -> Iterator[list[int]]:
    """The items that are worked out meanwhile."""
    does, found = Interpreter.step, list[int]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Interpreter, "step", lambda self: (found.append(self.position), does(self)))
        yield found


@settings(max_examples=examples(100))
@given(st.lists(loops, min_size=1, max_size=2))
def test_turns_that_are_not_followed_are_counted(these: list[Loop]) -> None:
    found = count(these)
    with followed():
        assert found == count(these)


ROW = Access(0, 0, 16, 1024)
CASES = {
    "a row": [Loop(300, (ROW,))],
    "a row that is read twice": [Loop(300, (ROW,)), Loop(300, (ROW,))],
    "a row, then what lies behind it": [Loop(100, (ROW,)), Loop(300, (Access(0, 50 * 1024, 16, 1024),))],
    "one that meets what was read before": [
        Loop(1, (Access(0, 200 * 1024, 16, 0),)), Loop(300, (ROW,)),
    ],
    "windows that overlap those of many turns before": [Loop(300, (Access(0, 0, 1024, 64),))],
    "two arrays, one of which stays": [Loop(300, (ROW, Access(1, 0, 4, 0)))],
    "one array at two paces": [Loop(200, (ROW, Access(0, 0, 16, 2048)))],
    "one array at two paces that meet": [Loop(300, (ROW, Access(0, 150 * 1024, 0, 64)))],
    "parts of sectors": [Loop(300, (Access(0, 0, 48, 8),))],
    "a ring": [Loop(300, (ROW, Access(1, 0, 4, 64, ring=3)))],
    "backwards": [Loop(300, (Access(0, 1 << 24, 16, -1024),))],
    "what is written": [Loop(300, (Access(0, 0, 4, 256, writes=True),))],
    "halves of sectors": [Loop(300, (Access(0, 0, 64, 16, writes=True),))],
    "what was written on the way, written again": [
        Loop(300, (Access(0, 0, 0, 32, writes=True),)), Loop(1, (Access(0, 320, 4, 0, writes=True),)),
    ],
    "what ends before the loop": [Loop(300, (Access(0, 0, 16, 1024, until=250), Access(1, 0, 16, 64, since=100)))],
    "an inner loop": [Loop(50, (ROW,), inner=5)],
    "a long inner loop": [Loop(3, (ROW,), inner=300)],
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_loops_are_counted_as_if_they_were_followed(name: str) -> None:
    with working() as items:
        found = count(CASES[name])
    few = len(items)
    with followed(), working() as items:
        assert found == count(CASES[name])
    assert few < len(items) / 4 or "paces" in name, "these may meet"


def test_a_loop_of_a_thousand_million_turns_ends() -> None:
    turns = 10**9
    found = count([Loop(turns, (ROW,))])
    assert found.touched == turns * 1024 // 32 and found.requests == turns * 2


def test_lines_that_decide_nothing_are_not_worked_out() -> None:
    found = parse_ptx(text([Loop(3, (ROW,))]))
    idle = [one for one in found.items if isinstance(one, Skippable)]
    assert idle[-1].reads == {"%f1", "%f2"} and len(idle) == 2, "a sum, and an array that is left alone"
    assert sum(one.num for one in idle) + len(found.items) - len(idle) == found.lines


def test_what_is_wanted_of_memory_is_waited_for_in_lines_that_decide_nothing() -> None:
    assert count([Loop(50, (ROW,))]).turns == 50


def test_a_program_that_does_not_end_is_given_up(monkeypatch: Any) -> None:
    monkeypatch.setattr("castile.kernels.estimates.counting._MOST", 1000)
    endless = text([Loop(3, (ROW,))]).replace("add.s32 %r2, %r2, 1", "add.s32 %r2, %r2, 0")
    with pytest.raises(ValueError, match="does not end"):
        count_program(endless, THREADS, (0, 0, 0), (1, 1, 1), [np.array([place]) for place in PLACES])
