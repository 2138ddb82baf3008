"""Filling: whether a pipeline does a batch in microbatches sooner than the plan that was found without; or, where
memory is short, a plan whose parameters are gathered for each pass.

Walks keep the number of microbatches with which they began, and what is computed again. It does not know how a search
moves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from math import inf
from operator import attrgetter

from castile.planner.bounds.lower_bound import lower_bound
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

# One is looked for where a step takes so many times as long as all processors' work, less than which none takes.
WORTH = 1.1
# And simulated where a sketch, which begins nothing ahead, takes it for so many times what was found, or less; where
# there are many parts for less, as to simulate one takes long, and instead of a plan that was searched for still less.
PROMISING, AHEAD, OF_MANY = 1.2, 1.1, 0.95
# In so many numbers of microbatches so many that fit, where there are many parts fewer: which gains most by beginning
# microbatches ahead a sketch does not know.
SEVERAL, FEW_OF_MANY, ONE_EACH = (16, 3), (4, 2), (16, 1)
# A sketch that takes a plan for no more than this share of the memory is not mistaken in that it fits.
ROOMY = 0.9
# A search from a known pipeline makes it some percent better. Where plans have at most QUICK_PARTS, with which it takes
# a second or two, one that takes so many times what was found is worth that.
BETTERED = 1.03
# Where memory is short a search from a plan that gives more up gains more: of at most QUICK_PARTS this may take so many
# times what was found.
SPARING = 1.25
# Of such plans each way to compute more again is looked at in so many numbers of microbatches, as pipelines need some.
FEW_OF_EACH = 3
# So many larger numbers of microbatches are likely to be looked at.
LIKELY = 4

# The same search in another number of microbatches; with a known plan for that one alone, on which it does not insist.
Look = Callable[[Chosen, Strategy | None], Found]


@dataclass(frozen=True)
class Others:
    """Other numbers of microbatches, in which known plans are looked at.

    numbers   ascending
    outlook   of the known plans
    is_over   once it says so a plan that is known to be better will do, and is taken as it is
    is_late   once it says so no further number is looked at
    """

    numbers: Sequence[int]
    outlook: Outlook
    is_over: Callable[[], bool]
    is_late: Callable[[], bool] = lambda: False


def filled(chosen: Chosen, found: Found, others: Others, look: Look) -> tuple[Chosen, Found]:
    """What was found, or the better plan that a search finds in the one of other numbers of microbatches that a known
    pipeline gets through soonest; and in how many.
    """
    if found.is_insisted or _is_first(chosen) or not _is_worth(chosen, found.evaluated.seconds):
        return chosen, found
    most = found.evaluated.seconds * (BETTERED if num_parts(chosen.evaluator) <= QUICK_PARTS else 1)
    soonest, plan = _soonest(chosen, most, others)
    if soonest is None:
        return chosen, found
    try:
        other = look(soonest, plan)
    except NoPlanFits as error:  # live bytes fit, and arenas do not
        return chosen, replace(found, num_proposals=found.num_proposals + error.num_proposals)
    num_proposals = found.num_proposals + other.num_proposals
    if other.evaluated.rank >= found.evaluated.rank:
        return chosen, replace(found, num_proposals=num_proposals)
    return soonest, replace(other, seeds=found.seeds, num_proposals=num_proposals)


def expect(first: int, others: Others) -> None:
    """That, where there are many parts, pipelines are likely to be looked at in this number of microbatches, then in
    the next smaller one, then in larger ones. Of each two of these the further is drawn first: who gets that far while
    it is drawn draws the nearer.
    """
    fewer, more = _apart(first, others)
    pairs = [more[at : at + 2][::-1] for at in range(0, LIKELY, 2)]
    for number in (first, *fewer[:1], *chain(*pairs))[::-1]:
        others.outlook.expect(number)


def sooner(chosen: Chosen, others: Others, look: Look) -> tuple[Chosen, Found] | None:
    """Where there are too many parts to simulate several pipelines: one that takes less than the best known plan, if
    that is known to fit, and in how many microbatches; None where there is none.
    """
    if not _is_first(chosen) or not _is_worth(chosen, chosen.seconds):
        return None
    return _looked_at(chosen, others, look)


def cut_for(chosen: Chosen, others: Others) -> Chosen:
    """Where there is time to search in one number of microbatches only, and plans have few enough parts for a search to
    look at pipelines: the one in which a known pipeline takes less than the best known plan, if that is known to fit;
    else the same.
    """
    if has_many_parts(chosen.evaluator.lowering) or not chosen.fits or not _is_worth(chosen, chosen.seconds):
        return chosen
    return _simulated(_taken_for_best(others), chosen.seconds, (READY,), OF_MANY, ONE_EACH, others.is_over)[0] or chosen


def instead(chosen: Chosen, others: Others, look: Look) -> tuple[Chosen, Found] | None:
    """Where there are too many parts for a search to look at pipelines, and it found nothing that fits: the pipeline
    that does, and is soonest; None where there is none.
    """
    is_left_out = has_many_parts(chosen.evaluator.lowering)
    return _looked_at(replace(chosen, seconds=inf), others, look) if is_left_out else None


@dataclass(frozen=True)
class Gathering:
    """The known plan that takes least of those whose parameters are gathered for each pass, or, where plans have few
    parts, of those that compute more again.

    ways     of plans that compute more and more again: of each as few microbatches as are taken to fit, and no more
             than before
    are_few  whether plans have few parts: then of each FEW_OF_EACH numbers in which a plan is taken to fit, pipelines
             among them, of which more microbatches may take less
    _known   what was found by the seconds that it had to stay below, as it is looked for no more often than need be
    """

    ways: Sequence[Others]
    are_few: bool = False
    _known: dict[float, tuple[Chosen | None, Strategy | None]] = field(default_factory=dict)

    def expect(self) -> None:
        """That all ways are likely to be looked at, the first one first, once there is nothing else to do."""
        for others in self.ways:
            others.outlook.expect(*others.numbers, can_wait=True)

    def best(self, seconds: float) -> tuple[Chosen | None, Strategy | None]:
        """In how many microbatches, with what computed again, and the plan; None twice where none takes less than
        `seconds`, so that few are simulated. What was found before for more seconds is given again.
        """
        if not self.ways:
            return None, None
        for most, known in self._known.items():
            if known[0] is not None or seconds <= most:
                return known
        near, is_over = self._candidates(PROMISING * seconds), self.ways[0].is_over
        found = _simulated(near, seconds, (READY,), PROMISING, SEVERAL, is_over)
        self._known[seconds] = found
        return found

    def _candidates(self, longest: float) -> Iterator[Place]:
        """Of each way the first, unless even what does not fit is taken for longer.

        More microbatches take no less, nor more computed again, which is looked at in as many where room is scarce. Of
        few parts some of each.
        """
        if self.are_few:
            yield from chain.from_iterable(islice(_taken_for_best(others), FEW_OF_EACH) for others in self.ways)
            return
        most = inf
        for others in self.ways:
            few = replace(others, numbers=[number for number in others.numbers if number <= most])
            for one in _looked_through(few):
                if one.foreseen.least > longest:
                    most = one.number - 1
                    break
                if one.foreseen.fitting:
                    most = one.number - (one.foreseen.share <= ROOMY)
                    yield one
                    break

    def sooner(self, seconds: float, look: Look, times: float = 1.0) -> tuple[Chosen, Found] | None:
        """What a search finds from it, or itself where there are many parts; None where so many times what it takes is
        not less.
        """
        best, plan = self.best(seconds)
        if best is None or times * best.seconds >= seconds:
            return None
        try:
            return best, look(best, plan if num_parts(best.evaluator) > SEARCHED_PARTS else None)
        except NoPlanFits:
            return None

    def instead(self, chosen: Chosen, look: Look) -> tuple[Chosen, Found] | None:
        """The same where it is so much better than the best known plan in another number of microbatches, pipelines
        among them, that neither a search from that one nor what begins ahead would make up for it.
        """
        return self.sooner(chosen.seconds, look, AHEAD)

    def beside(self, chosen: Chosen, found: Found, look: Look) -> tuple[Chosen, Found]:
        """What was found, or the better plan that is found from it.

        Of few parts also where it is far from what was found, but takes less than the known plan from which that came:
        a search, fewer processors and buckets may take as much off this one.
        """
        seconds = found.evaluated.seconds
        if num_parts(chosen.evaluator) <= QUICK_PARTS:
            seconds = max(SPARING * seconds, chosen.seconds if chosen.fits else 0.0)
        other = self.sooner(seconds, look)
        if other is None or other[1].evaluated.rank >= found.evaluated.rank:
            return chosen, found
        num_proposals = found.num_proposals + other[1].num_proposals
        return other[0], replace(other[1], seeds=found.seeds, num_proposals=num_proposals)


def _looked_at(chosen: Chosen, others: Others, look: Look) -> tuple[Chosen, Found] | None:
    soonest, plan = _soonest(chosen, chosen.seconds, others)
    if soonest is None:
        return None
    try:
        return soonest, look(soonest, plan)
    except NoPlanFits:
        return None


def _is_first(chosen: Chosen) -> bool:
    """Whether a pipeline is looked for before anything is searched: beside a known plan of many parts that fits."""
    return chosen.fits and has_many_parts(chosen.evaluator.lowering)


def _is_worth(chosen: Chosen, seconds: float) -> bool:
    bound = lower_bound(chosen.evaluator)
    return bound is not None and seconds > WORTH * bound.work_seconds


def _soonest(chosen: Chosen, seconds: float, others: Others) -> tuple[Chosen | None, Strategy | None]:
    """The number in which a pipeline takes least, if that is less than `seconds`; and that one, where it is taken as it
    is.

    The most promising are simulated first; where there are not many parts in every order in which it may be taken.
    """
    if not has_many_parts(chosen.evaluator.lowering):
        is_taken = num_parts(chosen.evaluator) > SEARCHED_PARTS
        orders = OF_KNOWN if is_taken else ORDERS
        best, plan = _simulated(_taken_for_best(others), seconds, orders, PROMISING, SEVERAL, others.is_over)
        return best, plan if is_taken else None
    return _simulated(_of_many_parts(chosen.number, others), seconds, (READY,), AHEAD, FEW_OF_MANY, others.is_over)


def _simulated(
    candidates: Iterable[Place], seconds: float, orders: Sequence[str], promising: float,
    most: tuple[int, int], is_over: Callable[[], bool],
) -> tuple[Chosen | None, Strategy | None]:  # fmt: skip
    """The one in which a plan takes least, if that is less than `seconds`, and that plan.

    most   in so many numbers at most so many are simulated that fit
    """
    least, best, found = seconds, None, None
    # The others are let go of: each holds all that was worked out of its plans.
    left = sorted(candidates, key=attrgetter("seconds"))[: most[0]][::-1]
    while left and left[-1].seconds <= promising * least and (best is None or not is_over()):
        one = left.pop()
        near = (plan for taken_for, plan in one.foreseen.fitting if taken_for <= promising * least)
        if len(orders) > 1:
            # What a plan computes takes as long in all of them, and is sooner told than any is simulated.
            near = (plan for plan in near if one.evaluator.bound(plan.configs) < least)
        ordered = filter(None, (_ordered(one.evaluator, plan, orders, is_over, NEAR * least) for plan in near))
        for soonest in islice(ordered, most[1]):
            if soonest.seconds < least:
                least, found = soonest.seconds, soonest.strategy
                best = Chosen(one.number, one.evaluator, one.pins, least)
    return best, found


def _ordered(
    evaluator: Evaluator, plan: Strategy, orders: Sequence[str], is_over: Callable[[], bool], longest: float
) -> Evaluated | None:
    """A plan in the best of these orders, or, where it takes more than so many seconds in the first, in that alone;
    None where it does not fit, or has too many transfers to look at.
    """
    try:
        is_near = evaluator.evaluate(plan).seconds <= longest
        found = variants(evaluator, plan, (), is_over, orders if is_near else orders[:1], most=longest)
    except TooManyTransfers:
        return None
    return min((one for one in found if one.fits), key=attrgetter("seconds"), default=None)


def _taken_for_best(others: Others) -> Iterator[Place]:
    """For each number that has some the plans that are taken to fit."""
    return (one for one in _looked_through(others) if one.foreseen.fitting)


def _looked_through(others: Others) -> Iterator[Place]:
    """The same for each number that has any, whether they are taken to fit or not."""
    return others.outlook.places(others.numbers, 1.0, others.is_late)


def _of_many_parts(first: int, others: Others) -> Iterator[Place]:
    """Those of the first number; of smaller ones, as long as a pipeline is taken to fit, of which stages keep less than
    the known plans that the first was found for; and of larger ones, up to twice one in which a pipeline is not taken
    for much more: to look at each takes seconds.
    """
    least, best = inf, first
    fewer, more = _apart(first, others)
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


def _apart(first: int, others: Others) -> tuple[list[int], list[int]]:
    """The smaller ones, descending, and the larger ones, ascending."""
    fewer, more = ([n for n in others.numbers if n < first], [n for n in others.numbers if n > first])
    return fewer[::-1], more
