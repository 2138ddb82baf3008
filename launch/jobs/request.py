"""Requests: what the options of `castile plan` ask a search for: lowerings, pins, microbatches, recomputation, and
forecasts of known plans.

It does not know in which order these are searched, nor what is found.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Protocol

import msgspec

from castile.launch.jobs import checks
from castile.launch.jobs.offline import Desk
from castile.planner.choices import pins
from castile.planner.choices.pins import Pins
from castile.planner.evaluation.evaluator import Evaluator
from castile.planner.evaluation.sizes import SIZES
from castile.planner.known.large import has_many_parts
from castile.planner.known.pipelines import divisors
from castile.planner.known.seeds import known_names
from castile.planner.lower import Lowering
from castile.planner.search import Progress
from castile.planner.searching import accumulation, least_memory
from castile.planner.searching.accumulation import Batching
from castile.planner.searching.forecasts import (
    Forecast,
    Forecaster,
    ForecastRequest,
    Forecasts,
    Prefetcher,
    forecast_known,
)
from castile.planner.searching.refinement import SEARCHED_PARTS
from castile.planner.searching.subsets import pin_all_to
from castile.planner.step.recompute import STEPS, Recomputation
from castile.planner.strategy import Names, Strategy
from castile.runtime.machine import num_cores

Dropped = tuple[str, ...]


class Options(Protocol):
    """The options of the command that say how to search."""

    @property
    def search(self) -> str: ...
    @property
    def objective(self) -> str: ...
    @property
    def front(self) -> bool: ...
    @property
    def pin(self) -> tuple[str, ...]: ...
    @property
    def without(self) -> str: ...
    @property
    def seeds(self) -> str: ...
    @property
    def processes(self) -> int: ...
    @property
    def seed(self) -> int: ...
    @property
    def accumulate(self) -> int | None: ...
    @property
    def recompute(self) -> str: ...


def mode_of(objective: str) -> str:
    """What plans with an objective are lowered to."""
    return "forward" if objective == "latency" else "train"


@dataclass(frozen=True)
class Request:
    """A request for a plan.

    start      the plan to start from, if one is given, by the name "given"
    only       the processors that may be used; empty for all that the options allow
    is_alone   whether no other process may be started
    """

    command: Options
    desk: Desk
    start: dict[str, Strategy]
    only: tuple[int, ...] = ()
    is_alone: bool = False

    @property
    def mode(self) -> str:
        """What plans are lowered to."""
        return mode_of(self.command.objective)

    @cached_property
    def names(self) -> list[str] | None:
        """The known plans to start from, None for all; of a search that is a known plan, that one alone."""
        if self.command.seeds:
            return [name.strip() for name in self.command.seeds.split(",")]
        search = self.command.search
        return [search] if search in known_names(self.lowering) else None

    @property
    def microbatches(self) -> int:
        """The number of microbatches to try first: as the user says, as in the given plan, or one."""
        if self.mode == "forward":
            return 1
        return self.command.accumulate or max((plan.microbatches for plan in self.start.values()), default=1)

    @cached_property
    def recompute(self) -> Dropped:
        """The nodes to recompute at first: as the user says, as in the given plan, or none."""
        given = [plan.recompute if self.mode == "train" else () for plan in self.start.values()]
        return given[0] if given else self.dropped(self.command.recompute)

    def dropped(self, way: str) -> Dropped:
        """The nodes that a way of recomputation recomputes."""
        return checks.recomputed(way, self.recomputation)

    @cached_property
    def recomputation(self) -> Recomputation:
        """The ways to recompute nodes of this graph."""
        return Recomputation(self.desk.evaluator.lowering.graph, self.desk.evaluator.lowering.updates)

    @cached_property
    def lowering(self) -> Lowering:
        """The lowering with the microbatches and recomputation to try first."""
        return self.evaluator(self.microbatches, self.recompute).lowering

    def evaluator(self, microbatches: int, recompute: Dropped) -> Evaluator:
        """The evaluator for a number of microbatches and nodes to recompute, with the objective that is asked for."""
        known = self.desk.evaluator.lowering
        if (known.mode, known.microbatches, known.recompute) == (self.mode, microbatches, recompute):
            return self.desk.evaluator.remade(self.command.objective)
        lowering = known.remade(mode=self.mode, microbatches=microbatches, recompute=recompute)
        return self.desk.evaluator.remade(self.command.objective, lowering=lowering)

    def pins(self, lowering: Lowering) -> Pins | None:
        """The user's pins, None for none. Raises ValueError for an unknown node."""
        found = [pins.parse(text) for text in self.command.pin]
        if self.command.without:
            found.append(pins.without(self.command.without, lowering.machine.num_procs))
        if self.only:
            found.append(pin_all_to(self.only))
        names = Names(lowering.piece.nodes, lowering.names.optional)
        return Pins(found, names, lowering.machine.num_procs) if found else None

    def forecaster(self, recompute: Dropped, name_filter: Callable[[str], bool] | None = None) -> Forecaster:
        """Forecasts the known plans that a search starts from, or those selected by name; each is computed once."""
        cache = self._forecasts.setdefault((recompute, name_filter), Forecasts())
        return Forecaster(partial(self.at, recompute), self.names, name_filter, recompute, self.prefetcher, cache)

    @cached_property
    def _forecasts(self) -> dict[tuple[Dropped, Callable[[str], bool] | None], Forecasts]:
        return {}

    @cached_property
    def prefetcher(self) -> Prefetcher:
        """Computes forecasts before they are needed, while it is running."""
        return Prefetcher(self.is_dear and num_cores() > 1 and not self.is_alone)

    def compute_forecasts(self, asked: ForecastRequest) -> Forecasts:
        """The forecasts that a prefetching process was asked for."""
        return self.forecaster(asked.recompute, asked.name_filter).compute(asked.counts)

    def at(self, recompute: Dropped, microbatches: int) -> tuple[Evaluator, Pins | None]:
        """The evaluator and pins for plans with this number of microbatches that recompute these nodes."""
        evaluator = self.evaluator(microbatches, recompute)
        return evaluator, self.pins(evaluator.lowering)

    @property
    def is_free(self) -> bool:
        """Whether the search may choose the number of microbatches."""
        return not (self.command.accumulate or self.start)

    @property
    def may_fill(self) -> bool:
        """Whether pipelines and low-memory plans with other numbers of microbatches may be tried."""
        return self.is_free and self.command.objective == "time" and not self.names

    @property
    def ways(self) -> tuple[str, ...]:
        """The ways of recomputation to escalate to; none where the user said one.

        Those that gather parameters too are left out where low-memory plans are tried, which do that.
        """
        return self.said_by_none(gathering=not self.may_fill)

    def said_by_none(self, gathering: bool, steps: int = STEPS) -> tuple[str, ...]:
        """All ways of recomputation, unless the user said one.

        gathering   with those that gather parameters for each pass too
        """
        is_said = self.command.recompute or self.start or self.mode == "forward"
        return () if is_said else self.recomputation.ways(gathering=gathering, steps=steps)

    @cached_property
    def ways_left(self) -> tuple[str, ...]:
        """The `ways` that may help where no plan fits: none where not even the state has room."""
        return self.ways if self.could_fit else ()

    @cached_property
    def could_fit(self) -> bool:
        """Whether there is room for the bytes that every plan keeps."""
        return accumulation.could_fit(self.evaluator(self.microbatches, self.recompute))

    @property
    def numbers(self) -> tuple[int, ...]:
        """The numbers of microbatches into which the batch may be cut; none where that cannot help."""
        is_cut = self.mode == "train" and self.could_fit
        return divisors(self.desk.evaluator.lowering.graph.batch) if is_cut else ()

    def smallest(self, is_over: Callable[[], bool]) -> Batching | None:
        """The batching with which plans need least memory; None where none may be chosen."""
        if self.start or self.mode == "forward" or not self.could_fit:
            return None

        def at(way: Dropped, number: int) -> tuple[Evaluator, Pins | None]:
            evaluator, pinned = self.at(way, number)
            return evaluator.remade("memory"), pinned

        ways = dict.fromkeys((self.recompute, *map(self.dropped, self.said_by_none(gathering=True, steps=1))))
        numbers = self.numbers if self.is_free else (self.microbatches,)
        forecasters = [Forecaster(partial(at, way), self.names) for way in ways]
        return least_memory.least_memory_batching(forecasters, numbers, is_over)

    def given(self, start: dict[str, Strategy], progress: Progress | None) -> dict[str, Any]:
        """The arguments of searches beside budget and pins."""
        # A search starts without buckets.
        plain = {name: msgspec.structs.replace(plan, bucket_bytes=0) for name, plan in start.items()}
        return {
            "seed": self.command.seed, "progress": progress, "start": plain, "num_processes": self.command.processes,
            "seeds": self.names, "sizes": (*SIZES, *(plan.bucket_bytes for plan in start.values())),
        }  # fmt: skip

    @property
    def is_long(self) -> bool:
        """Whether a search takes half a minute, and simulating a pipeline seconds."""
        return has_many_parts(self.desk.evaluator.lowering, SEARCHED_PARTS)

    @property
    def is_dear(self) -> bool:
        """Whether a search takes a minute to find that no plan fits."""
        return has_many_parts(self.desk.evaluator.lowering)

    def forecast(self, chosen: Batching) -> Forecast:
        """The forecast of the known plans, computed once for all who ask."""
        cache = self._forecasts.setdefault((chosen.evaluator.lowering.recompute, None), Forecasts())
        found = cache.get(chosen.num_microbatches) or forecast_known(chosen.evaluator, self.names, chosen.pins)
        cache[chosen.num_microbatches] = found
        return found
