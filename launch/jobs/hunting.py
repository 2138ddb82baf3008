"""Hunting: one search after another until a plan fits, and then for what may be better than that.

It does not know how a search moves, nor what is told of what was found.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import product
from math import inf

from castile.launch.jobs.request import Dropped, Request
from castile.planner.choices.pins import Pins
from castile.planner.evaluation.budget import Budget, clock
from castile.planner.evaluation.evaluator import Evaluator
from castile.planner.known.seeds import is_in_pieces, is_pipeline, microbatch_counts
from castile.planner.search import Found, NoPlanFits, Progress, search
from castile.planner.searching import accumulating, layerwise
from castile.planner.searching.accumulating import NEAR, Chosen
from castile.planner.searching.fewer import FURTHER, on_fewer
from castile.planner.searching.filling import AHEAD, Gathering, Others, cut_for, expect, filled, instead, sooner
from castile.planner.searching.foresight import Outlook, may_need
from castile.planner.searching.settling import OF_KNOWN, QUICK_PARTS, SETTLING, settled, settled_known
from castile.planner.sketch.sieve import num_parts
from castile.planner.step.recompute import NOTHING, PARAMETERS, SMALL_STEPS
from castile.planner.strategy import Strategy
from castile.runtime.memory import written

# What a search gets of a budget that others have spent: it looks at the known plans all the same.
LEAST_SECONDS = 1e-3
# So much of what is left of a time goes into a search where no known plan is taken to fit: the rest is for the next.
DOUBTED = 0.5

# In how many microbatches a plan was found, and the plan.
Looked = tuple[Chosen, Found]


@dataclass
class Hunt:
    """A way to what is wanted: searches where no plan fits in more and more microbatches, then with more and more
    computed again, as far as neither was said.

    A time to look is that of all searches together, and what was found tells how long they took together and what they
    proposed. Where nothing is left of it, a search still looks at the known plans.

    limits       the budget of all searches
    refused      what was said where no plan was found to fit
    replaced     where a search among plans that keep parameters was left for one that gathers them for each pass
    """

    request: Request
    limits: Budget
    progress: Progress | None
    refused: list[NoPlanFits] = field(default_factory=list)
    replaced: Chosen | None = None

    def __post_init__(self) -> None:
        self.began = clock()
        self.timed, self.is_settled = self.limits.begun(), self.limits.begun(1 + SETTLING).is_over

    def look(self) -> Looked:
        """The best plan that is found. Raises NoPlanFits where none is, with a number of microbatches that would do."""
        chosen, found = self._bettered(*self._first())
        num_proposals = found.num_proposals + sum(error.num_proposals for error in self.refused)
        return chosen, replace(found, elapsed_seconds=clock() - self.began, num_proposals=num_proposals)

    def _first(self) -> Looked:
        """The first plan that is found to fit, and where."""
        # held nowhere else, as it holds who hunts
        computed = filter(None, map(self._late, self._computed_again()))
        for chosen in self._places():
            one = self._unsearched(chosen, computed) or self._searched(chosen)
            if one is not None:
                return one
        one = next(computed, None) or self._gathering.sooner(inf, self._again)
        if one is None:
            raise self._advised(self.refused[0])
        return one

    def _unsearched(self, chosen: Chosen, computed: Iterator[Looked]) -> Looked | None:
        """What is known to be better than a search there would find, or taken where that would hardly find any, at last
        the next of those that compute more again; or None.
        """
        if not self.request.may_fill:
            return None
        instead_of = self._may_gather and self._gives_up(chosen)
        if instead_of:
            self._gathering.expect()
        one = sooner(chosen, self._others(chosen, self.timed, self.timed), self._again)
        is_hopeless = one is None and self._is_hopeless(chosen)
        if is_hopeless:
            # What gathers is looked at beside it.
            one = self._late(chosen)
        if one is None and instead_of:
            one = self._gathering.instead(chosen, self._again)
            self.replaced = chosen if one is not None else None
        if one is None and is_hopeless:
            one = next(computed, None)
        return one

    def _searched(self, chosen: Chosen) -> Looked | None:
        """What a search finds, or, where it finds none, the pipeline that it does not look at; or None."""
        is_hopeless = self._is_hopeless(chosen)
        chosen, left = self._in_time(chosen)
        if self._may_gather and not chosen.fits:
            self._expect(chosen)
        try:
            return chosen, self._search(chosen, left, self.request.start)
        except NoPlanFits as error:
            # its traceback holds who hunts
            self.refused.append(error.with_traceback(None))
            return None if is_hopeless else self._late(chosen)

    def _bettered(self, chosen: Chosen, found: Found) -> Looked:
        """What was found, or what is better: plans whose parameters are gathered or that compute more again, where
        memory is short, and pipelines in other numbers of microbatches.
        """
        if not self._may_gather:
            return chosen, found
        first, is_short = chosen, self._gives_up(chosen)
        if self.replaced is None and (is_short or found.lacks_room):
            chosen, found = self._gathering.beside(first, found, self._again)
        if is_short or found.lacks_room:
            chosen, found = self._computing.beside(chosen, found, self._again)
        if self.replaced is None or AHEAD * first.seconds >= self.replaced.seconds:
            first = self.replaced or first
            others = self._others(first, self.limits, self.limits, self.replaced is None)
            last, found = filled(first, found, others, self._again)
            chosen = chosen if last is first else last
        return chosen, found

    @property
    def _may_gather(self) -> bool:
        """Whether plans in other numbers of microbatches are searched from: of a time nothing would be left for it."""
        return self.request.may_fill and self.limits.seconds is None

    def _is_hopeless(self, chosen: Chosen) -> bool:
        """Whether a search would take a minute and hardly find a plan that fits."""
        is_refused_late = self.request.may_fill and not chosen.fits and self.request.is_dear
        return is_refused_late and not self.request.foreseen(chosen).fitting

    def _gives_up(self, chosen: Chosen) -> bool:
        """Whether plans are in more microbatches than was asked for, or compute more again."""
        request = self.request
        return (chosen.number, chosen.evaluator.lowering.recompute) != (request.microbatches, request.recompute)

    def _late(self, chosen: Chosen) -> Looked | None:
        """The soonest pipeline that fits, where a search looks at none, as late is better than nothing; or None."""
        if not self.request.may_fill:
            return None
        return instead(chosen, self._others(chosen, self.limits, self.timed), self._again)

    def _computed_again(self) -> Iterator[Chosen]:
        """From where on pipelines that compute more again are looked at, once nothing else fits."""
        for number, way in product(self.request.numbers[1:2], self.request.ways_left if self.request.may_fill else ()):
            with suppress(ValueError):  # a model that cannot be cut has no pipelines
                yield Chosen(number, *self.request.at(self.request.dropped(way), number))

    def _again(self, chosen: Chosen, plan: Strategy | None) -> Found:
        """The same search in another number of microbatches, or, with a known plan, that one alone."""
        if plan is not None:
            return settled_known(chosen.evaluator, plan, chosen.pins, self.is_settled, OF_KNOWN)
        return self._search(chosen, self.limits)

    def _in_time(self, chosen: Chosen) -> tuple[Chosen, Budget]:
        """In how many microbatches what is left of a budget is spent, and how much of it: where more are looked at if
        no plan fits, that of a time is shared with these as long as no known plan is known, or taken, to fit.
        """
        share = 1.0
        if self.limits.seconds is not None and self.request.may_fill:
            chosen = cut_for(chosen, self._others(chosen, self.timed, self.timed))
            share = 1.0 if chosen.fits or self.request.foreseen(chosen).fitting else DOUBTED
        return chosen, remaining(self.limits, clock() - self.began, share)

    def _others(self, chosen: Chosen, for_more: Budget, for_better: Budget, is_searched: bool = True) -> Others:
        """The numbers of microbatches in which pipelines are looked at, from the least that fills one on, but that one
        if it is searched: until when for more numbers, and until when for better plans once there is one.
        """
        counts = microbatch_counts(chosen.evaluator.lowering)[1:] if self.request.could_fit else ()
        outlook = self.request.outlook(chosen.evaluator.lowering.recompute, is_pipeline)
        numbers = [n for n in counts if n != chosen.number or not is_searched]
        return Others(numbers, outlook, for_better.is_over, for_more.is_over)

    @cached_property
    def _gathering(self) -> Gathering:
        """Where plans are looked at whose parameters are gathered for each pass, and more and more computed again."""
        may_help = self.request.may_fill and self.request.ways_left
        ways = (NOTHING, *self.request.recomputation.rising(SMALL_STEPS)) if may_help else ()
        each = (self.request.outlook(self.request.dropped(f"{way},{PARAMETERS}"), is_in_pieces) for way in ways)
        return Gathering(self._in_all_numbers(each))

    @cached_property
    def _computing(self) -> Gathering:
        """The same of plans whose parameters stay: none but where a search takes a second or two."""
        is_quick = num_parts(self.request.desk.evaluator) <= QUICK_PARTS
        ways = (NOTHING, *self.request.ways_left) if self.request.may_fill and is_quick else ()
        each = (self.request.outlook(self.request.dropped(way)) for way in ways)
        return Gathering(self._in_all_numbers(each), are_few=True)

    def _in_all_numbers(self, each: Iterable[Outlook]) -> list[Others]:
        """Each of them in every number of microbatches, as long as there is time."""
        is_over = self.timed.is_over
        return [Others(microbatch_counts(self.request.lowering), one, is_over, is_over) for one in each]

    def _enough(self, recompute: Dropped, numbers: Iterable[int]) -> Chosen | None:
        """In which of these numbers of microbatches to search."""
        # Who wants an end waits for no further number.
        is_late, is_over = self.timed.is_over, self.limits.is_over
        return accumulating.enough(self.request.outlook(recompute), numbers, is_late, is_over, self._expect)

    def _expect(self, chosen: Chosen) -> None:
        """That pipelines are likely to be looked at, while other known plans are simulated."""
        if self.request.may_fill and self.request.is_dear:
            expect(chosen.number, self._others(chosen, self.limits, self.limits))

    def _places(self) -> Iterator[Chosen]:
        """In what to search, one after the other, until a plan fits."""
        request = self.request
        smallest = request.smallest(self.timed.is_over) if request.command.objective == "memory" else None
        if smallest is not None:
            yield smallest
        first = Chosen(request.microbatches, *request.at(request.recompute, request.microbatches))
        numbers, chosen = request.numbers if request.is_free else (first.number,), None
        # A search takes half a minute to say that it found none, known plans in sketches a second or two.
        if request.is_free and request.is_long and request.foreseen(first).is_far:
            shares = {first.number: request.foreseen(first).share}
            left = [n for n in numbers if n > first.number and may_need(shares, n, NEAR)]
            chosen = self._enough(request.recompute, left)
        for way in (NOTHING, *request.ways_left):
            chosen = chosen or first if way == NOTHING else self._enough(request.dropped(way), numbers)
            while chosen is not None:
                yield chosen
                more = [n for n in numbers if n > chosen.number]
                chosen = self._enough(chosen.evaluator.lowering.recompute, more)

    def _advised(self, refused: NoPlanFits) -> NoPlanFits:
        """That no plan fits: why none can, or where the number of microbatches was said one that would do, or that
        others were looked at too.
        """
        if not self.request.could_fit:
            return NoPlanFits(f"{refused}; none can: {self._too_much()}", refused.num_proposals)
        if self.request.is_free and len(self.request.numbers) > 1:
            also = "nor was one found in microbatches, or with results computed again"
            return NoPlanFits(f"{refused}; {also}", refused.num_proposals)
        numbers = [] if self.request.is_free else [n for n in self.request.numbers if n > self.request.microbatches]
        more = self._enough(self.request.recompute, numbers)
        if more is None:
            return refused
        # A plan that is given says into how many pieces it cuts the batch.
        free = "leave --from out and " if self.request.start else ""
        near = "fits" if more.fits else "comes near fitting"
        return NoPlanFits(f"{refused}; or {free}give --accumulate {more.number}, with which a known plan {near}")

    def _too_much(self) -> str:
        """That what any plan keeps has no room, in words."""
        request, machine = self.request, self.request.desk.machine
        carried, given = accumulating.kept_bytes(request.evaluator(request.microbatches, request.recompute))
        whose = "parameters" if self.request.mode == "forward" else "parameters and what updates them"
        return (
            f"{whose} take {written(carried)} and the samples of a step {written(given)}, each kept but once, of "
            f"{written(int(machine.capacity.sum()))} in all"
        )

    def _search(self, chosen: Chosen, limits: Budget, start: dict[str, Strategy] | None = None) -> Found:
        evaluator, pinned, given = chosen.evaluator, chosen.pins, self.request.given(start or {}, self.progress)

        def ended(found: Found, within: Pins | None) -> Found:
            return settled(evaluator, found, given["sizes"], self.is_settled, pins=within)

        def look(within: Pins | None, share: float = 1.0) -> Found:
            part = limits if limits.seconds is None else replace(limits, seconds=share * limits.seconds)
            began, starts = clock(), given["start"] | self._layer_wise(evaluator, part, within)
            left = remaining(part, clock() - began)
            found = search(self.request.command.search, evaluator, left, pins=within, **{**given, "start": starts})
            # What is best on some processors is known once it is settled; of a time that is done with the best alone.
            return ended(found, within) if limits.seconds is None else found

        found = on_fewer(evaluator, look(pinned), partial(look, share=FURTHER), pinned, self.is_settled)
        return found if limits.seconds is None else ended(found, pinned)

    def _layer_wise(self, evaluator: Evaluator, limits: Budget, pins: Pins | None) -> dict[str, Strategy]:
        """A plan to begin from besides the known ones, by its name, unless only some of these are to be begun from."""
        if self.request.names is not None or not layerwise.is_worth(evaluator, self.request.command.search, limits):
            return {}
        return layerwise.layer_wise(evaluator, pins, limits.begun(layerwise.SHARE).is_over)


def remaining(limits: Budget, passed: float, share: float = 1.0) -> Budget:
    """So much of what is left of a budget after so many seconds: the least there is where nothing is."""
    if limits.seconds is None:
        return limits
    seconds, before = max(LEAST_SECONDS, share * (limits.seconds - passed)), limits.before + passed
    return replace(limits, seconds=seconds, before=before)
