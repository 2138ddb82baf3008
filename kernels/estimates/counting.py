"""Counts what one program of a compiled kernel does: instructions, bytes that it requests, and waits for memory.

Integers of all of its threads are computed as a multiprocessor would, which is enough to follow loops and addresses;
values that are loaded, and what is computed from them, stay unknown, and no branch on them is taken. It knows neither
chips nor how long anything takes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from castile.kernels.estimates.loop_skipping import LoopSkipper
from castile.kernels.estimates.ptx import parse_ptx
from castile.kernels.estimates.ptx_interpreter import Interpreter

# A program of which more has to be worked out is given up.
_MOST = 1_000_000


@dataclass
class Counts:
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


def count_program(
    ptx: str, threads: int, program: Sequence[int], programs: Sequence[int], params: Sequence[Any]
) -> Counts:
    """What a program does.

    program, programs  its number and how many there are, along three axes
    params             the kernel's arguments, None where one is not known
    Raises ValueError where it does not end within a million executed lines.
    """
    run, turns = Interpreter(parse_ptx(ptx), threads, program, programs, params), LoopSkipper()
    for _ in range(_MOST):
        if run.is_over:
            run.wait()
            return _counts(run.tally, run.memory.tally)
        run.step()
        if run.jumped_back:
            run = turns.skip_ahead(run)
    raise ValueError("the program does not end")


def _counts(did: Mapping[Any, int], touched: Mapping[Any, int]) -> Counts:
    return Counts(
        did["instructions"],
        sum(num / (1 + word[1]) for word, num in did.items() if word[0] == "waits"),
        touched["requests"],
        touched["asked"],
        touched["touched"],
        touched["wrote"],
        touched["partly"],
        Counter({word[1]: num for word, num in touched.items() if word[0] == "again"}),
    )
