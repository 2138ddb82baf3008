"""An interpreter of PTX, for one program: its registers and what it has done so far.

It does not know which iterations of loops repeat, nor how its counts are used.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from copy import copy
from typing import Any

import numpy as np

from castile.kernels.estimates.ptx import Instruction, PtxProgram, Skippable, Value
from castile.kernels.estimates.sectors import Memory, Touch

_WARP = 32
_TRUE = np.array([True])


class Interpreter:
    """The registers of a program's threads while its lines are executed.

    position     the item of the program that comes next
    registers    registers whose value is known, by name
    fetching     registers that wait for memory
    tally        instructions, and by ("waits", num) waits with up to num groups of copies still in flight
    jumped_back  whether the last item was a branch to an earlier one
    trace        what was compared (the difference of both sides) and touched since it was cleared
    """

    def __init__(
        self, text: PtxProgram, threads: int, program: Sequence[int], programs: Sequence[int], params: Sequence[Value]
    ) -> None:
        self.text, self.threads, self.params = text, threads, params
        self.num_warps, self.warp = -(-threads // _WARP), np.arange(threads) // _WARP
        self.position = 0
        self.registers: dict[str, Value] = {**text.numbers, "%tid.x": np.arange(threads)}
        for axis, number, size in zip("xyz", program, programs, strict=True):
            self.registers |= {f"%ctaid.{axis}": np.array([number]), f"%nctaid.{axis}": np.array([size])}
        self.memory, self.tally = Memory(), Counter[Any]()
        self.fetching: set[str] = set()
        # Whether any of what is fetched was wanted since the last time it was waited for.
        self.wanted = False
        self.jumped_back = False
        self.trace: list[Touch | Value] = []

    def copied(self) -> Interpreter:
        """A copy that continues independently, with an empty trace."""
        other = copy(self)
        other.registers, other.tally, other.memory = self.registers.copy(), self.tally.copy(), self.memory.copied()
        other.fetching, other.trace = self.fetching.copy(), []
        return other

    @property
    def is_over(self) -> bool:
        """Whether the program has ended."""
        if self.position >= len(self.text.items):
            return True
        item = self.text.items[self.position]
        return isinstance(item, Instruction) and item.word == "ret"

    def step(self) -> None:
        """Execute the next item."""
        here, item = self.position, self.text.items[self.position]
        self.position += 1
        self.jumped_back = False
        self.tally["instructions"] += self.num_warps * (item.num if isinstance(item, Skippable) else 1)
        if isinstance(item, Instruction) and item.is_branch:
            self.wait()
            to = self.text.labels[item.groups[0][0]]
            if self._is_taken(item, to <= here):
                self.position, self.jumped_back = to, to <= here
            return
        self.wanted = self.wanted or not self.fetching.isdisjoint(item.reads)
        if isinstance(item, Instruction):
            self._execute(item)

    def wait(self) -> None:
        """Wait for all outstanding loads, if any of their results was used."""
        if self.wanted:
            self.tally["waits", 0] += 1
            self.fetching.clear()
        self.wanted = False

    def _predicate(self, step: Instruction) -> Value:
        """The threads in which an instruction runs; None where that is not known."""
        if not step.when:
            return _TRUE
        met = self.registers.get(step.when)
        return None if met is None else ~met if step.unless else met

    def _is_taken(self, step: Instruction, back: bool) -> bool:
        """Whether a branch is taken: backwards if any thread takes it, forwards if all do."""
        met = self._predicate(step)
        return met is not None and bool(met.any() if back else met.all())

    def _execute(self, step: Instruction) -> None:
        """Execute one instruction that is no branch."""
        met = self._predicate(step)
        if step.is_access:
            self._access(step, met)
        elif step.expects is not None:
            self.memory.fetched(step.expects if met is None or met.any() else 0)
        elif step.waits:
            self.wait()
        elif step.behind is not None:
            self.tally["waits", step.behind] += 1
        value = self._result(step)
        for name in step.writes:
            self.registers[name] = value if met is None or met.all() else _select(met, value, self.registers.get(name))

    def _values(self, names: Sequence[str]) -> list[Value] | None:
        """The values of registers and literals; None where one is not known."""
        values = [self.registers.get(name) for name in names]
        return None if any(value is None for value in values) else values

    def _result(self, step: Instruction) -> Value:
        if step.parameter is not None:
            return self.params[step.parameter]
        if step.compute is None or (values := self._values(step.operands)) is None:
            return None
        if step.word.startswith("setp"):
            self.trace.append(values[0] - values[1])
        return step.compute(*values)

    def _access(self, step: Instruction, met: Value) -> None:
        """Read or write memory."""
        if step.word.startswith("ld"):
            self.fetching |= set(step.writes)
        if step.size and (here := self.registers.get(step.size)) is not None and met is not None:
            met = met & (here > 0)
        if met is not None and not met.any():
            return
        parts = self._values(step.address)
        if parts is None:
            self.memory.fetched(step.nbytes * self.threads)
            return
        here = np.broadcast_to(_TRUE if met is None else met, (self.threads,))
        addresses = np.broadcast_to(sum(parts), (self.threads,))
        writes, past = step.word.startswith("st"), step.word.startswith("cp.async.cg.")
        self.trace.append(self.memory.asked(addresses[here], self.warp[here], step.nbytes, writes, past))


def _select(met: Value, value: Value, old: Value) -> Value:
    """`value` where a predicate holds, `old` elsewhere."""
    return old if not met.any() else None if value is None or old is None else np.where(met, value, old)
