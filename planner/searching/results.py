"""Results of searches: the plan that was found, complete, and the best plan whose arenas fit.

It does not know how plans are found.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import ge

import msgspec

from castile.planner.evaluation.evaluated import Evaluated
from castile.planner.evaluation.evaluator import Evaluator
from castile.planner.known.seeds import stamped
from castile.planner.lower import Lowering
from castile.planner.strategy import Predicted, Strategy, same_tasks


class NoPlanFits(ValueError):
    """No plan was found that fits into memory. The message says what takes most memory in the one that nearly fits.

    num_proposals   plans proposed before it was raised
    """

    def __init__(self, words: str, num_proposals: int = 0) -> None:
        super().__init__(words)
        self.num_proposals = num_proposals


@dataclass(frozen=True)
class SearchResult:
    """The plan that a search found, and how it found it.

    strategy           the plan, with the model and machine it was made for and its predictions
    evaluated          the plan as it was simulated
    arena_bytes        of each processor, as they will be allocated
    seeds              the known plans that were evaluated; none that fits is ranked before the plan found
    equals             name of the seed that equals the plan, "" if none does
    is_insisted        whether the search was for this very plan, even if others are better
    history            (number of proposals, seconds) whenever a better plan was found
    finalists          the best plans simulated, some of which may be better in another order
    """

    strategy: Strategy
    evaluated: Evaluated
    arena_bytes: tuple[int, ...]
    seeds: dict[str, Evaluated]
    equals: str
    is_insisted: bool
    num_proposals: int
    elapsed_seconds: float
    history: tuple[tuple[int, float], ...]
    finalists: tuple[Evaluated, ...] = ()

    @property
    def is_limited_by_memory(self) -> bool:
        """Whether a known plan is faster but does not fit."""
        seconds = self.evaluated.seconds
        return any(seed.seconds < seconds and not seed.fits for seed in self.seeds.values())


def complete_plan(evaluator: Evaluator, best: Evaluated, arena: tuple[int, ...], name: str, seed: int) -> Strategy:
    """The plan with the model and machine it was made for, the search that made it, and its predictions."""
    # The prediction in a plan is of its training step, of which a forward pass says nothing.
    is_step = evaluator.lowering.mode == "train"
    return msgspec.structs.replace(
        stamped(evaluator.lowering, dict(best.strategy.configs), name, seed),
        recompute=best.strategy.recompute,
        bucket_bytes=best.strategy.bucket_bytes,
        order=best.strategy.order,
        ahead=best.strategy.ahead,
        cost_snapshot=evaluator.cost_snapshot,
        predicted=Predicted(best.seconds, max(arena), best.moved_bytes) if is_step else None,
    )


def best_fitting(
    evaluator: Evaluator, candidates: Sequence[Evaluated], is_pinned: bool = False
) -> tuple[Evaluated, tuple[int, ...]]:
    """The best plan whose arenas fit, and their bytes. Live bytes are only a lower bound of these.

    Where arenas do not fit, other orders of the same tasks with as many live bytes are skipped: packing a large plan
    takes seconds. Raises NoPlanFits in one sentence, which names the largest owners of memory.
    """
    refused: list[tuple[Evaluated, ValueError]] = []
    for candidate in sorted(candidates, key=lambda e: e.rank):
        # Plans that do not fit come last, and the first of them has said why.
        if refused and not candidate.fits:
            break
        if any(_is_as_full(candidate, one) for one, _ in refused):
            continue
        try:
            return candidate, evaluator.pack(candidate.strategy)
        except ValueError as error:
            refused.append((candidate, error))
    limits = " with what is pinned" if is_pinned else ""
    raise NoPlanFits(f"no plan fits{limits}; the nearest one: {refused[0][1]}")


def _is_as_full(one: Evaluated, other: Evaluated) -> bool:
    """Whether a plan is another order of the same tasks, with at least as many live bytes on every processor."""
    ordered = msgspec.structs.replace(one.strategy, order=other.strategy.order, ahead=other.strategy.ahead)
    return same_tasks(ordered, other.strategy) and all(map(ge, one.peak_bytes, other.peak_bytes))


def matching_seed(lowering: Lowering, seeds: Mapping[str, Evaluated], best: Evaluated) -> str:
    """The name of the seed with the same Configs, counting defaults of nodes that a plan leaves out; "" if none."""
    configs = lowering.configs(best.strategy)
    subsets = {n: seed.strategy for n, seed in seeds.items() if seed.strategy.configs.items() <= configs.items()}
    return next((name for name, plan in subsets.items() if lowering.configs(plan) == configs), "")
