"""Foresight: time and memory of known plans with given numbers of microbatches, by sketches; where drawing these takes
long, those that are likely to be needed next are drawn ahead in another process.

It does not know what a number of microbatches is wanted for, nor how a sketch is drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import inf
from typing import NamedTuple

from castile.planner.bounds.lower_bound import work_bound
from castile.planner.choices.pins import Pins
from castile.planner.choices.spaces import Spaces
from castile.planner.evaluation.evaluator import Evaluator
from castile.planner.known.seeds import known_names, seeds
from castile.planner.searching.forks import Fork
from castile.planner.sketch.sieve import Sieve
from castile.planner.strategy import Strategy

# Of the known plans that should fit so many of the best are given, and the smallest.
MOST_TRIED = 3
# Shares of memory that differ by less than this count as equal.
ALIKE = 0.02
# Sketches of whole batches gave the smallest known plan up to 1.45 times the memory that it needed (decision 0046), and
# those of microbatches never more than it needed. From so many times the memory on none comes near fitting.
FAR = 3.0


@dataclass(frozen=True)
class Foreseen:
    """What sketches say of the known plans with one number of microbatches.

    share     the memory that the smallest plan needs on its fullest processor, relative to what that has: above 1 none
              should fit
    fitting   of the plans that should fit the fastest few, each with its seconds, and the smallest; where plans are
              ranked by memory the smallest few
    least     the seconds of the fastest plan, whether it should fit or not
    """

    share: float
    fitting: tuple[tuple[float, Strategy], ...]
    least: float

    @property
    def is_far(self) -> bool:
        """Whether no known plan comes near fitting; other plans may fit all the same."""
        return self.share > FAR


class Place(NamedTuple):
    """A number of microbatches, an evaluator for it, what plans must have, and what sketches say of known plans."""

    number: int
    evaluator: Evaluator
    pins: Pins | None
    foreseen: Foreseen

    @property
    def seconds(self) -> float:
        """The seconds, by its sketch, of the best plan that should fit; there must be one."""
        return self.foreseen.fitting[0][0]


class Question(NamedTuple):
    """Asks for sketches of known plans with these numbers of microbatches, ascending, up to the first that should fit.

    recompute   the nodes that are computed again
    is_meant    which known plans, by name; None for those from which a search begins
    """

    numbers: tuple[int, ...]
    recompute: tuple[str, ...]
    is_meant: Callable[[str], bool] | None


# The answer, by number of microbatches; None where the model cannot be cut so, or there are no such plans.
Drawn = dict[int, Foreseen | None]


class Foresight:
    """Draws sketches in another process before they are needed, within `begun`.

    helps   whether that pays, and a core is free for it; if not, nothing is drawn ahead
    """

    def __init__(self, helps: bool) -> None:
        self._helps = helps
        self._asked: dict[Question, int] = {}
        self._fork: Fork[Question, Drawn] | None = None

    @contextmanager
    def begun(self, draw: Callable[[Question], Drawn]) -> Iterator[None]:
        """Start the process, which calls `draw`, and end it on leaving; `draw` may refer to this and is not kept."""
        if self._helps:
            self._fork = Fork(draw)
        try:
            yield
        finally:
            if self._fork is not None:
                self._fork.end(at_once=True)
            self._fork = None
            self._asked.clear()

    def expect(self, question: Question, can_wait: bool = False) -> None:
        """Ask a question ahead, if there is a process: the latest is drawn first, and those that can wait after all."""
        if self._fork is not None and question not in self._asked:
            self._asked[question] = self._fork.ask(question, can_wait)

    def answer(self, wanted: Question) -> Drawn:
        """The sketches of the question that was asked ahead and has these numbers, maybe among others; given once.

        Empty where there is none, or it was not begun with: what may as well be drawn here nobody waits for.
        """
        asked = next(self._asking(wanted), None)
        if asked is None:
            return {}
        assert self._fork is not None
        place = self._asked.pop(asked)
        return {} if self._fork.give_up(place) else self._fork.answer(place)

    def forget(self, wanted: Question) -> None:
        """What was asked ahead of these plans and numbers will not be needed."""
        for asked in [*self._asking(wanted)]:
            assert self._fork is not None
            if self._fork.give_up(self._asked[asked]):
                del self._asked[asked]

    def is_expected(self, wanted: Question) -> bool:
        """Whether it was asked ahead, and its answer was not given yet."""
        return any(self._asking(wanted))

    def _asking(self, wanted: Question) -> Iterator[Question]:
        """The questions about the same plans that have all of these numbers, and whose answers were not given yet."""
        return (one for one in self._asked if one[1:] == wanted[1:] and {*wanted.numbers} <= {*one.numbers})


@dataclass(frozen=True)
class Outlook:
    """Sketches of known plans with any number of microbatches.

    at          gives an evaluator for a number of them, and what plans must have; raises ValueError where the model
                cannot be cut so
    names       the known plans, None for all from which a search begins
    is_meant    chooses among all known plans by name instead
    recompute   the nodes that are computed again
    foresight   draws some of them ahead
    known       by number of microbatches what was drawn: it says the same whenever it is asked for
    """

    at: Callable[[int], tuple[Evaluator, Pins | None]]
    names: Sequence[str] | None = None
    is_meant: Callable[[str], bool] | None = None
    recompute: tuple[str, ...] = ()
    foresight: Foresight | None = None
    known: Drawn = field(default_factory=Drawn)

    def places(
        self, numbers: Iterable[int], most: float, is_late: Callable[[], bool], to_beat: float = inf
    ) -> Iterator[Place]:
        """The numbers, ascending, for which there are known plans; without those with which the smallest plan must need
        more than `most` times the memory, to conclude from other numbers. While one is used the next is drawn ahead.

        is_late   once it is true no further number is looked at
        to_beat   seconds: no further number is looked at where all processors' work is seen to take as long
        """
        shares: dict[int, float] = {}
        left = [*numbers]
        while left and not is_late():
            number, *left = left
            if not may_need(shares, number, most):
                continue
            following = next((n for n in left if may_need(shares, n, most)), None)
            if following is not None and self.known.keys().isdisjoint((number, following)):
                if not self._is_expected(number):
                    self.expect(following)
            try:
                place = self._place(number, to_beat)
            except _Beaten:
                return
            if place is not None:
                shares[number] = place.foreseen.share
                yield place

    def expect(self, *numbers: int, can_wait: bool = False) -> None:
        """Have these numbers drawn ahead, up to the first with which a plan should fit."""
        if self.foresight is not None and numbers:
            self.foresight.expect(self._question(*numbers), can_wait)

    def forget(self) -> None:
        """Withdraw all that was to be drawn ahead."""
        if self.foresight is not None:
            self.foresight.forget(self._question())

    def draw(self, numbers: Iterable[int]) -> Drawn:
        """Sketch known plans in this process with these numbers, up to the first with which one should fit."""
        shares, found, here = dict[int, float](), Drawn(), replace(self, foresight=None)
        for number in numbers:
            if not may_need(shares, number, 1.0):
                continue
            place = here._place(number)
            found[number] = place and place.foreseen
            if place is not None:
                shares[number] = place.foreseen.share
                if place.foreseen.fitting:
                    break
        return found

    def _place(self, number: int, to_beat: float = inf) -> Place | None:
        """Raises _Beaten where no plan takes less than so many seconds and nothing was drawn yet."""
        try:
            evaluator, pins = self.at(number)
            if self.foresight is not None and number not in self.known:
                self.known.update(self.foresight.answer(self._question(number)))
            if number not in self.known:
                if _is_beaten(evaluator, to_beat):
                    raise _Beaten
                self.known[number] = self._drawn(evaluator, pins)
        except ValueError:
            # What cannot be cut into so many may be cut into others.
            return None
        foreseen = self.known[number]
        return None if foreseen is None else Place(number, evaluator, pins, foreseen)

    def _drawn(self, evaluator: Evaluator, pins: Pins | None) -> Foreseen | None:
        names = self.names
        if self.is_meant is not None:
            names = [name for name in known_names(evaluator.lowering, pins) if self.is_meant(name)]
        return None if names is not None and not names else foresee(evaluator, names, pins)

    def _question(self, *numbers: int) -> Question:
        return Question(numbers, self.recompute, self.is_meant)

    def _is_expected(self, number: int) -> bool:
        return self.foresight is not None and self.foresight.is_expected(self._question(number))


class _Beaten(Exception):
    """No plan in so many microbatches is of use, and none in more."""


def _is_beaten(evaluator: Evaluator, seconds: float) -> bool:
    """Whether all processors' work takes as long; more microbatches, of smaller kernels, take no less."""
    return seconds < inf and work_bound(evaluator) >= seconds


