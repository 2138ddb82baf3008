"""PTX as data: instructions that can be executed one by one, and which of them decide what memory is accessed.

Integers are computed as a multiprocessor does. It does not know what programs are, nor what memory is.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

_LINE = re.compile(r"(?:@(!?)(%p\d+)\s+)?([a-z][\w.:]*)\s*(.*)")
_GROUP = re.compile(r"\{[^}]*\}|\[[^\]]*\]|[^,\s]+")
# Words that write no register.
_SILENT = ("st.", "bra", "bar.", "cp.", "ret", "red.", "fence", "mbarrier", "wgmma", "stmatrix")
# Words whose results are in memory.
_FETCHED = ("ld.", "elect", "atom", "ldmatrix")
Value = Any
"""Whole numbers [threads], or [1] where all threads have the same; None where they are not known."""


@dataclass(frozen=True)
class Instruction:
    """An instruction: its opcode, its operands in groups, and its predicate."""

    word: str
    groups: tuple[tuple[str, ...], ...]
    when: str = ""
    unless: bool = False

    @cached_property
    def writes(self) -> tuple[str, ...]:
        """Registers that it writes."""
        return () if self.word.startswith(_SILENT) or not self.groups else self.groups[0]

    @cached_property
    def reads(self) -> frozenset[str]:
        """Registers and literals that it reads."""
        return frozenset(name for group in self.groups[1 if self.writes else 0 :] for name in group)

    @cached_property
    def is_branch(self) -> bool:
        """Whether it is a branch."""
        return self.word.startswith("bra")

    @cached_property
    def is_access(self) -> bool:
        """Whether it accesses global memory."""
        return self.word.split(".")[1:2] == ["global"] or self.word.startswith(("cp.async.ca.", "cp.async.cg."))

    @cached_property
    def waits(self) -> bool:
        """Whether all outstanding loads have arrived once it is done."""
        return self.word.split(".")[0] == "bar" or self.word.startswith("mbarrier.try_wait")

    @cached_property
    def address(self) -> tuple[str, ...]:
        """Registers and literals whose sum is the address."""
        return self.groups[0 if self.word.startswith("st") else 1]

    @cached_property
    def expects(self) -> int | None:
        """Bytes that a bulk copy brings without addresses of threads; None of other instructions."""
        return int(self.groups[-1][-1]) if self.word.startswith("mbarrier.arrive.expect_tx") else None

    @cached_property
    def behind(self) -> int | None:
        """How many groups of copies may still be in flight when it is done; None of other instructions."""
        return int(self.groups[0][0]) if self.word.startswith("cp.async.wait_group") else None

    @cached_property
    def nbytes(self) -> int:
        """Bytes that a thread reads or writes."""
        word = self.word.split(".")
        if word[0] == "cp":
            return int(self.groups[2][0], 0)
        wide = next((int(one[1:]) for one in word if re.fullmatch(r"v\d", one)), 1)
        return wide * int(word[-1][1:]) // 8

    @cached_property
    def size(self) -> str:
        """The operand that says how many bytes of a copy are read; "" of other instructions."""
        return self.groups[3][0] if self.word.startswith(("cp.async.ca.", "cp.async.cg.")) and self.groups[3:] else ""

    @cached_property
    def parameter(self) -> int | None:
        """The number of the kernel's parameter that it loads, if it loads one."""
        return int(self.groups[1][0].rpartition("_")[2]) if self.word.startswith("ld.param") else None

    @cached_property
    def compute(self) -> Callable[..., Value] | None:
        """What computes its result from its operands; None for other results than integers, and for loads."""
        if len(self.writes) != 1 or self.word.startswith(_FETCHED):
            return None
        if self.word.startswith("shfl.sync.idx"):
            return _shuffle
        return semantics(self.word) if all(len(group) == 1 for group in self.groups[1:]) else None

    @cached_property
    def operands(self) -> tuple[str, ...]:
        """The operands of `compute`."""
        return self.groups[1] if self.word.startswith("shfl") else tuple(group[0] for group in self.groups[1:])

    @cached_property
    def acts(self) -> bool:
        """Whether it does anything but write registers."""
        waits = self.waits or self.expects is not None or self.behind is not None
        return waits or self.is_access or self.is_branch or self.word == "ret"

    @cached_property
    def decided_by(self) -> frozenset[str]:
        """Registers on which depends what it does besides writing registers."""
        return frozenset((*(self.address if self.is_access else ()), self.size, self.when))


@dataclass(frozen=True)
class Skippable:
    """Consecutive instructions on which no memory access and no branch depends: how many, and the registers they read.
    """

    num: int
    reads: frozenset[str]


@dataclass(frozen=True)
class PtxProgram:
    """A kernel's PTX.

    lines    the number of instructions
    items    instructions that decide on memory accesses and branches, and skippable ones between them
    labels   the item before which each label stands
    numbers  literals
    """

    lines: int
    items: tuple[Instruction | Skippable, ...]
    labels: Mapping[str, int]
    numbers: Mapping[str, Value]


