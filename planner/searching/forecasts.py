"""Forecasts: time and memory of known plans for given numbers of microbatches, by sketches. Where sketches take long, a
forked process prefetches those that are likely to be needed next.

It does not know why a number of microbatches is tried, nor how a sketch is computed.
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
from castile.planner.sketch.sketched_plans import SketchedPlans
from castile.planner.strategy import Strategy

# A forecast keeps this many of the fastest known plans that should fit, and the smallest one.
MOST_FASTEST = 3
# Shares of memory that differ by less than this count as equal.
SHARE_TOLERANCE = 0.02
# Sketches of whole batches gave the smallest known plan up to 1.45 times the memory that it needed (decision 0046), and
# sketches of microbatches never more than it needed. Beyond this multiple of the capacity no plan comes near fitting.
FAR = 3.0


@dataclass(frozen=True)
class Forecast:
    """What sketches say of the known plans with one number of microbatches.

    share           memory of the smallest plan on its fullest processor, as a multiple of the capacity: above 1 no
                    known plan should fit
    fitting         (seconds, plan) of plans that should fit: the fastest few, the fastest first, then the smallest;
                    where plans are ranked by memory, the smallest few
    least_seconds   of the fastest plan, whether it should fit or not
    """

    share: float
    fitting: tuple[tuple[float, Strategy], ...]
    least_seconds: float

    @property
    def is_far(self) -> bool:
        """Whether no known plan comes near fitting. Other plans may still fit."""
        return self.share > FAR


class Candidate(NamedTuple):
    """A number of microbatches, an evaluator for it, the pins of its plans, and the forecast of its known plans."""

    num_microbatches: int
    evaluator: Evaluator
    pins: Pins | None
    forecast: Forecast

    @property
    def seconds(self) -> float:
        """The forecast of the best plan that should fit; there must be one."""
        return self.forecast.fitting[0][0]


class ForecastRequest(NamedTuple):
    """Asks for forecasts with these numbers of microbatches, ascending, up to the first with which a plan should fit.

    recompute     names of the recomputed nodes
    name_filter   selects known plans by name; None for those that a search starts from
    """

    counts: tuple[int, ...]
    recompute: tuple[str, ...]
    name_filter: Callable[[str], bool] | None


# By number of microbatches; None where the batch cannot be cut into as many, or no known plan is selected.
Forecasts = dict[int, Forecast | None]


class Prefetcher:
    """Computes forecasts in a forked process before they are needed, within `running`.

    is_enabled   whether that pays and a core is free for it; if not, nothing is prefetched
    """

    def __init__(self, is_enabled: bool) -> None:
        self._is_enabled = is_enabled
        self._pending: dict[ForecastRequest, int] = {}
        self._fork: Fork[ForecastRequest, Forecasts] | None = None

    @contextmanager
    def running(self, compute: Callable[[ForecastRequest], Forecasts]) -> Iterator[None]:
        """Start the process, which calls `compute`, and end it on leaving.

        `compute` may refer to this object: no reference to it is kept.
        """
        if self._is_enabled:
            self._fork = Fork(compute)
        try:
            yield
        finally:
            if self._fork is not None:
                self._fork.end(at_once=True)
            self._fork = None
            self._pending.clear()

    def request(self, wanted: ForecastRequest, can_wait: bool = False) -> None:
        """Send a request, if there is a process. The latest is served first, those that can wait last of all."""
        if self._fork is not None and wanted not in self._pending:
            self._pending[wanted] = self._fork.ask(wanted, can_wait)

    def take(self, wanted: ForecastRequest) -> Forecasts:
        """The forecasts of a pending request that covers this one; each is given once.

        Empty where there is none, or where the process has not started on it: then the caller may as well compute it.
        """
        request = next(self._covering(wanted), None)
        if request is None:
            return {}
        assert self._fork is not None
        number = self._pending.pop(request)
        return {} if self._fork.cancel(number) else self._fork.answer(number)

    def cancel(self, wanted: ForecastRequest) -> None:
        """Withdraw the pending requests that cover this one."""
        for request in [*self._covering(wanted)]:
            assert self._fork is not None
            if self._fork.cancel(self._pending[request]):
                del self._pending[request]

    def is_pending(self, wanted: ForecastRequest) -> bool:
        """Whether a request that covers this one was sent, and its forecasts were not taken yet."""
        return any(self._covering(wanted))

    def _covering(self, wanted: ForecastRequest) -> Iterator[ForecastRequest]:
        """The pending requests for the same plans and at least these numbers of microbatches."""
        return (one for one in self._pending if one[1:] == wanted[1:] and {*wanted.counts} <= {*one.counts})


@dataclass(frozen=True)
class Forecaster:
    """Forecasts of known plans for any number of microbatches.

    prepare       makes the evaluator and the pins for a number of microbatches; raises ValueError where the batch
                  cannot be cut into as many
    names         of the known plans; None for all that a search starts from
    name_filter   selects among all known plans by name instead
    recompute     names of the recomputed nodes
    prefetcher    computes some forecasts before they are needed
    cache         the forecasts computed so far
    """

    prepare: Callable[[int], tuple[Evaluator, Pins | None]]
    names: Sequence[str] | None = None
    name_filter: Callable[[str], bool] | None = None
    recompute: tuple[str, ...] = ()
    prefetcher: Prefetcher | None = None
    cache: Forecasts = field(default_factory=Forecasts)

    def candidates(
        self, counts: Iterable[int], most_share: float, is_late: Callable[[], bool], to_beat: float = inf
    ) -> Iterator[Candidate]:
        """The numbers of microbatches, ascending, for which there are known plans.

        Skips numbers with which, judging by the others, the smallest plan needs more than `most_share` times the
        memory. While one is used, the next is prefetched.

        is_late   once true, no further number is tried
        to_beat   seconds: stops at a number with which the work of all processors alone takes as long
        """
        shares: dict[int, float] = {}
        remaining = [*counts]
        while remaining and not is_late():
            count, *remaining = remaining
            if not may_fit(shares, count, most_share):
                continue
            following = next((n for n in remaining if may_fit(shares, n, most_share)), None)
            if following is not None and self.cache.keys().isdisjoint((count, following)):
                if not self._is_pending(count):
                    self.prefetch(following)
            try:
                candidate = self._candidate(count, to_beat)
            except _TooSlow:
                return
            if candidate is not None:
                shares[count] = candidate.forecast.share
                yield candidate

    def prefetch(self, *counts: int, can_wait: bool = False) -> None:
        """Have these numbers of microbatches forecast ahead, up to the first with which a plan should fit."""
        if self.prefetcher is not None and counts:
            self.prefetcher.request(self._request(*counts), can_wait)

    def cancel(self) -> None:
        """Cancel all that was to be prefetched."""
        if self.prefetcher is not None:
            self.prefetcher.cancel(self._request())

    def compute(self, counts: Iterable[int]) -> Forecasts:
        """Forecasts, computed in this process, up to the first number with which a plan should fit."""
        shares, found, here = dict[int, float](), Forecasts(), replace(self, prefetcher=None)
        for count in counts:
            if not may_fit(shares, count, 1.0):
                continue
            candidate = here._candidate(count)
            found[count] = candidate and candidate.forecast
            if candidate is not None:
                shares[count] = candidate.forecast.share
                if candidate.forecast.fitting:
                    break
        return found

    def _candidate(self, count: int, to_beat: float = inf) -> Candidate | None:
        """Raises _TooSlow where there is no forecast yet and no plan takes less than `to_beat` seconds."""
        try:
            evaluator, pins = self.prepare(count)
            if self.prefetcher is not None and count not in self.cache:
                self.cache.update(self.prefetcher.take(self._request(count)))
            if count not in self.cache:
                if _is_too_slow(evaluator, to_beat):
                    raise _TooSlow
                self.cache[count] = self._forecast(evaluator, pins)
        except ValueError:
            # A batch that cannot be cut into this number of microbatches may be cut into another one.
            return None
        forecast = self.cache[count]
        return None if forecast is None else Candidate(count, evaluator, pins, forecast)

    def _forecast(self, evaluator: Evaluator, pins: Pins | None) -> Forecast | None:
        names = self.names
        if self.name_filter is not None:
            names = [name for name in known_names(evaluator.lowering, pins) if self.name_filter(name)]
        return None if names is not None and not names else forecast_known(evaluator, names, pins)

    def _request(self, *counts: int) -> ForecastRequest:
        return ForecastRequest(counts, self.recompute, self.name_filter)

    def _is_pending(self, count: int) -> bool:
        return self.prefetcher is not None and self.prefetcher.is_pending(self._request(count))


class _TooSlow(Exception):
    """No plan with this number of microbatches is fast enough, and none with more."""


def _is_too_slow(evaluator: Evaluator, seconds: float) -> bool:
    """Whether the work of all processors takes as long; with more microbatches, kernels are smaller and no faster."""
    return seconds < inf and work_bound(evaluator) >= seconds


def forecast_known(
    evaluator: Evaluator, names: Sequence[str] | None = None, pins: Pins | None = None
) -> Forecast:
    """What sketches say of the known plans of these names, in the number of microbatches of the evaluator's lowering.

    Raises ValueError where the batch cannot be cut into as many.
    """
    lowering, cost = evaluator.lowering, evaluator.cost
    known = seeds(lowering, names, cost, pins)
    sieve = SketchedPlans(evaluator, known, Spaces(lowering, cost, pins))
    found = [(one.seconds, one.share, known[name]) for name, one in sieve.estimates.items() if one.share <= 1]
    found.sort(key=lambda one: (one[1], one[0]) if sieve.is_sparing else one[:2])
    # A sketch of a small vit had half of its true memory: where the fastest do not fit, the smallest may.
    smallest = sorted(found[MOST_FASTEST:], key=lambda one: one[1])[:1]
    fitting = tuple((seconds, plan) for seconds, _, plan in (*found[:MOST_FASTEST], *smallest))
    estimates = sieve.estimates.values()
    return Forecast(min(one.share for one in estimates), fitting, min(one.seconds for one in estimates))


def may_fit(shares: Mapping[int, float], count: int, most_share: float) -> bool:
    """Whether with `count` microbatches the smallest known plan may need at most `most_share` times the memory.

    shares   its memory with other numbers of microbatches, as multiples of the capacity: twice as many microbatches at
             best halve it, also with twice as many stages
    """
    least = min(shares.values(), default=0.0)
    smallest = max([n for n, share in shares.items() if share <= (1 + SHARE_TOLERANCE) * least], default=0)
    return smallest * least <= most_share * count
