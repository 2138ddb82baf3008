"""Collective cases with their answers by plain numpy: what each member sends, and what must lie where afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from hypothesis import strategies as st

from castile.runtime.comm.base import Side
from castile.runtime.task import AT_ONCE

FORMS = ("move", "all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast")
DTYPES = ("float32", "float64", "float16", "int32", "int64", "uint8")
UNTOUCHED, POISON = 0x5A, 0xFF
_SUMS = ("all_reduce", "reduce_scatter")
# Of what is summed in another order, the largest of a thousandth: float16 has ten bits.
_CLOSE = {"float16": 2e-2, "float32": 1e-5, "float64": 1e-13}


@dataclass(frozen=True, eq=False)
class Case:
    """One transfer: arrays by member; None where a member has none."""

    form: str
    group: tuple[int, ...]
    counts: tuple[tuple[int, ...], ...]
    send: list[np.ndarray]
    receive: list[np.ndarray]
    scratch: list[np.ndarray | None]
    expected: list[np.ndarray]
    kept: list[np.ndarray]

    def check(self) -> None:
        for member, (found, expected) in enumerate(zip(self.receive, self.expected, strict=True)):
            where = f"{self.form} over {self.group}, member {member}, counts {self.counts}"
            assert found.tobytes() == expected.tobytes(), f"{where}: {found} is not {expected}"
        for sent, kept in zip(self.send, self.kept, strict=True):
            assert sent.tobytes() == kept.tobytes(), "a transfer changed what was sent"

    def renew(self, seed: int) -> None:
        """Other numbers in the arrays that are sent, what has to come of them, and nothing of what came before."""
        rng = np.random.default_rng(seed)
        for sent, kept in zip(self.send, self.kept, strict=True):
            sent[:] = kept[:] = _random(rng, sent.size, sent.dtype.name)
        _forget(self.receive, UNTOUCHED)
        _forget(self.scratch, POISON)
        answers = _ANSWERS[self.form](self.send, self.counts)
        for expected, answer in zip(self.expected, answers, strict=True):
            expected[:] = answer

    def check_of(self, rank: int, found: np.ndarray) -> None:
        """What one rank found, where sums are added in any order."""
        expected = self.expected[self.group.index(rank)]
        of = f"{self.form} of {found.dtype} over {self.group}, rank {rank}, counts {self.counts}"
        where = f"{of}: {found}, not {expected}"
        if self.form in _SUMS and found.dtype.kind == "f":
            most = max((float(np.abs(part).max(initial=0)) for part in self.send), default=0.0)
            gap = np.abs(found.astype("f8") - expected.astype("f8")).max(initial=0)
            assert gap <= _CLOSE[found.dtype.name] * most, where
        else:
            assert found.tobytes() == expected.tobytes(), where


def side(case: Case, send, receive, scratch) -> Side:
    """A member's side of a case, with these arrays; None for what it has none of."""
    wants = receive.size or not send.size
    return Side(case.form, case.group, send if send.size else None, receive if wants else None, scratch, case.counts)


def begin(end, case: Case, tag: int):
    """Takes the end's part in the case."""
    return end.collective(*_side_of(end, case), tag)


def prepare(end, cases: Sequence[Case], tag: int):
    """The call that takes the end's part in cases over one group, which begin together."""
    return end.prepared([_side_of(end, case) for case in cases], tag)


def _side_of(end, case: Case) -> Side:
    member = case.group.index(end.rank)
    return side(case, case.send[member], case.receive[member], case.scratch[member])


@st.composite
def draw(make, world: int) -> Case:
    """A case over some of the world's ranks, in any order."""
    group = tuple(make(st.lists(st.integers(0, world - 1), min_size=1, max_size=world, unique=True)))
    form = make(st.sampled_from(FORMS if len(group) == 2 else FORMS[1:]))
    rng = np.random.default_rng(make(st.integers(0, 2**32 - 1)))
    return random_case(rng, form, len(group), make(st.sampled_from(DTYPES)), group)


@st.composite
def draw_together(make, world: int) -> list[Case]:
    """Cases over some of the world's ranks, the same for all, of forms that may begin together."""
    group = tuple(make(st.lists(st.integers(0, world - 1), min_size=1, max_size=world, unique=True)))
    rng = np.random.default_rng(make(st.integers(0, 2**32 - 1)))
    forms = make(st.lists(st.sampled_from(AT_ONCE), min_size=1, max_size=4))
    return [random_case(rng, form, len(group), make(st.sampled_from(DTYPES)), group) for form in forms]


