"""Figures of a search for a plan: the JSON object of `castile plan`, of which people are told a part.

It does not know how plans are found, nor what is written of them.
"""

from __future__ import annotations

from typing import Any

from castile.launch.jobs.plan_search import PlanSearch
from castile.launch.jobs.search_history import SearchHistory
from castile.launch.reports import report, throughput
from castile.planner.bounds.lower_bound import Bound, lower_bound
from castile.planner.choices.pins import Pins
from castile.planner.choices.spaces import Spaces
from castile.planner.evaluation.evaluated import Evaluated
from castile.planner.evaluation.evaluator import Evaluator
from castile.planner.lowering.stages import num_stages
from castile.planner.searching.accumulation import Batching
from castile.planner.searching.results import SearchResult
from castile.planner.strategy import Strategy


def of(
    plan_search: PlanSearch, chosen: Batching, found: SearchResult, course: SearchHistory, saved: float
) -> dict[str, Any]:
    """Every figure of what was found, and where.

    course  how it was found
    saved   the share of all work that the rewrites of the graph save
    """
    desk, evaluator, plan = plan_search.desk, chosen.evaluator, found.strategy
    graph, stages = desk.evaluator.lowering.graph, num_stages(plan, desk.evaluator.lowering.graph.nodes)
    is_cut = plan.microbatches > plan_search.microbatches and stages == 1
    # With little memory as the objective nothing is given up for fitting.
    is_to_fit = plan_search.command.objective != "memory"
    return {
        **_of_search(plan_search, found),
        "history": course.ended(found),
        "rewrite": desk.model.rewrite,
        "work_saved_share": saved,
        "microbatches": plan.microbatches,
        "num_stages": stages,
        "is_cut_to_fit": is_to_fit and is_cut and not _fits_whole(found, plan_search.microbatches),
        "num_nodes": len(graph.nodes),
        "num_params": len(graph.params),
        **report.dropped(evaluator, plan),
        "is_recomputed_to_fit": is_to_fit and {*plan.recompute} != {*plan_search.recompute},
        "pinned": [str(pin) for pin in chosen.pins.pins] if chosen.pins is not None else [],
        **_of_bound(_bound(evaluator, chosen.pins, found), found),
        **_of_tasks(evaluator, plan),
    }


def _of_search(plan_search: PlanSearch, found: SearchResult) -> dict[str, Any]:
    """What was looked at, and what came of it."""
    desk, command = plan_search.desk, plan_search.command
    base, batch = found.seeds["data_parallel"], desk.evaluator.lowering.graph.batch
    return {
        "model": desk.model.text,
        "machine": desk.machine.name,
        "num_procs": desk.machine.num_procs,
        "batch_samples": batch,
        **throughput.facts(desk.evaluator.lowering, found.evaluated.seconds),
        "samples_per_second_per_proc": batch / found.evaluated.seconds / desk.machine.num_procs,
        "capacity_bytes": desk.machine.capacity.tolist(),
        "optimizer": desk.optimizer,
        "clip": desk.clip,
        "search": found.strategy.search,
        "objective": command.objective,
        "seed": command.seed,
        "num_proposals": found.num_proposals,
        "elapsed_seconds": found.elapsed_seconds,
        "equals": found.equals,
        "found": report.facts(found.evaluated, base) | {"arena_bytes": list(found.arena_bytes)},
        "seeds": {name: _of_seed(worth, found) for name, worth in found.seeds.items()},
        "layouts": [{"config": row.config, "nodes": row.nodes} for row in report.layouts(found.strategy)],
    }


def _of_seed(worth: Evaluated, found: SearchResult) -> dict[str, Any]:
    """What a known plan is worth; one that comes before what was found fits by its live bytes only, not once packed."""
    facts = report.facts(worth, found.seeds["data_parallel"])
    return facts | {"fits": worth.fits and (found.is_insisted or worth.rank >= found.evaluated.rank)}


def _fits_whole(found: SearchResult, microbatches: int) -> bool:
    """Whether a known plan fits in so many microbatches, or fewer."""
    return any(seed.fits and seed.strategy.microbatches <= microbatches for seed in found.seeds.values())


def _bound(evaluator: Evaluator, pinned: Pins | None, found: SearchResult) -> Bound | None:
    """What no plan beats that cuts nodes into as many parts as the search may, or as the plan does."""
    most = Spaces(evaluator.lowering, evaluator.cost, pinned).most_parts
    parts = (config.num_parts for config in found.strategy.configs.values())
    return lower_bound(evaluator, max(evaluator.lowering.machine.num_procs, most, *parts))


def _of_bound(bound: Bound | None, found: SearchResult) -> dict[str, Any]:
    """What no plan can beat, and how far off the plan is; nothing where the bound is not known."""
    return {
        "bound_seconds": bound and bound.seconds,
        "work_bound_seconds": bound and bound.work_seconds,
        "chain_bound_seconds": bound and bound.chain_seconds,
        "gap_share": bound and bound.gap(found.evaluated.seconds),
    }


def _of_tasks(evaluator: Evaluator, plan: Strategy) -> dict[str, Any]:
    """How many tasks a step has, where their prices come from, and what its buckets, its order and what it begins ahead
    do.
    """
    tasks, count = evaluator.tasks(plan)
    return {
        "num_tasks": int(count.sum()),
        "prices": evaluator.cost.sources(tasks.cost_keys),
        "buckets": report.buckets(evaluator, plan),
        "order": report.order(evaluator, plan),
        "ahead": report.ahead(evaluator, plan),
    }
