"""The patterns of Task Bench: which points of a step there are, and which of the step before each one reads.

They are those of Slaughter et al., "Task Bench: A Parameterized Benchmark for Evaluating Parallel Runtime Performance",
SC 2020, with the settings of its program. It does not know what a task does, nor who runs it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

# How many points a point of `nearest` and of `spread` reads, and after how many steps `spread` repeats.
RADIX = 5
SPREAD_PERIOD = 3


@dataclass(frozen=True)
class Pattern:
    """Tasks (step, point): `num_steps` steps of at most `width` points, a power of two where the pattern is `fft`.

    Raises ValueError for an unknown name, or a pattern too small to be one.
    """

    name: str
    width: int
    num_steps: int

    def __post_init__(self) -> None:
        if self.name not in NAMES:
            raise ValueError(f"no pattern {self.name!r}: choose from {', '.join(NAMES)}")
        if self.width < 2 or self.num_steps < 2 * self.width:
            raise ValueError(f"width {self.width} with {self.num_steps} steps: take a width of at least 2, "
                             "and at least twice as many steps")  # fmt: skip

    def points(self, step: int) -> range:
        """The points of a step."""
        if self.name == "tree":
            return range(min(self.width, 2**step))
        if self.name == "sweep":
            return range(max(0, step + self.width - self.num_steps), min(self.width, step + 1))
        return range(self.width)

    def reads(self, step: int, point: int) -> tuple[int, ...]:
        """The points of the step before that a point reads, ascending; none in step 0."""
        if step == 0:
            return ()
        before = self.points(step - 1)
        return tuple(sorted({p for p in _READS[self.name](self, step, point) if p in before}))

    @property
    def num_tasks(self) -> int:
        return sum(len(self.points(step)) for step in range(self.num_steps))


def owner(point: int, width: int, num_procs: int) -> int:
    """The processor of a point: runs of neighbours, as even as can be."""
    return point * num_procs // width


def _stencil(graph: Pattern, step: int, point: int) -> tuple[int, ...]:
    return (point - 1, point, point + 1)


def _fft(graph: Pattern, step: int, point: int) -> tuple[int, ...]:
    num_levels = (graph.width - 1).bit_length()
    reach = 2 ** ((step + num_levels - 1) % num_levels)
    return (point - reach, point, point + reach)


def _tree(graph: Pattern, step: int, point: int) -> tuple[int, ...]:
    return (point // 2,)


def _nearest(graph: Pattern, step: int, point: int) -> tuple[int, ...]:
    return tuple(range(point - RADIX // 2, point + (RADIX - 1) // 2 + 1))


def _spread(graph: Pattern, step: int, point: int) -> tuple[int, ...]:
    shift = step % SPREAD_PERIOD
    return tuple((point + n * graph.width // RADIX + (shift if n else 0)) % graph.width for n in range(RADIX))


def _all_to_all(graph: Pattern, step: int, point: int) -> tuple[int, ...]:
    return tuple(range(graph.width))


def _sweep(graph: Pattern, step: int, point: int) -> tuple[int, ...]:
    return (point - 1, point)


_READS: dict[str, Callable[[Pattern, int, int], tuple[int, ...]]] = {
    "stencil": _stencil,
    "fft": _fft,
    "tree": _tree,
    "nearest": _nearest,
    "spread": _spread,
    "all_to_all": _all_to_all,
    "sweep": _sweep,
}
NAMES = tuple(_READS)
