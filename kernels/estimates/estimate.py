"""How long kernels take, from code that was compiled for a chip that need not be there.

The rates were fitted to what an H200 took for 94 settings of products and convolutions (decision 0089); for other chips
they are guesses. It does not know in which order a program waits for several things at once.
"""

import inspect
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from castile.kernels import choice
from castile.kernels.estimates.chips import Chip
from castile.kernels.estimates.compiled import Compiled, compiled, parameters
from castile.kernels.estimates.counting import Counts, count_program
from castile.kernels.estimates.ptx import parse_ptx
from castile.kernels.estimates.sectors import SECTOR
from castile.kernels.table import forms, given
from castile.kernels.triton.launch import BlockDescriptor, Launch, LaunchPlan
from castile.kernels.triton.views import View
from castile.kernels.tuning import dataless, operands

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
# Which programs of a launch are counted, as they may differ: where they lie in so many, and these among all.
_FIFTHS, _PERIOD = ((1, 2), (2, 4), (3, 1), (4, 3)), 256


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


def least_seconds(launch: Launch, about: Chip) -> float:
    """What memory or arithmetic alone would take, whichever is longer."""
    return max(moved_bytes(launch) / about.bytes_per_second, launch.flops / _rate(launch, about))


def _rate(launch: Launch, about: Chip) -> float:
    if not launch.tensor_cores:
        return about.fp32_flops_per_second
    # Sums in parts are written in float32, whatever is multiplied.
    inner = (arg.array if isinstance(arg, View | BlockDescriptor) else arg for arg in launch.args)
    half = any(np.dtype(one.dtype).itemsize == 2 for one in inner if hasattr(one, "dtype"))
    return about.bf16_flops_per_second if half else about.tf32_flops_per_second


def estimate(launch: Launch, made: Compiled, about: Chip) -> Estimate:
    """What a launch would take on a chip of the capability that it was compiled for."""
    beside = max(1, made.warps_at_once // made.warps)
    grid, held = _grid(launch, about), about.processors * beside
    num = prod(grid)
    some = [_program(launch, made, grid, number) for number in _spread(num)]

    def each(word: str) -> float:
        return float(np.mean([getattr(one, word) for one in some]))

    # What the chip has several words for where the text has one, and none where that has some.
    instructions = each("instructions") * made.instructions / max(1, parse_ptx(made.ptx).lines)
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
    return Estimate(launch, made, least_seconds(launch, about), alone, ending)


def _whole(waves: float) -> float:
    """Where there are few waves the last takes as long as a full one."""
    return float(np.ceil(waves)) if waves < _FEW else waves


def _grid(launch: Launch, about: Chip) -> tuple[int, int, int]:
    first, second, third = (*launch.grid, 1, 1)[:3]
    return min(first, about.processors) if launch.is_persistent else first, second, third


def _spread(num: int) -> list[int]:
    """Some of so many programs, at fifths of all of them and of powers of two: those whose numbers leave the same rest
    by such a one often do as much, as blocks of causal attention do.
    """
    low = min(_PERIOD, 1 << num.bit_length() - 1)
    # Fifths that are doubled are fifths again, so that rests by smaller powers lie at all of them too.
    return sorted({num // low * far // 5 * low + low * near // 5 for near, far in _FIFTHS})


def _program(launch: Launch, made: Compiled, grid: tuple[int, int, int], number: int) -> Counts:
    place = (number % grid[0], number // grid[0] % grid[1], number // grid[0] // grid[1])
    params = [None if one is None else np.array([one]) for one in parameters(launch, made.chip)]
    return count_program(made.ptx, 32 * made.warps, place, grid, params)


def lost(one: Counts, held: int, nbytes: int, about: Chip) -> float:
    """Sectors that one of so many programs at once reads again when the cache has lost them; all of them together
    touch so many bytes.
    """
    room = about.cache_bytes * _SERVES / SECTOR
    return sum(num for others, num in one.again.items() if min(others * held, nbytes / SECTOR) > room)


def of_call(which: str, about: Chip) -> list[Estimate]:
    """Of each launch of the default setting of the call of that name; none where it is left to its definition."""
    call = choice.call_of(which)
    if call.kernel not in forms("triton"):
        return []
    outs, args = operands(call, dataless)
    made = plan(call.kernel, outs, args, call.params, call.accumulate)
    return [] if made is None else of_plan(made, about)


def of_plan(made: LaunchPlan, about: Chip) -> list[Estimate]:
    """Of each launch of the likeliest setting."""
    return [estimate(one, compiled(one, about.capability), about) for one in made.launches(made.settings[0])]


def plan(
    name: str, outs: tuple[Any, ...], args: tuple[Any, ...], params: dict[str, Any], accumulate: bool = False
) -> LaunchPlan | None:
    """What a form says of its work, before anything is bound; None where it leaves that to the definition."""
    found: LaunchPlan | None = given(inspect.unwrap(forms("triton")[name]), args, outs, params, None, accumulate)()
    return found
