"""What one program of a kernel does, counted in its compiled text: instructions, bytes that it asks for, and waits.

Whole numbers of all of its threads are worked out as a processor would, which is enough to follow loops and addresses;
what is fetched from memory and what is made of it stays unknown, and no branch on it is taken. It knows neither chips
nor how long anything takes.
"""

from __future__ import annotations

import operator
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

# Bytes that memory is fetched in.
SECTOR = 32
_WARP = 32
# Sectors that a processor's own cache keeps for one program.
_OWN = 1024
# A program that takes more steps is given up.
_MOST = 1_000_000
_LINE = re.compile(r"(?:@(!?)(%p\d+)\s+)?([a-z][\w.:]*)\s*(.*)")
_GROUP = re.compile(r"\{[^}]*\}|\[[^\]]*\]|[^,\s]+")
Value = Any
"""Whole numbers [threads], or [1] where all threads have the same; None where they are not known."""


@dataclass(frozen=True)
class Step:
    """A line of the text: its word, the names and numbers that follow it in groups, and on which predicate it hangs."""

    word: str
    groups: tuple[tuple[str, ...], ...]
    when: str = ""
    unless: bool = False

    @property
    def writes(self) -> tuple[str, ...]:
        """Registers that get a result."""
        silent = ("st.", "bra", "bar.", "cp.", "ret", "red.", "fence", "mbarrier", "wgmma", "stmatrix")
        return () if self.word.startswith(silent) or not self.groups else self.groups[0]


@dataclass
class Counted:
    """What a program did.

    instructions  of all its warps
    turns         how often it waited for what it had asked for before; waits that fetching ahead shortens count less
    requests      of a warp for memory
    asked         sectors that it asked of the cache that all share: not those that its processor still had
    again         sectors that it touched once more, by how many others it had touched in between
    touched       different sectors that it read or wrote
    wrote         different sectors that it wrote
    partly        sectors of which it wrote some bytes but not all
    """

    instructions: int = 0
    turns: float = 0.0
    requests: int = 0
    asked: int = 0
    touched: int = 0
    wrote: int = 0
    partly: int = 0
    again: Counter[int] = field(default_factory=Counter)


def text_of(ptx: str) -> tuple[list[Step], dict[str, int]]:
    """The lines of a kernel, and before which of them labels stand."""
    steps: list[Step] = []
    labels: dict[str, int] = {}
    for line in _lines(ptx):
        if line.endswith(":"):
            labels[line[:-1]] = len(steps)
        elif found := _LINE.fullmatch(line):
            no, when, word, rest = found.groups()
            groups = tuple(tuple(re.findall(r"[^\s{},\[\]+]+", one)) for one in _GROUP.findall(rest))
            steps.append(Step(word, groups, when or "", bool(no)))
    return steps, labels


def _lines(ptx: str) -> Iterator[str]:
    for line in ptx[ptx.index("{", ptx.index(".reqntid")) + 1 :].splitlines():
        bare = line.split("//")[0].strip().rstrip(";").strip()
        if bare and bare[0] not in ".{}":
            yield bare


def counted(ptx: str, threads: int, program: Sequence[int], programs: Sequence[int], params: Sequence[Any]) -> Counted:
    """What the program of that number of so many does, given what its parameters are: None where that is not known."""
    steps, labels = text_of(ptx)
    run = _Run(threads, program, programs, params)
    at = 0
    for _ in range(_MOST):
        if at >= len(steps) or steps[at].word == "ret":
            run.waits()
            run.found.touched, run.found.wrote = len(run.order), len(run.written)
            run.found.partly = sum(one != 2**SECTOR - 1 for one in run.written.values())
            return run.found
        step = steps[at]
        run.found.instructions += run.warps
        if step.word.startswith("bra"):
            run.waits()
            to = labels[step.groups[0][0]]
            at = to if run.leaps(step, to <= at) else at + 1
        else:
            run.does(step)
            at += 1
    raise ValueError("the program does not end")