def random_case(rng: np.random.Generator, form: str, size: int, dtype: str, group: Sequence[int] | None = None) -> Case:
    """A case of `size` members (a move has two, or one with itself) with uneven counts, some of them zero."""
    if form == "move":
        return _move(rng, size, dtype, group)
    counts = _counts(rng, form, size)
    sent = [counts[0][0]] + [0] * (size - 1) if form == "broadcast" else [sum(row) for row in counts]
    if form == "all_reduce":
        sent = [sum(counts[0])] * size
    if form == "all_gather":
        sent = [row[0] for row in counts]
    send = [_random(rng, n, dtype) for n in sent]
    expected = _ANSWERS[form](send, counts)
    return _case(form, tuple(group or range(size)), counts, send, expected)


def _move(rng, size: int, dtype: str, group) -> Case:
    n = int(rng.integers(0, 9))
    if size == 1:
        send = [_random(rng, n + 1, dtype)]
        return _case("all_gather", (0,), ((n + 1,),), send, send)
    pair = tuple(group or rng.permutation(size)[:2].tolist())
    send = [_random(rng, n + 1, dtype), _random(rng, 0, dtype)]
    counts = ((0, n + 1), (0, 0))
    return _case("move", pair, counts, send, _ANSWERS["move"](send, counts))


def _case(form, group, counts, send, expected) -> Case:
    receive = [np.empty(e.size, e.dtype) for e in expected]
    size = len(group)
    summed = {"all_reduce": lambda i: counts[0][i], "reduce_scatter": lambda i: counts[0][i]}
    words = [(size - 1) * summed[form](i) if form in summed else 0 for i in range(size)]
    scratch = [np.empty(n, s.dtype) if n else None for n, s in zip(words, send)]
    _forget(receive, UNTOUCHED)
    _forget(scratch, POISON)
    kept = [s.copy() for s in send]
    return Case(form, group, counts, send, receive, scratch, [e.copy() for e in expected], kept)


def _forget(arrays: Sequence[np.ndarray | None], byte: int) -> None:
    for array in arrays:
        if array is not None:
            array.view(np.uint8)[:] = byte


def _random(rng, n: int, dtype: str) -> np.ndarray:
    return (rng.standard_normal(n) * 50).astype(dtype) if dtype[0] == "f" else rng.integers(0, 100, n).astype(dtype)


def _counts(rng, form: str, size: int) -> tuple[tuple[int, ...], ...]:
    """Uneven and zero counts that obey the form: equal rows, columns, or none of these."""
    some = rng.integers(0, 8, size).tolist()
    if form in ("all_reduce", "reduce_scatter"):
        return (tuple(some),) * size
    if form == "all_gather":
        return tuple((n,) * size for n in some)
    if form == "broadcast":
        return tuple((some[0] if i == 0 else 0,) * size for i in range(size))
    return tuple(tuple(row) for row in rng.integers(0, 8, (size, size)).tolist())


def _pieces(array: np.ndarray, sizes) -> list[np.ndarray]:
    return [array[e - n : e] for n, e in zip(sizes, accumulate(sizes))]


def _sum(arrays: list[np.ndarray]) -> np.ndarray:
    total = arrays[0].copy()
    for array in arrays[1:]:
        total = (total + array).astype(array.dtype)
    return total


_ANSWERS = {
    "move": lambda send, counts: [send[1], send[0]],
    "all_reduce": lambda send, counts: [_sum(send)] * len(send),
    "reduce_scatter": lambda send, counts: _pieces(_sum(send), counts[0]),
    "all_gather": lambda send, counts: [np.concatenate(send)] * len(send),
    "broadcast": lambda send, counts: [send[0]] * len(send),
    "all_to_all": lambda send, counts: [
        np.concatenate([_pieces(s, row)[j] for s, row in zip(send, counts)]) for j in range(len(send))
    ],
}


def turns(requests: list, seed: int, most: int = 10_000) -> None:
    """Polls in a random order until all are done; fails where that takes more than so many polls."""
    rng = np.random.default_rng(seed)
    for _ in range(most):
        if not requests:
            return
        at = int(rng.integers(len(requests)))
        if requests[at].poll():
            requests.pop(at)
    raise AssertionError(f"{len(requests)} requests never end")
