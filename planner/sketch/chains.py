"""Chains: walks through one sketch, each with its own random numbers, some of which are begun before they are asked
for.

What a chain finds does not depend on when it was walked, so idle cores can walk the next ones in threads. It does not
know what its starts are good for, nor what is done with what it finds.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any, NamedTuple

import numpy as np

from castile.planner.sketch.changes import coarsened
from castile.planner.sketch.sketch import NUM_DRAWS, Sketch, Trail, Walked
from castile.planner.strategy import Config
from castile.runtime.machine import num_cores

# Shares of a plan's own time: in the beginning a plan that takes so much longer is accepted with probability 1/e; in
# coarse chains one that takes a tenth of that longer.
TEMPERATURE, COARSE = 0.02, 0.002
# In plans of more nodes than this each has a smaller part of the time, and the temperature is as much lower.
MOST_HOT = 60
# Seconds for which a thread that has walked waits for the interpreter's lock before it can go on: of a chain of 2,000
# proposals the five milliseconds that Python has by default are half.
PATIENCE = 5e-4
# By what shares of its time a plan may become longer where one change is taken back, and where all are. A sketch cannot
# tell so little; and each node that is cut otherwise than nodes like it is lowered by itself.
LITTLE, LITTLE_OF_ALL = 3e-4, 1e-3


class Chain(NamedTuple):
    """Where a chain begins, whether updates are in pieces there, and how many proposals it is of.

    is_coarse   whether it moves groups of nodes mostly, and hardly ever leaves what it has found
    longer      as `Sketch.trail` has it: where it is not 0 what is made small is memory
    """

    configs: dict[str, Config]
    in_pieces: bool
    num_proposals: int
    is_coarse: bool
    longer: float = 0.0


class _Foreseen(NamedTuple):
    """A chain that is being walked, or waits for a thread.

    state   of the random numbers before its own, to which they are set back where it is not asked for
    """

    chain: Chain
    state: Mapping[str, Any]
    plan: np.ndarray
    draws: np.ndarray
    trail: Future[Trail]


class Chains:
    """Walks through one sketch.

    capacity   bytes[P]
    """

    def __init__(self, sketch: Sketch, capacity: np.ndarray, seed: int) -> None:
        self._sketch, self._capacity, self._rng = sketch, capacity, np.random.default_rng(seed)
        self._foreseen: deque[_Foreseen] = deque()
        # The numbers of plans by identity, each with what keeps its identity its own.
        self._numbers: dict[int, tuple[dict[str, Config], np.ndarray]] = {}
        self._aside: ThreadPoolExecutor | None = None
        self._patience = sys.getswitchinterval()

    def foresee(self, chains: Sequence[Chain]) -> None:
        """Begin with chains that are likely to be asked for, in this order, on all cores but one, which is the
        caller's.

        Only where a walk takes nothing that others change: where loops are compiled and all prices are found at once.
        """
        if not self._sketch.is_apart or not chains:
            return
        num_threads = max(1, min(len(chains), num_cores()) - 1)
        self._aside = ThreadPoolExecutor(num_threads, "castile chains")
        sys.setswitchinterval(min(self._patience, PATIENCE))
        free: SimpleQueue[Sketch] = SimpleQueue()
        for _ in range(num_threads):
            free.put(self._sketch.beside())
        for chain in chains:
            state, plan, draws = self._rng.bit_generator.state, self._number(chain.configs), self._draws(chain)
            trail = self._aside.submit(self._in_thread, free, chain, plan, draws)
            self._foreseen.append(_Foreseen(chain, state, plan, draws, trail))

    def walk(self, chain: Chain) -> Walked:
        """What the next chain finds; at once where it was foreseen and is done."""
        if self._foreseen and self._foreseen[0].chain == chain:
            trail = self._awaited(self._foreseen.popleft().trail)
        else:
            self.stop()
            trail = self._trail(self._sketch, chain, self._number(chain.configs), self._draws(chain))
        return self._sketch.walked(trail)

    def trimmed(self, chain: Chain, plan: dict[str, Config], each: float, every: float) -> dict[str, Config]:
        """What a chain ended with, without those of its changes that gain little (`Sketch.trimmed`)."""
        self._sketch.update(chain.in_pieces)
        first, best = self._number(chain.configs), self._number(plan)
        return self._sketch.configs(self._sketch.trimmed(first, best, each, every, self._capacity, chain.longer)[1])

    def stop(self) -> None:
        """Drop the chains that were not asked for, as if they had not been begun."""
        if self._aside is not None:
            self._aside.shutdown(cancel_futures=True)
            self._aside = None
            sys.setswitchinterval(self._patience)
        if self._foreseen:
            self._rng.bit_generator.state = self._foreseen[0].state
            self._foreseen.clear()

    def _draws(self, chain: Chain) -> np.ndarray:
        draws = self._rng.random((chain.num_proposals, NUM_DRAWS))
        return coarsened(draws) if chain.is_coarse else draws

    def _number(self, configs: dict[str, Config]) -> np.ndarray:
        if id(configs) not in self._numbers:
            self._numbers[id(configs)] = configs, self._sketch.number(configs)
        return self._numbers[id(configs)][1].copy()

    def _awaited(self, trail: Future[Trail]) -> Trail:
        """What a foreseen chain finds; until it has, chains that wait for a thread are walked here."""
        for number, (chain, _, plan, draws, other) in enumerate(self._foreseen):
            if trail.done():
                break
            if other.cancel():
                here: Future[Trail] = Future()
                here.set_result(self._trail(self._sketch, chain, plan, draws))
                self._foreseen[number] = self._foreseen[number]._replace(trail=here)
        return trail.result()

    def _in_thread(self, free: SimpleQueue[Sketch], chain: Chain, plan: np.ndarray, draws: np.ndarray) -> Trail:
        sketch = free.get()
        try:
            return self._trail(sketch, chain, plan, draws)
        finally:
            free.put(sketch)

    def _trail(self, sketch: Sketch, chain: Chain, plan: np.ndarray, draws: np.ndarray) -> Trail:
        """What one does beside others: next to nothing but walk, as the interpreter's lock is theirs."""
        sketch.update(chain.in_pieces)
        hot = TEMPERATURE * min(1.0, MOST_HOT / len(plan))
        heats = (COARSE if chain.is_coarse else hot) * np.linspace(1, 0, chain.num_proposals)
        first = plan.copy()
        trail = sketch.trail(plan, draws, heats, self._capacity, chain.longer)
        least, best = sketch.trimmed(first, trail.best, LITTLE, LITTLE_OF_ALL, self._capacity, chain.longer)
        return trail._replace(least=least, best=best)