@lru_cache(maxsize=64)
def parse_ptx(ptx: str) -> PtxProgram:
    """The kernel in a PTX file that Triton wrote."""
    steps: list[Instruction] = []
    labels: dict[str, int] = {}
    for line in _lines(ptx):
        if line.endswith(":"):
            labels[line[:-1]] = len(steps)
        elif found := _LINE.fullmatch(line):
            no, when, word, rest = found.groups()
            groups = tuple(tuple(re.findall(r"[^\s{},\[\]+]+", one)) for one in _GROUP.findall(rest))
            steps.append(Instruction(word, groups, when or "", bool(no)))
    items, places = _items(steps, set(labels.values()))
    words = {name for step in steps for group in step.groups for name in group}
    numbers = {name: number for name in words if (number := _number(name)) is not None}
    return PtxProgram(len(steps), items, {name: places[at] for name, at in labels.items()}, numbers)


def _lines(ptx: str) -> Iterator[str]:
    for line in ptx[ptx.index("{", ptx.index(".reqntid")) + 1 :].splitlines():
        bare = line.split("//")[0].strip().rstrip(";").strip()
        if bare and bare[0] not in ".{}":
            yield bare


def _number(name: str) -> Value:
    try:
        return None if name.startswith("%") else np.array([int(name, 0)])
    except (ValueError, OverflowError):
        return None


def _items(steps: Sequence[Instruction], labelled: set[int]) -> tuple[tuple[Instruction | Skippable, ...], list[int]]:
    """Instructions, skippable ones joined, and for each instruction the number of its item."""
    decisive = _decisive(steps)
    items: list[Instruction | Skippable] = []
    places: list[int] = []
    for at, step in enumerate(steps):
        decides = step.acts or not decisive.isdisjoint(step.writes)
        last = items[-1] if items and at not in labelled else None
        if decides:
            items.append(step)
        elif isinstance(last, Skippable):
            items[-1] = Skippable(last.num + 1, last.reads | step.reads)
        else:
            items.append(Skippable(1, step.reads))
        places.append(len(items) - 1)
    return tuple(items), [*places, len(items)]


def _decisive(steps: Sequence[Instruction]) -> set[str]:
    """Registers on which any effect besides writing registers depends."""
    made_of: dict[str, set[str]] = {}
    for step in steps:
        for name in step.writes:
            # Where a predicate does not hold, what was there stays.
            made_of.setdefault(name, set()).update(step.reads, step.decided_by)
    found = set[str]()
    waiting = [name for step in steps if step.acts for name in step.decided_by]
    while waiting:
        if (name := waiting.pop()) not in found:
            found.add(name)
            waiting += made_of.get(name, ())
    return found


def semantics(word: str) -> Callable[..., Value] | None:
    """What computes integers as an instruction of this opcode does; None for other instructions."""
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
        return (lambda x: _truncated(_as(x, signed, bits), int(to[1:]))) if to[0] in "su" else None
    if name == "bfe":
        return lambda x, at, size: _bit_field(_as(x, False, bits), at, size, signed)
    if make is None:
        return None
    wide = 2 * bits if "wide" in how else bits
    if "hi" in how:
        return lambda x, y: (
            _truncated(_as(x, signed, bits) * _as(y, signed, bits) >> bits, bits) if bits < 64 else x * 0
        )
    if name in ("shl", "shr"):
        return lambda x, y: _truncated(make(_as(x, signed, bits), np.minimum(y, 63).astype(np.uint8)), bits)
    if name == "mad":
        return lambda x, y, z: _truncated(_as(x, signed, bits) * _as(y, signed, bits) + z, wide)
    return lambda *xs: _truncated(make(*(_as(x, signed, bits) for x in xs)), wide)


def _as(x: Value, signed: bool, bits: int) -> Value:
    """A register's number as signed or unsigned."""
    return x if signed else x.astype(np.uint64) if bits == 64 else x & 2**bits - 1


def _truncated(x: Value, bits: int) -> Value:
    """A number truncated to a register's bits, signed."""
    x = x.astype(np.int64)
    return x if bits == 64 else (x + 2 ** (bits - 1) & 2**bits - 1) - 2 ** (bits - 1)


def _shuffle(value: Value) -> Value:
    """The value of each warp's first thread, in all of its threads."""
    return value if value.size == 1 else np.repeat(value[::32], 32)


def _identity(x: Value) -> Value:
    return x


def _bit_field(x: Value, at: Value, size: Value, signed: bool) -> Value:
    """A field of bits, sign-extended if signed."""
    part = x >> at & (1 << size) - 1
    return np.where(part >> size - 1 & 1, part - (1 << size), part) if signed else part


def _quotient(x: Value, y: Value) -> Value:
    """Integer division, truncated towards zero."""
    return np.sign(x) * np.sign(y) * (np.abs(x) // np.maximum(np.abs(y), 1))


_COMPARED = {word: getattr(operator, word) for word in ("eq", "ne", "lt", "le", "gt", "ge")}
_ARITHMETIC: dict[str, Callable[..., Value]] = {
    "mov": _identity, "cvta": _identity, "neg": operator.neg, "not": operator.inv, "abs": np.abs, "add": operator.add,
    "sub": operator.sub, "mul": operator.mul, "mad": operator.mul, "and": operator.and_, "or": operator.or_,
    "xor": operator.xor, "min": np.minimum, "max": np.maximum, "shl": operator.lshift, "shr": operator.rshift,
    "div": _quotient, "rem": lambda x, y: x - _quotient(x, y) * y,
}  # fmt: skip
