"""Other numbers of microbatches: whether a pipeline with one of them is faster than the plan that was found; or, where
memory is short, a plan that gathers its parameters for each pass, or recomputes more.

Walks keep the number of microbatches and the recomputation with which they began, so these are chosen here. It does not
know how a search moves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from math import inf
from operator import attrgetter

from castile.planner.bounds.lower_bound import work_bound
from castile.planner.evaluation.evaluated import Evaluated
from castile.planner.evaluation.evaluator import Evaluator
from castile.planner.evaluation.sizes import variants
from castile.planner.known.large import has_many_parts
from castile.planner.search import Found, NoPlanFits
from castile.planner.searching.accumulating import Chosen
from castile.planner.searching.foresight import Outlook, Place
from castile.planner.searching.settling import NEAR, OF_KNOWN, QUICK_PARTS, SEARCHED_PARTS
from castile.planner.sketch.sieve import num_parts
from castile.planner.strategy import ORDERS, READY, Strategy
from castile.runtime.transfer import TooManyTransfers

# A pipeline is looked for where a step takes more than so many times the least that all processors need for its work.
WORTH = 1.1
# It is simulated if by its sketch, which begins nothing ahead, it takes at most so many times what was found; fewer
# times where there are many parts, as it takes long to simulate, and fewest where it replaces a plan that was searched.
PROMISING, AHEAD, OF_MANY = 1.2, 1.1, 0.95
# In so many numbers of microbatches so many plans that fit are simulated, fewer where there are many parts: sketches do
# not know which of them gains most by beginning microbatches ahead.
SEVERAL, FEW_OF_MANY, ONE_EACH = (16, 3), (4, 2), (16, 1)
# A plan that by its sketch needs at most this share of the memory does fit.
ROOMY = 0.9
# A search from a known pipeline improves it by some percent. Where plans have at most QUICK_PARTS such a search takes a
# second or two, and is worth it from a pipeline that takes up to so many times what was found.
BETTERED = 1.03
# Where memory is short a search from a plan that gathers or recomputes gains more: with at most QUICK_PARTS that plan
# may take up to so many times what was found.
SPARING = 1.25
# Of such plans each way to recompute is looked at in so many numbers of microbatches, as pipelines need some.
FEW_OF_EACH = 3
# Arenas are known once a plan is settled, which may take as long as all simulations before: of so many plans.
MOST_REFUSED = 3
# So many larger numbers of microbatches are likely to be looked at.
LIKELY = 4

# A plan's microbatches and recomputation, and the plan.
Taken = tuple[Chosen, Strategy]

# The same search in another number of microbatches; with a known plan for that one alone, on which it does not insist.
Look = Callable[[Chosen, Strategy | None], Found]


@dataclass(frozen=True)
class Others:
    """Other numbers of microbatches, in which known plans are looked at.

    numbers   ascending
    outlook   sketches of the known plans
    is_over   once it is true a plan that is known to be better is taken as it is
    is_late   once it is true no further number is looked at
    """

    numbers: Sequence[int]
    outlook: Outlook
    is_over: Callable[[], bool]
    is_late: Callable[[], bool] = lambda: False


def filled(chosen: Chosen, found: Found, others: Others, look: Look) -> tuple[Chosen, Found]:
    """What was found, or a better plan, and its number of microbatches: that which a search finds with the number with
    which a known pipeline is fastest.
    """
    if found.is_insisted or _is_first(chosen) or not _is_worth(chosen, found.evaluated.seconds):
        return chosen, found
    most = found.evaluated.seconds * (BETTERED if num_parts(chosen.evaluator) <= QUICK_PARTS else 1)
    looked, num_proposals = _looked(_soonest(chosen, most, others), look)
    num_proposals += found.num_proposals + (looked[1].num_proposals if looked else 0)
    if looked is None or looked[1].evaluated.rank >= found.evaluated.rank:
        return chosen, replace(found, num_proposals=num_proposals)
    return looked[0], replace(looked[1], seeds=found.seeds, num_proposals=num_proposals)


def expect(first: int, others: Others) -> None:
    """Have sketches drawn ahead for plans of many parts, whose pipelines are likely to be looked at with this number of
    microbatches, then with the next smaller one, then with larger ones. Of each two of these the farther is drawn
    first: if it is still being drawn when this process gets there, this process draws the nearer.
    """
    fewer, more = _outward(first, others)
    pairs = [more[at : at + 2][::-1] for at in range(0, LIKELY, 2)]
    for number in (first, *fewer[:1], *chain(*pairs))[::-1]:
        others.outlook.expect(number)


def sooner(chosen: Chosen, others: Others, look: Look) -> tuple[Chosen, Found] | None:
    """Where there are too many parts to simulate several pipelines: one that is faster than the best known plan, if
    that is known to fit, and its number of microbatches; None if there is none.
    """
    if not _is_first(chosen) or not _is_worth(chosen, chosen.seconds):
        return None
    return _looked_at(chosen, others, look)


def cut_for(chosen: Chosen, others: Others) -> Chosen:
    """Where there is time to search with one number of microbatches only, and plans have few enough parts for a search
    to look at pipelines: the number with which a known pipeline is faster than the best known plan, if that is known to
    fit; otherwise the number that was chosen.
    """
    if has_many_parts(chosen.evaluator.lowering) or not chosen.fits or not _is_worth(chosen, chosen.seconds):
        return chosen
    soonest = _simulated(_taken_for_best(others), chosen.seconds, (READY,), OF_MANY, ONE_EACH, others.is_over)
    return soonest[0][0] if soonest else chosen


def instead(chosen: Chosen, others: Others, look: Look) -> tuple[Chosen, Found] | None:
    """Where there are too many parts for a search to look at pipelines, and it found nothing that fits: the fastest
    pipeline that does; None if there is none.
    """
    is_left_out = has_many_parts(chosen.evaluator.lowering)
    return _looked_at(replace(chosen, seconds=inf), others, look) if is_left_out else None


@dataclass(frozen=True)
class Gathering:
    """The fastest known plan among those that gather their parameters for each pass, or, where plans have few parts,
    among those that recompute more.

    ways     from the least recomputation to the most; of each the fewest microbatches with which a plan should fit are
             looked at, and no more than of the way before
    are_few  whether plans have few parts: then of each way FEW_OF_EACH numbers with which a plan should fit are looked
             at, as pipelines may be faster with more microbatches
    _known   results, by the limit of seconds under which they were looked for
    """

    ways: Sequence[Others]
    are_few: bool = False
    _known: dict[float, list[Taken]] = field(default_factory=dict)

    def expect(self) -> None:
        """Have sketches of all ways drawn ahead, the first way first, once there is nothing else to do."""
        for others in self.ways:
            others.outlook.expect(*others.numbers, can_wait=True)

    def best(self, seconds: float, to_beat: float = inf) -> list[Taken]:
        """Its number of microbatches and recomputation, and the plan itself, and those behind it; none that takes
        `seconds`, a limit that leaves few to simulate. What was found under another limit is given again, and so is
        that there was nothing under a higher one.

        to_beat   seconds that no plan is of use that takes as long, searched from the best one or not
        """
        if not self.ways:
            return []
        for most, known in self._known.items():
            if known or seconds <= most:
                return [one for one in known if one[0].seconds < seconds]
        near, is_over = self._candidates(PROMISING * seconds, to_beat), self.ways[0].is_over
        found = _simulated(near, seconds, (READY,), PROMISING, SEVERAL, is_over)
        self._known[seconds] = found
        return found

    def _candidates(self, longest: float, to_beat: float) -> Iterator[Place]:
        """Of each way the first number with which a plan should fit, unless even plans that do not fit are too slow.

        More microbatches or more recomputation are not faster; a way is looked at with as many microbatches as the one
        before where room is scarce, else with fewer. Where plans have few parts: some numbers of each way.
        """
        if self.are_few:
            for others in self.ways:
                yield from islice(_taken_for_best(others, to_beat), FEW_OF_EACH)
            return
        most = inf
        for others in self.ways:
            few = replace(others, numbers=[number for number in others.numbers if number <= most])
            for one in _looked_through(few, to_beat):
                if one.foreseen.least > longest:
                    most = one.number - 1
                    break
                if one.foreseen.fitting:
                    most = one.number - (one.foreseen.share <= ROOMY)
                    yield one
                    break

    def sooner(self, seconds: float, look: Look, to_beat: float = inf) -> tuple[Chosen, Found] | None:
        """What a search finds from it, or the plan itself where there are many parts; None if it takes `seconds`, or
        surely no less than `to_beat` once it was searched from.
        """
        best = self.best(seconds, to_beat)
        taken = [(one, plan if num_parts(one.evaluator) > SEARCHED_PARTS else None) for one, plan in best]
        return _looked(taken, look)[0]

    def instead(self, chosen: Chosen, look: Look) -> tuple[Chosen, Found] | None:
        """The same if it is so much faster than the best known plan of another number of microbatches, pipelines
        included, that neither a search from that one nor microbatches begun ahead would make up for it; where such a
        search takes a minute, if it is faster at all.
        """
        is_quick = num_parts(chosen.evaluator) <= SEARCHED_PARTS
        return self.sooner(chosen.seconds / AHEAD if is_quick else chosen.seconds, look)

    def beside(self, chosen: Chosen, found: Found, look: Look) -> tuple[Chosen, Found]:
        """What was found, or the better plan that a search finds from it.

        Where plans have few parts that search is also made if it is much slower than what was found, but faster than
        the known plan from which that came: a search, fewer processors and buckets may gain as much on this one.
        """
        seconds = found.evaluated.seconds
        if num_parts(chosen.evaluator) <= QUICK_PARTS:
            seconds = max(SPARING * seconds, chosen.seconds if chosen.fits else 0.0)
        other = self.sooner(seconds, look, found.evaluated.seconds)
        if other is None or other[1].evaluated.rank >= found.evaluated.rank:
            return chosen, found
        num_proposals = found.num_proposals + other[1].num_proposals
        return other[0], replace(other[1], seeds=found.seeds, num_proposals=num_proposals)


def _looked_at(chosen: Chosen, others: Others, look: Look) -> tuple[Chosen, Found] | None:
    return _looked(_soonest(chosen, chosen.seconds, others), look)[0]


def _looked(taken: Sequence[tuple[Chosen, Strategy | None]], look: Look) -> tuple[tuple[Chosen, Found] | None, int]:
    """What is found in the first of these places, or, where what was alive at once fitted and arenas do not, in the
    next; None if it is so in the first few; and the proposals of those before.
    """
    num_proposals = 0
    for chosen, plan in taken[:MOST_REFUSED]:
        try:
            return (chosen, look(chosen, plan)), num_proposals
        except NoPlanFits as error:
            num_proposals += error.num_proposals
    return None, num_proposals


def _is_first(chosen: Chosen) -> bool:
    """Whether a pipeline is looked for before any search: where a known plan of many parts fits."""
    return chosen.fits and has_many_parts(chosen.evaluator.lowering)


def _is_worth(chosen: Chosen, seconds: float) -> bool:
    least = work_bound(chosen.evaluator)
    return 0 < WORTH * least < seconds


def _soonest(chosen: Chosen, seconds: float, others: Others) -> Sequence[tuple[Chosen, Strategy | None]]:
    """The numbers of microbatches in which pipelines take less than `seconds`, the fastest first; and each pipeline, if
    no search is to follow.

    The most promising ones are simulated first; where there are not many parts, in every order that may be chosen.
    """
    if has_many_parts(chosen.evaluator.lowering):
        return _simulated(_of_many_parts(chosen.number, others), seconds, (READY,), AHEAD, FEW_OF_MANY, others.is_over)
    is_taken = num_parts(chosen.evaluator) > SEARCHED_PARTS
    orders = OF_KNOWN if is_taken else ORDERS
    found = _simulated(_taken_for_best(others), seconds, orders, PROMISING, SEVERAL, others.is_over)
    return [(one, plan if is_taken else None) for one, plan in found]


def _simulated(
    candidates: Iterable[Place], seconds: float, orders: Sequence[str], promising: float,
    most: tuple[int, int], is_over: Callable[[], bool],
) -> list[Taken]:  # fmt: skip
    """The fastest plan, if that takes less than `seconds`, and the candidate that it is of, then those behind it.

    most   how many candidates are looked at, and how many plans that fit are simulated of each
    """
    ranking = _Ranking(seconds)
    # Popped one by one, so that each is freed: it holds all that was computed of its plans.
    left = sorted(candidates, key=attrgetter("seconds"))[: most[0]][::-1]
    while left and left[-1].seconds <= promising * ranking.least and not (ranking.taken and is_over()):
        one = left.pop()
        near = (plan for taken_for, plan in one.foreseen.fitting if taken_for <= promising * ranking.least)
        # A plan's kernels take as long in every order, and bounding them is faster than simulating any.
        near = (plan for plan in near if one.evaluator.bound(plan.configs) < ranking.least)
        ordered = filter(None, (_ordered(one.evaluator, plan, orders, is_over, NEAR * ranking.least) for plan in near))
        for soonest in islice(ordered, most[1]):
            ranking.add(one, soonest)
    return ranking.taken


@dataclass
class _Ranking:
    """Plans that take less than `seconds`, the fastest first; what was computed of the others is not remembered."""

    seconds: float
    taken: list[Taken] = field(default_factory=list)

    @property
    def least(self) -> float:
        return self.taken[0][0].seconds if self.taken else self.seconds

    def add(self, place: Place, found: Evaluated) -> None:
        if found.seconds < self.seconds:
            chosen = Chosen(place.number, place.evaluator, place.pins, found.seconds)
            first, *others = sorted([*self.taken, (chosen, found.strategy)], key=lambda one: one[0].seconds)
            self.taken = [first, *((one.anew, plan) for one, plan in others)]


def _ordered(
    evaluator: Evaluator, plan: Strategy, orders: Sequence[str], is_over: Callable[[], bool], longest: float
) -> Evaluated | None:
    """A plan in the best of these orders, or in the first alone if it takes more than `longest` seconds in that; None
    if it does not fit, or has too many transfers to simulate.
    """
    try:
        is_near = evaluator.evaluate(plan).seconds <= longest
        found = variants(evaluator, plan, (), is_over, orders if is_near else orders[:1], most=longest)
    except TooManyTransfers:
        return None
    return min((one for one in found if one.fits), key=attrgetter("seconds"), default=None)


def _taken_for_best(others: Others, to_beat: float = inf) -> Iterator[Place]:
    """The numbers of microbatches with which some known plan should fit, by sketches."""
    return (one for one in _looked_through(others, to_beat) if one.foreseen.fitting)


def _looked_through(others: Others, to_beat: float = inf) -> Iterator[Place]:
    """The numbers of microbatches for which there are known plans, whether these should fit or not; none where no plan
    is faster than `to_beat`.
    """
    return others.outlook.places(others.numbers, 1.0, others.is_late, to_beat)


def _of_many_parts(first: int, others: Others) -> Iterator[Place]:
    """The first number; smaller ones as long as a pipeline should fit, as its stages keep less than the known plans for
    which the first number was found; and larger ones up to twice the best one, beyond that only while they become
    faster: each takes seconds to look at.
    """
    least, best = inf, first
    fewer, more = _outward(first, others)
    for number in fewer[:1]:
        others.outlook.expect(number)
    for number in (first, *fewer):
        found = next(_taken_for_best(replace(others, numbers=(number,))), None)
        if found is None:
            break
        yield found
        if found.seconds < least:
            least, best = found.seconds, number
    for one in _taken_for_best(replace(others, numbers=more)):
        yield one
        if one.seconds > OF_MANY * least and one.number >= 2 * best:
            break
        if one.seconds < least:
            least, best = one.seconds, one.number
    others.outlook.forget()


def _outward(first: int, others: Others) -> tuple[list[int], list[int]]:
    """The numbers below the first, descending, and those above it, ascending."""
    fewer, more = ([n for n in others.numbers if n < first], [n for n in others.numbers if n > first])
    return fewer[::-1], more