class _Run:
    """The registers of a program's threads while its lines are worked out."""

    def __init__(self, threads: int, program: Sequence[int], programs: Sequence[int], params: Sequence[Any]) -> None:
        self.threads, self.warps = threads, -(-threads // _WARP)
        self.params = params
        self.known: dict[str, Value] = {"%tid.x": np.arange(threads)}
        for axis, number, size in zip("xyz", program, programs, strict=True):
            self.known |= {f"%ctaid.{axis}": np.array([number]), f"%nctaid.{axis}": np.array([size])}
        self.found = Counted()
        # Registers that wait for memory, and whether any of them was wanted since the last time it was waited for.
        self.fetching: set[str] = set()
        self.wanted = False
        # How many had been touched when each sector was touched last.
        self.order: dict[int, int] = {}
        # Of each sector the bytes that were written, a bit each.
        self.written: dict[int, int] = {}

    def value(self, name: str) -> Value:
        if name.startswith("%"):
            return self.known.get(name)
        try:
            return np.array([int(name, 0)])
        except (ValueError, OverflowError):
            return None

    def holds(self, step: Step) -> Value:
        """Where its predicate lets it run; None where that is not known."""
        if not step.when:
            return np.array([True])
        met = self.known.get(step.when)
        return None if met is None else ~met if step.unless else met

    def leaps(self, step: Step, back: bool) -> bool:
        """Whether a branch is taken: back if any thread goes there, and forth if all do."""
        met = self.holds(step)
        return met is not None and bool(met.any() if back else met.all())

    def does(self, step: Step) -> None:
        """Work out one line that is no branch."""
        read = {name for group in step.groups[1 if step.writes else 0 :] for name in group}
        self.wanted |= bool(self.fetching & read)
        met = self.holds(step)
        word = step.word.split(".")
        if word[1:2] == ["global"] or step.word.startswith(("cp.async.ca.", "cp.async.cg.")):
            self.touches(step, met)
        elif step.word.startswith("mbarrier.arrive.expect_tx"):
            self.fetched(int(step.groups[-1][-1]) if met is None or met.any() else 0)
        elif word[0] == "bar" or step.word.startswith("mbarrier.try_wait"):
            self.waits()
        elif step.word.startswith("cp.async.wait_group"):
            self.found.turns += 1 / (1 + int(step.groups[0][0]))
        for name, value in zip(step.writes, self.results(step), strict=True):
            self.known[name] = value if met is None or met.all() else self.either(met, value, self.known.get(name))

    @staticmethod
    def either(met: Value, value: Value, old: Value) -> Value:
        """A result where a predicate lets it be written, and what was there elsewhere."""
        return old if not met.any() else None if value is None or old is None else np.where(met, value, old)

    def results(self, step: Step) -> list[Value]:
        if len(step.writes) != 1 or step.word.startswith(("ld.", "elect", "atom", "ldmatrix")):
            if step.word.startswith("ld.param"):
                return [self.params[int(step.groups[1][0].rpartition("_")[2])]]
            return [None] * len(step.writes)
        if step.word.startswith("shfl.sync.idx"):
            value = self.value(step.groups[1][0])
            return [value if value is None or value.size == 1 else np.repeat(value[::_WARP], _WARP)]
        values = [self.value(group[0]) for group in step.groups[1:] if len(group) == 1]
        make = made(step.word)
        if make is None or len(values) < len(step.groups) - 1 or any(value is None for value in values):
            return [None]
        return [make(*values)]

    def waits(self) -> None:
        """All that was asked for has come, if any of it was wanted."""
        if self.wanted:
            self.found.turns += 1
            self.fetching.clear()
        self.wanted = False

    def fetched(self, nbytes: int) -> None:
        """Bytes came that no thread asked for by an address."""
        self.found.asked += nbytes // SECTOR
        # Names that no address has.
        first = len(self.order) + 1
        self.order |= {-n: 0 for n in range(first, first + nbytes // SECTOR)}

    def touches(self, step: Step, met: Value) -> None:
        """Threads read or write memory."""
        word = step.word.split(".")
        group = step.groups[0 if word[0] == "st" else 1]
        parts = [self.value(name) for name in group]
        if word[0] == "cp":
            nbytes, here = int(step.groups[2][0], 0), self.value(step.groups[3][0]) if len(step.groups) > 3 else None
            met = met if here is None or met is None else met & (here > 0)
        else:
            wide = next((int(one[1:]) for one in word if re.fullmatch(r"v\d", one)), 1)
            nbytes = wide * int(word[-1][1:]) // 8
        if word[0] == "ld":
            self.fetching |= set(step.writes)
        if met is not None and not met.any():
            return
        if any(part is None for part in parts):
            self.fetched(nbytes * self.threads)
            return
        here = np.broadcast_to(np.array([True]) if met is None else met, (self.threads,))
        addresses = np.broadcast_to(sum(parts[1:], parts[0]), (self.threads,))
        if word[0] == "st":
            for sector, start in np.unique(np.stack(np.divmod(addresses[here], SECTOR), 1), axis=0).tolist():
                self.written[sector] = self.written.get(sector, 0) | (1 << nbytes) - 1 << start
        self.asks(addresses, here, nbytes, step.word.startswith("cp.async.cg."))

    def asks(self, addresses: Any, here: Any, nbytes: int, past: bool) -> None:
        """Threads that are here ask for bytes from addresses on, maybe past the cache of their processor."""
        first, last = addresses // SECTOR, (addresses + nbytes - 1) // SECTOR
        warp = np.arange(self.threads) // _WARP
        pairs = np.unique(np.concatenate([np.stack([warp, one], 1)[here] for one in (first, last)]), axis=0)
        self.found.requests += len(np.unique(warp[here]))
        now = sum(self.found.again.values()) + len(self.order)
        sectors = np.unique(pairs[:, 1]).tolist()
        for sector in sectors:
            others = now - self.order[sector] if sector in self.order else None
            if others is not None:
                self.found.again[others] += 1
            self.found.asked += not past and (others is None or others > _OWN)
            self.order[sector] = now
        self.found.asked += len(sectors) if past else 0


def made(word: str) -> Callable[..., Value] | None:
    """What computes whole numbers as an instruction does; None for what makes others."""
    name, *how = word.split(".")
    kind = how[-1] if how else ""
    make = _ARITHMETIC.get(name)
    if kind == "pred":
        # All bits of a number stand for what holds.
        return make and (lambda *xs: make(*(x != 0 for x in xs)))
    if kind[:1] not in "bsu" or not kind[1:].isdigit():
        return None
    signed, bits = kind[0] != "u", int(kind[1:])
    if name == "setp":
        compare = _COMPARED.get(how[0])
        return compare and (lambda x, y: compare(_as(x, signed, bits), _as(y, signed, bits)))
    if name == "selp":
        return lambda x, y, where: np.where(where, x, y)
    if name == "cvt":
        to = how[-2]
        return (lambda x: _kept(_as(x, signed, bits), int(to[1:]))) if to[0] in "su" else None
    if name == "bfe":
        return lambda x, at, size: _field(_as(x, False, bits), at, size, signed)
    if make is None:
        return None
    wide = 2 * bits if "wide" in how else bits
    if "hi" in how:
        return lambda x, y: _kept(_as(x, signed, bits) * _as(y, signed, bits) >> bits, bits) if bits < 64 else x * 0
    if name in ("shl", "shr"):
        return lambda x, y: _kept(make(_as(x, signed, bits), np.minimum(y, 63).astype(np.uint8)), bits)
    if name == "mad":
        return lambda x, y, z: _kept(_as(x, signed, bits) * _as(y, signed, bits) + z, wide)
    return lambda *xs: _kept(make(*(_as(x, signed, bits) for x in xs)), wide)


def _as(x: Value, signed: bool, bits: int) -> Value:
    """A register's number with a sign or without."""
    return x if signed else x.astype(np.uint64) if bits == 64 else x & 2**bits - 1


def _kept(x: Value, bits: int) -> Value:
    """What a register keeps of a number: its last bits, with a sign."""
    x = x.astype(np.int64)
    return x if bits == 64 else (x + 2 ** (bits - 1) & 2**bits - 1) - 2 ** (bits - 1)


def _same(x: Value) -> Value:
    return x


def _field(x: Value, at: Value, size: Value, signed: bool) -> Value:
    """Some bits of a number, of which the last may be a sign."""
    part = x >> at & (1 << size) - 1
    return np.where(part >> size - 1 & 1, part - (1 << size), part) if signed else part


def _quotient(x: Value, y: Value) -> Value:
    """Cut off towards zero."""
    return np.sign(x) * np.sign(y) * (np.abs(x) // np.maximum(np.abs(y), 1))


_COMPARED = {word: getattr(operator, word) for word in ("eq", "ne", "lt", "le", "gt", "ge")}
_ARITHMETIC: dict[str, Callable[..., Value]] = {
    "mov": _same, "cvta": _same, "neg": operator.neg, "not": operator.inv, "abs": np.abs, "add": operator.add,
    "sub": operator.sub, "mul": operator.mul, "mad": operator.mul, "and": operator.and_, "or": operator.or_,
    "xor": operator.xor, "min": np.minimum, "max": np.maximum, "shl": operator.lshift, "shr": operator.rshift,
    "div": _quotient, "rem": lambda x, y: x - _quotient(x, y) * y,
}  # fmt: skip
