"""Chains: Metropolis walks through one sketch, each with its own random numbers, some of them prefetched in threads.

The result of a chain does not depend on when it runs, so idle cores can run the next ones ahead. It does not know how
starts are chosen, nor what results are used for.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any, NamedTuple

import numpy as np

from castile.planner.sketch.moves import coarse_draws
from castile.planner.sketch.sketch import NUM_DRAWS, NumberedWalk, Sketch, WalkResult
from castile.planner.strategy import Config
from castile.runtime.machine import num_cores

# Initial temperatures, as shares of a plan's energy: a plan worse by this share is accepted with probability 1/e.
TEMPERATURE, COARSE = 0.02, 0.002
# In plans of more nodes each has a smaller part of the time, and the temperature is proportionally lower.
MOST_HOT = 60
# Seconds for which a thread that has walked waits for the interpreter's lock before it can go on: of a chain of 2,000
# proposals the five milliseconds that Python has by default are half.
PATIENCE = 5e-4
# The shares by which reverting one change, and all changes, may make a plan slower. A sketch is less exact than that,
# and each node that is cut otherwise than nodes like it is lowered by itself.
LITTLE, LITTLE_OF_ALL = 3e-4, 1e-3


class Chain(NamedTuple):
    """A chain: its start, whether updates are in pieces, and the number of proposals.

    is_coarse   whether it mostly moves groups of nodes, at a low temperature
    longer      as in `Sketch.walk`: if not 0, memory is minimized
    """

    configs: dict[str, Config]
    in_pieces: bool
    num_proposals: int
    is_coarse: bool
    longer: float = 0.0


class _Prefetched(NamedTuple):
    """A prefetched chain, which runs or waits for a thread.

    state   of the random generator before this chain, restored if the chain is dropped
    """

    chain: Chain
    state: Mapping[str, Any]
    plan: np.ndarray
    draws: np.ndarray
    trail: Future[NumberedWalk]


class Chains:
    """Walks through one sketch.

    capacity   bytes[P]
    """

    def __init__(self, sketch: Sketch, capacity: np.ndarray, seed: int) -> None:
        self._sketch, self._capacity, self._rng = sketch, capacity, np.random.default_rng(seed)
        self._prefetched: deque[_Prefetched] = deque()
        # The numbers of plans by identity, each with what keeps its identity its own.
        self._numbers: dict[int, tuple[dict[str, Config], np.ndarray]] = {}
        self._aside: ThreadPoolExecutor | None = None
        self._patience = sys.getswitchinterval()

    def prefetch(self, chains: Sequence[Chain]) -> None:
        """Start chains that are likely to be wanted, in this order, in threads on all cores but the caller's.

        Does nothing where walks of the sketch cannot run in threads (`Sketch.is_apart`).
        """
        if not self._sketch.is_apart or not chains:
            return
        num_threads = max(1, min(len(chains), num_cores()) - 1)
        self._aside = ThreadPoolExecutor(num_threads, "castile chains")
        sys.setswitchinterval(min(self._patience, PATIENCE))
        free: SimpleQueue[Sketch] = SimpleQueue()
        for _ in range(num_threads):
            free.put(self._sketch.copy_for_thread())
        for chain in chains:
            state, plan, draws = self._rng.bit_generator.state, self._number(chain.configs), self._draws(chain)
            trail = self._aside.submit(self._in_thread, free, chain, plan, draws)
            self._prefetched.append(_Prefetched(chain, state, plan, draws, trail))

    def walk(self, chain: Chain) -> WalkResult:
        """The result of the next chain; at once where it was prefetched and is done."""
        if self._prefetched and self._prefetched[0].chain == chain:
            trail = self._awaited(self._prefetched.popleft().trail)
        else:
            self.stop()
            trail = self._trail(self._sketch, chain, self._number(chain.configs), self._draws(chain))
        return self._sketch.result_of(trail)

    def without_useless_changes(
        self, chain: Chain, plan: dict[str, Config], each: float, every: float
    ) -> dict[str, Config]:
        """The result of a chain, with changes reverted that gain little (`Sketch.without_useless_changes`)."""
        self._sketch.update(chain.in_pieces)
        first, best = self._number(chain.configs), self._number(plan)
        return self._sketch.configs(
            self._sketch.without_useless_changes(first, best, each, every, self._capacity, chain.longer)[1]
        )

    def stop(self) -> None:
        """Drop the chains that were not wanted, as if they had not been started."""
        if self._aside is not None:
            self._aside.shutdown(cancel_futures=True)
            self._aside = None
            sys.setswitchinterval(self._patience)
        if self._prefetched:
            self._rng.bit_generator.state = self._prefetched[0].state
            self._prefetched.clear()

    def _draws(self, chain: Chain) -> np.ndarray:
        draws = self._rng.random((chain.num_proposals, NUM_DRAWS))
        return coarse_draws(draws) if chain.is_coarse else draws

    def _number(self, configs: dict[str, Config]) -> np.ndarray:
        if id(configs) not in self._numbers:
            self._numbers[id(configs)] = configs, self._sketch.number(configs)
        return self._numbers[id(configs)][1].copy()

    def _awaited(self, trail: Future[NumberedWalk]) -> NumberedWalk:
        """The result of a prefetched chain; until it is done, chains that wait for a thread run here."""
        for number, (chain, _, plan, draws, other) in enumerate(self._prefetched):
            if trail.done():
                break
            if other.cancel():
                here: Future[NumberedWalk] = Future()
                here.set_result(self._trail(self._sketch, chain, plan, draws))
                self._prefetched[number] = self._prefetched[number]._replace(trail=here)
        return trail.result()

    def _in_thread(self, free: SimpleQueue[Sketch], chain: Chain, plan: np.ndarray, draws: np.ndarray) -> NumberedWalk:
        sketch = free.get()
        try:
            return self._trail(sketch, chain, plan, draws)
        finally:
            free.put(sketch)

    def _trail(self, sketch: Sketch, chain: Chain, plan: np.ndarray, draws: np.ndarray) -> NumberedWalk:
        """Run a chain; in a thread it does little that needs the interpreter's lock."""
        sketch.update(chain.in_pieces)
        hot = TEMPERATURE * min(1.0, MOST_HOT / len(plan))
        heats = (COARSE if chain.is_coarse else hot) * np.linspace(1, 0, chain.num_proposals)
        first = plan.copy()
        trail = sketch.walk(plan, draws, heats, self._capacity, chain.longer)
        least, best = sketch.without_useless_changes(
            first, trail.best, LITTLE, LITTLE_OF_ALL, self._capacity, chain.longer
        )
        return trail._replace(least=least, best=best)