def foresee(evaluator: Evaluator, names: Sequence[str] | None = None, pins: Pins | None = None) -> Foreseen:
    """What sketches say of the known plans (of these names) with as many microbatches as the evaluator's lowering has.

    Raises ValueError where the model cannot be cut into as many.
    """
    lowering, cost = evaluator.lowering, evaluator.cost
    known = seeds(lowering, names, cost, pins)
    sieve = Sieve(evaluator, known, Spaces(lowering, cost, pins))
    found = [(one.seconds, one.share, known[name]) for name, one in sieve.estimates.items() if one.share <= 1]
    found.sort(key=lambda one: (one[1], one[0]) if sieve.is_sparing else one[:2])
    # A sketch of a small vit had half of its true memory: where the best do not fit, the smallest may.
    last = sorted(found[MOST_TRIED:], key=lambda one: one[1])[:1]
    fitting = tuple((seconds, plan) for seconds, _, plan in (*found[:MOST_TRIED], *last))
    every = sieve.estimates.values()
    return Foreseen(min(one.share for one in every), fitting, min(one.seconds for one in every))


def may_need(shares: Mapping[int, float], number: int, most: float) -> bool:
    """Whether the smallest known plan with `number` microbatches may need at most `most` times the memory.

    shares   how many times the memory it needs with other numbers: twice as many microbatches at best halve it, also
             with twice as many stages
    """
    least = min(shares.values(), default=0.0)
    return max([n for n, share in shares.items() if share <= (1 + ALIKE) * least], default=0) * least <= most * number
