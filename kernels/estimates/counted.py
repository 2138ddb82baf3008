"""What one program of a kernel does, counted in its compiled text: instructions, bytes that it asks for, and waits.

Whole numbers of all of its threads are worked out as a processor would, which is enough to follow loops and addresses;
what is fetched from memory and what is made of it stays unknown, and no branch on it is taken. It knows neither chips
nor how long anything takes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from castile.kernels.estimates.running import Run
from castile.kernels.estimates.text import text_of
from castile.kernels.estimates.turns import Turns

# A program of which more has to be worked out is given up.
_MOST = 1_000_000


@dataclass
class Counted:
    """What a program did.

    instructions  of all its warps
    turns         how often it waited for what it had asked for before; waits that fetching ahead shortens count less
    requests      of a warp for memory
    asked         sectors that it asked of the cache that all share: not those that its processor still had
    touched       different sectors that it read or wrote
    wrote         different sectors that it wrote
    partly        sectors of which it wrote some bytes but not all
    again         sectors that it touched once more, by how many others it had touched in between
    """

    instructions: int = 0
    turns: float = 0.0
    requests: int = 0
    asked: int = 0
    touched: int = 0
    wrote: int = 0
    partly: int = 0
    again: Counter[int] = field(default_factory=Counter)


def counted(ptx: str, threads: int, program: Sequence[int], programs: Sequence[int], params: Sequence[Any]) -> Counted:
    """What the program of that number of so many does, given what its parameters are: None where that is not known.

    Raises ValueError where it does not end within a million lines that have to be worked out.
    """
    run, turns = Run(text_of(ptx), threads, program, programs, params), Turns()
    for _ in range(_MOST):
        if run.is_over:
            run.waits()
            return _counted(run.tally, run.memory.tally)
        run.goes_on()
        if run.came_back:
            run = turns.leapt(run)
    raise ValueError("the program does not end")


def _counted(did: Mapping[Any, int], touched: Mapping[Any, int]) -> Counted:
    return Counted(
        did["instructions"],
        sum(num / (1 + word[1]) for word, num in did.items() if word[0] == "waits"),
        touched["requests"],
        touched["asked"],
        touched["touched"],
        touched["wrote"],
        touched["partly"],
        Counter({word[1]: num for word, num in touched.items() if word[0] == "again"}),
    )
