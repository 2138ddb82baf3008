"""Device placement by policy gradient: each node whole on one processor, learned from the simulated steps of samples.

The class of Mirhoseini et al., "Device Placement Optimization with Reinforcement Learning" (ICML 2017), with a table of
logits in place of their network: the baseline of comparisons. It does not know splits, nor what makes a step short.
"""

from __future__ import annotations

import numpy as np

from castile.planner.search import Run
from castile.planner.strategy import Config

BUDGET = "2000"
# Plans for each step of the policy.
SAMPLES = 10
# Steps by Adam (Kingma and Ba 2015): of the policy's logits, and the decay of the two means of its gradient.
RATE, FIRST, SECOND = 0.1, 0.9, 0.99
# How slowly the baseline follows.
KEEP = 0.8
# What keeps the policy open is worth this share of the spread of rewards at first, and nothing at the end.
ENTROPY = 0.02


def search(run: Run) -> None:
    """Sample placements, and raise the probability of those that beat the baseline, until the budget is spent."""
    names, procs = list(run.lowering.piece.nodes), run.spaces.procs
    rng = np.random.default_rng(run.rng.getrandbits(64))
    policy, baseline = Policy(len(names), len(procs)), 0.0
    while run.spent < 1:
        placements: list[np.ndarray] = []
        rewards: list[float] = []
        while len(placements) < SAMPLES and run.spent < 1:
            placement = policy.sample(rng)
            found = run.propose({name: Config(procs=(procs[n],)) for name, n in zip(names, placement.tolist())})
            # Of too many transfers to look at: nothing is learned from it.
            if found is None:
                continue
            placements.append(placement)
            rewards.append(-float(np.log(found.energy)))
        if not rewards:
            return
        mean = float(np.mean(rewards))
        baseline = mean if policy.num_steps == 0 else KEEP * baseline + (1 - KEEP) * mean
        policy.learn(np.array(placements), np.array(rewards) - baseline, ENTROPY * max(0.0, 1 - run.spent))


class Policy:
    """A softmax over the processors for each node, the nodes independent of each other.

    logits[N, P]   all alike at first
    """

    def __init__(self, num_nodes: int, num_procs: int) -> None:
        self.logits = np.zeros((num_nodes, num_procs))
        self.num_steps = 0
        self._first, self._second = np.zeros_like(self.logits), np.zeros_like(self.logits)

    @property
    def probabilities(self) -> np.ndarray:
        """[N, P], each row sums to 1."""
        raised = np.exp(self.logits - self.logits.max(axis=1, keepdims=True))
        return raised / raised.sum(axis=1, keepdims=True)

    def sample(self, rng: np.random.Generator) -> np.ndarray:
        """int[N]: a processor for each node."""
        ends = self.probabilities.cumsum(axis=1)
        drawn = (rng.random((len(ends), 1)) >= ends).sum(axis=1)
        return np.minimum(drawn, ends.shape[1] - 1)

    def gradient(self, placements: np.ndarray, advantages: np.ndarray, entropy: float) -> np.ndarray:
        """[N, P]: of the expected advantage, estimated (Williams 1992) by placements [S, N], and of the entropy."""
        p = self.probabilities
        chosen = placements[:, :, None] == np.arange(p.shape[1])
        logs = np.log(np.maximum(p, np.finfo(float).tiny))
        of_entropy = -p * (logs - (p * logs).sum(axis=1, keepdims=True))
        return np.einsum("s,snp->np", advantages, chosen - p) / len(advantages) + entropy * of_entropy

    def learn(self, placements: np.ndarray, advantages: np.ndarray, entropy: float) -> None:
        """One step up the gradient; advantages count relative to their spread, so any unit of time will do."""
        self.num_steps += 1
        spread = float(np.sqrt((advantages**2).mean()))
        if spread == 0:
            return
        gradient = self.gradient(placements, advantages / spread, entropy)
        self._first = FIRST * self._first + (1 - FIRST) * gradient
        self._second = SECOND * self._second + (1 - SECOND) * gradient**2
        first, second = self._first / (1 - FIRST**self.num_steps), self._second / (1 - SECOND**self.num_steps)
        self.logits += RATE * first / (np.sqrt(second) + 1e-8)
