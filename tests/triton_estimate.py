"""How long kernels would take, told from what was compiled: `python -m tests.triton_estimate [KIND ...]`.

For each case that `make gpu` times, by its kind, and for each form on shapes of networks (`forms`): what the default
setting would take on an H200, what of that binds it, and what the fastest setting took there, where that was measured.
The rates were fitted to those measurements; on other chips they are guesses. It does not know whose turn it is where
several things are waited for at once.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np

from benchmarks.gpu import cases
from benchmarks.gpu.calls import Call, calls
from castile.kernels.choice import wanted_of
from castile.kernels.triton.launch import Blocks, Launch, Plan
from castile.kernels.triton.views import View
from tests.kernel_cases import Case
from tests.triton_arrays import laid
from tests.triton_cases import NAMES, fake_plan, has_network_shapes, large, launches, plan
from tests.triton_chips import CHIPS, WARPS, Chip, Compiled, compiled, parameters
from tests.triton_counted import SECTOR, Counted, counted, text_of

FORMS = "forms"
_H200 = 90
MEASURED = Path(__file__).resolve().parents[1] / "benchmarks/results/h200-figures.json"
# Of what a data sheet promises: of memory, by a copy; of tensor cores, by cuBLAS.
_MEMORY, _TENSOR = 0.894, 0.78
# Bytes that a processor gets of the cache that all share, a cycle, and how much of that cache serves.
_SHARED_BYTES, _SERVES = 50, 0.5
# Cycles from an instruction of a warp to the next, with few others beside it.
_NEXT = 5
_LATENCY = 0.3e-6
# Of what memory gives, how much longer a program writes its sums, as all that began together do so together.
_ENDING = 1.5
# A sector of which some bytes are written is read first, and memory has twice a sector at once.
_PARTLY = 3
_LAUNCH = 1.5e-6
_FEW = 8
# How many programs of a launch are counted: they may differ.
_PROGRAMS = 3


@dataclass(frozen=True)
class Estimate:
    """Seconds of a launch: at least, what each of the things that it waits for would take alone, and those in which
    programs write sums, and no other is there to go on.
    """

    launch: Launch
    made: Compiled
    least: float
    alone: dict[str, float]
    ending: float

    @property
    def seconds(self) -> float:
        """Of all together: what takes long hides most of what does not."""
        return _LAUNCH + float(np.linalg.norm(list(self.alone.values()), 3)) + self.ending

    @property
    def binds(self) -> str:
        """What takes longest."""
        return max(self.alone, key=lambda word: self.alone[word])


def moved_bytes(launch: Launch) -> int:
    """Bytes that a launch has to move: every array and Room of its arguments once, and no element twice."""
    if launch.nbytes is not None:
        return launch.nbytes
    views = [arg for arg in launch.args if isinstance(arg, View)]
    seen = sum(_elements(one) * np.dtype(one.array.dtype).itemsize for one in views)
    plain = [arg for arg in launch.args if not isinstance(arg, View) and hasattr(arg, "strides")]
    return seen + sum(x.size * x.itemsize for x in plain)


def _elements(one: View) -> int:
    """Elements that are seen, each once: what is seen in several places lies within the span."""
    return min(one.span, prod(size for size, step in zip(one.shape, one.steps, strict=True) if step))


def least_seconds(launch: Launch, chip: int) -> float:
    """What memory or arithmetic alone would take, whichever is longer."""
    about = CHIPS[chip]
    return max(moved_bytes(launch) / about.bytes_per_second, launch.flops / _rate(launch, about))


def _rate(launch: Launch, about: Chip) -> float:
    if not launch.tensor_cores:
        return about.fp32_flops_per_second
    # Sums in parts are written in float32, whatever is multiplied.
    inner = (arg.array if isinstance(arg, View | Blocks) else arg for arg in launch.args)
    half = any(np.dtype(one.dtype).itemsize == 2 for one in inner if hasattr(one, "dtype"))
    return about.bf16_flops_per_second if half else about.tf32_flops_per_second


def estimate(launch: Launch, made: Compiled) -> Estimate:
    """What a launch would take on the chip that it was compiled for."""
    about = CHIPS[made.chip]
    beside = max(1, made.warps_at_once // made.warps)
    grid, held = _grid(launch, about), about.processors * beside
    num = prod(grid)
    some = [_program(launch, made, grid, number) for number in _spread(num)]

    def each(word: str) -> float:
        return float(np.mean([getattr(one, word) for one in some]))

    # What the chip has several words for where the text has one, and none where that has some.
    instructions = each("instructions") * made.instructions / max(1, len(text_of(made.ptx)[0]))
    again = float(np.mean([lost(one, min(num, held), moved_bytes(launch), about) for one in some]))
    moved = moved_bytes(launch) + num * SECTOR * (again + _PARTLY * each("partly"))
    waves, cycle = num / held, 1 / about.hertz
    arithmetic = launch.flops / _rate(launch, about) / _TENSOR
    # One that has a processor to itself has all of its tensor cores.
    turns = num / about.processors
    alone = {
        "memory": moved / about.bytes_per_second / _MEMORY,
        "cache": num * SECTOR * each("asked") / (about.processors * _SHARED_BYTES) * cycle,
        "requests": num * each("requests") / about.processors * cycle,
        "instructions": num * instructions / (4 * about.processors) * cycle,
        "waiting": _whole(waves) * (instructions / made.warps * _NEXT * cycle + each("turns") * _LATENCY),
        "arithmetic": arithmetic * (_whole(turns) / turns if launch.tensor_cores else 1.0),
    }
    # The tensor cores of one that has a processor to itself wait until all is written.
    ending = _ENDING * num * SECTOR * each("wrote") / about.bytes_per_second / beside if launch.tensor_cores else 0.0
    return Estimate(launch, made, least_seconds(launch, made.chip), alone, ending)


def _whole(waves: float) -> float:
    """Where there are few waves the last takes as long as a full one."""
    return float(np.ceil(waves)) if waves < _FEW else waves


def _grid(launch: Launch, about: Chip) -> tuple[int, int, int]:
    first, second, third = (*launch.grid, 1, 1)[:3]
    return min(first, about.processors) if launch.walks else first, second, third


def _spread(num: int) -> list[int]:
    """Some of so many programs, none of them at the edge where there are many."""
    return sorted({(2 * n + 1) * num // (2 * _PROGRAMS) for n in range(_PROGRAMS)})


def _program(launch: Launch, made: Compiled, grid: tuple[int, int, int], number: int) -> Counted:
    place = (number % grid[0], number // grid[0] % grid[1], number // grid[0] // grid[1])
    params = [None if one is None else np.array([one]) for one in parameters(launch, made.chip)]
    return counted(made.ptx, 32 * made.warps, place, grid, params)


def lost(one: Counted, held: int, nbytes: int, about: Chip) -> float:
    """Sectors that one of so many programs at once reads again when the cache has lost them; all of them together
    touch so many bytes.
    """
    room = about.cache_bytes * _SERVES / SECTOR
    return sum(num for others, num in one.again.items() if min(others * held, nbytes / SECTOR) > room)


def told(launch: Launch, made: Compiled) -> str:
    """A line on what a launch takes of its chip, and how long at least."""
    waves = prod(launch.grid) * made.warps / (CHIPS[made.chip].processors * max(made.warps, made.warps_at_once))
    return (
        f"sm_{made.chip} {made.name:24} {moved_bytes(launch) / 1e6:9.2f} MB {launch.flops / 1e9:9.2f} GF "
        f"{least_seconds(launch, made.chip) * 1e6:8.1f} us at least; {made.registers:3} registers, "
        f"{made.shared / 1024:5.1f} KB, {made.warps_at_once:2} of {WARPS} warps, {waves:7.2f} waves"
    )


def of_call(call: Call) -> list[Estimate]:
    """Of each launch of the default setting of a call, on an H200."""
    known = wanted_of(call.named)
    outs, args = (tuple(map(laid, xs)) for xs in (known.outs, known.args))
    return _of(call.kernel, plan(call.kernel, outs, (args, call.params)))


def of_case(name: str, case: Case) -> list[Estimate]:
    """The same of a kernel on arrays that are there or not."""
    return _of(name, fake_plan(name, case))


def _of(name: str, made: Plan | None) -> list[Estimate]:
    assert made is not None, f"{name} falls back to its definition"
    return [estimate(launch, compiled(launch, _H200)) for launch in launches(made)]


def measured() -> dict[str, float]:
    """Seconds of the fastest setting, by the case's name."""
    rows = json.loads(MEASURED.read_text(encoding="utf-8"))["rows"]
    return {row["name"]: row["seconds"] for row in rows if "seconds" in row}


def lines(kind: str) -> Iterator[tuple[str, list[Estimate]]]:
    """What a kind has, in words, and the estimates of its launches."""
    if kind == FORMS:
        for name in filter(has_network_shapes, NAMES):
            for args, params in large(name, "bfloat16"):
                shapes = " ".join(str(list(x.shape)) if hasattr(x, "shape") else str(x) for x in args[:4])
                yield f"{name} {shapes}", of_case(name, (args, params))
    else:
        for case in getattr(cases, kind)():
            yield case.name, [one for call in calls(case) for one in of_call(call)]


def main(kinds: list[str]) -> None:
    """Print a line a case."""
    took = measured()
    for name, found in (line for kind in kinds for line in lines(kind)):
        seconds, least = sum(one.seconds for one in found), sum(one.least for one in found)
        longest = max(found, key=lambda one: one.seconds, default=None)
        binds = f"({longest.made.name}: {longest.binds})" if longest else ""
        beside = f"{took[name] * 1e6:9.1f} measured {seconds / took[name]:5.2f}" if name in took else ""
        print(f"{name[:70]:70} {least * 1e6:8.1f} us at least {seconds * 1e6:9.1f} likely {beside} {binds}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:] or [*cases.KERNELS, FORMS])
