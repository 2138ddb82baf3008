"""A job as `castile validate` reports of one, which nothing was run for."""

from types import SimpleNamespace
from unittest.mock import Mock

from castile.launch.validate import Lesson, Outcome
from castile.planner.costs.snapshot import Environment, Snapshot
from castile.planner.simulation.replay import Replay, Sort

LEARNED = Snapshot(Environment("cpu"), (), 1.25e-5, 2.5e-4, 9)


def job(microbatches: int = 1, recompute: tuple[str, ...] = ()) -> SimpleNamespace:
    named = SimpleNamespace(name="m", text="m")
    lowering, graph = SimpleNamespace(microbatches=microbatches, recompute=recompute), Mock(batch=8)
    graph.nodes = dict.fromkeys(recompute)
    return SimpleNamespace(model=named, machine=named, graph=graph, lowering=lowering, snapshot=LEARNED)


def outcome(rows, num_held_up: int, num_steps: int) -> Outcome:
    """What was found of these plans, and of tasks of two sorts in those that were not learned from."""
    sorts = {
        "conv2d.F": Sort(3, 0.75, 1.0, {"measured": 0.5, "learned": 0.25}, 1.125),
        "move": Sort(2, 0.125, 0.25, {"measured": 0.125}, 1.0625),
    }
    replays = {row.name: Replay(1.0, 1.25, 1.5, 1.75, sorts) for row in rows if not row.learned_from}
    lessons = [Lesson(0, 0, 0.5), Lesson(1, 8, 0.25)]
    return Outcome(rows, lessons, replays, num_held_up, num_steps, "b", {"trace": "t.json"})
