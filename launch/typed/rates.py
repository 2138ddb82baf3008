"""Learning-rate schedules as data: `cosine:warmup=100,floor=0.1` is the function cosine of this file with settings, and
`mine.py:late=0.5` the function `share` of a Python file of the user's own.

A schedule gives the share of the peak at a step of a run of known length: a pure function, so that a resumed run goes
on as the unbroken one. It does not know optimizers, nor who asks.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from math import cos, isfinite, pi, sqrt
from typing import Any

from castile.launch.typed import settings, theirs
from castile.runtime.strict import suggestion


def constant(step: int, num_steps: int, *, warmup: float = 0.0) -> float:
    """The peak from the end of the warm-up on."""
    return _warm(step, num_steps, warmup)


def linear(step: int, num_steps: int, *, warmup: float = 0.0, floor: float = 0.0) -> float:
    """A straight line from the peak to the floor, which the last step has."""
    way = _way(step, _last_warm(num_steps, warmup), num_steps)
    return _warm(step, num_steps, warmup) * _between(floor, 1 - way)


def cosine(step: int, num_steps: int, *, warmup: float = 0.0, floor: float = 0.0) -> float:
    """Half a period of the cosine from the peak to the floor (Loshchilov and Hutter, 2017, without restarts)."""
    way = _way(step, _last_warm(num_steps, warmup), num_steps)
    return _warm(step, num_steps, warmup) * _between(floor, (1 + cos(pi * way)) / 2)


def wsd(step: int, num_steps: int, *, warmup: float = 0.0, decay: float = 0.2, floor: float = 0.0) -> float:
    """Warm-up, the peak, and over the last `decay` steps 1 - sqrt down to the floor (Haegele et al., 2024)."""
    first = max(num_steps - 1 - _steps(decay, num_steps), _last_warm(num_steps, warmup))
    way = _way(step, first, num_steps)
    return _warm(step, num_steps, warmup) * _between(floor, 1 - sqrt(way))


@dataclass(frozen=True)
class Schedule:
    """A schedule that the user named, with settings; `rates` makes it a function of the step."""

    name: str
    function: Callable[..., float]
    settings: Mapping[str, float]

    def rates(self, peak: float, num_steps: int) -> Callable[[int], float]:
        """The learning rate of each step 0 <= step < num_steps of a run of that length."""
        share = partial(self.function, num_steps=num_steps, **self.settings)
        return lambda step: peak * share(step)


def available() -> tuple[str, ...]:
    """The names of all schedules: the functions of this file of a step and a number of steps."""
    return tuple(sorted(_functions()))


def parse(text: str) -> Schedule:
    """The schedule of NAME or NAME:key=value,...: warmup and decay in steps, or below 1 as a share of the run.

    Raises ValueError in one sentence for an unknown name or setting, for a value that makes no sense, and for a file
    without such a function.
    """
    name, given = settings.split(text)
    if file(text):
        return _theirs(name, given)
    known = _functions()
    if name not in known:
        among = ", ".join(available())
        near = suggestion(name, list(known))
        raise ValueError(f"no schedule {name!r}{near}; there are {among}, or name a Python file with share()")
    values = settings.typed(known[name], given, f"schedule {name}", reserved=("step", "num_steps"))
    for key, value in values.items():
        if value < 0:
            raise ValueError(f"schedule {name}: {key} should be a number of at least 0, got {value:g}")
        if key == "floor" and value > 1:
            raise ValueError(f"schedule {name}: floor is a share of the peak and should be at most 1, got {value:g}")
        if key != "floor" and value > 1 and value != int(value):
            raise ValueError(f"schedule {name}: {key} should be whole steps or a share below 1, got {value:g}")
    return Schedule(name, known[name], values)


def file(text: str) -> str:
    """The Python file that a schedule is, "" where it is none."""
    name, _ = settings.split(text)
    return name if name.endswith(".py") else ""


def _theirs(path: str, given: Mapping[str, str]) -> Schedule:
    gives = "share(step, num_steps), which gives the share of the peak that a step has"
    function = theirs.module(path, "schedule file", gives).share
    values = settings.typed(function, given, f"schedule {path}", reserved=("step", "num_steps"))
    return Schedule(path, partial(_share, path, function), values)


def _share(path: str, function: Callable[..., Any], step: int, num_steps: int, **given: Any) -> float:
    """What the user's function says. Raises ValueError where it fails, or gives what no share can be."""
    doing = f"schedule file {path}: share({step}, {num_steps})"
    with theirs.running(path, doing):
        found = float(function(step, num_steps, **given))
    if not (isfinite(found) and found >= 0):
        raise ValueError(f"{doing} gives {found:g}: a share of the peak is a finite number of at least 0")
    return found


def _functions() -> dict[str, Callable[..., Any]]:
    found = {name: f for name, f in globals().items() if inspect.isfunction(f) and not name.startswith("_")}
    return {n: f for n, f in found.items() if [*inspect.signature(f).parameters][:2] == ["step", "num_steps"]}


def _steps(given: float, num_steps: int) -> int:
    """A length in steps: a number below 1 is a share of the run."""
    return round(given * num_steps) if given < 1 else int(given)


def _last_warm(num_steps: int, warmup: float) -> int:
    """The step that first has the peak."""
    return max(_steps(warmup, num_steps) - 1, 0)


def _warm(step: int, num_steps: int, warmup: float) -> float:
    """A straight line to 1: the first of w steps has 1 / w, the last has 1."""
    return min(1.0, (step + 1) / max(_steps(warmup, num_steps), 1))


def _way(step: int, first: int, num_steps: int) -> float:
    """How much of the way from step `first` to the last is behind: from 0 to 1."""
    last = num_steps - 1
    return min(1.0, max(0, step - first) / (last - first)) if last > first else 0.0


def _between(floor: float, share: float) -> float:
    # so that the ends are met exactly, whatever is rounded between them
    return floor + (1 - floor) * share if share < 1 else 1.0
