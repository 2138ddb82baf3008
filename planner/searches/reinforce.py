"""REINFORCE: device placement by policy gradient, each node whole on one processor, learned from simulated steps.

The class of Mirhoseini et al., "Device Placement Optimization with Reinforcement Learning" (ICML 2017), with a table of
logits in place of their network: the baseline of comparisons. It does not know splits, nor what makes a step short.
"""

from __future__ import annotations

import numpy as np

from castile.planner.search import Run
from castile.planner.strategy import Config

BUDGET = "2000"
# Plans sampled for each step of the policy.
SAMPLES = 10
# Adam (Kingma and Ba 2015): the learning rate, and the decay of the first and second moment of the gradient.
RATE, FIRST, SECOND = 0.1, 0.9, 0.99
# The decay of the baseline, a moving mean of rewards.
DECAY = 0.8
# The initial weight of the policy's entropy, relative to the spread of rewards; it falls to 0 at the end.
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
            # It has too many transfers to simulate: nothing is learned from it.
            if found is None:
                continue
            placements.append(placement)
            rewards.append(-float(np.log(found.energy)))
        if not rewards:
            return
        mean = float(np.mean(rewards))
        baseline = mean if policy.num_steps == 0 else DECAY * baseline + (1 - DECAY) * mean
        policy.learn(np.array(placements), np.array(rewards) - baseline, ENTROPY * max(0.0, 1 - run.spent))


class Policy:
    """A softmax over the processors for each node, the nodes independent of each other.

    logits[N, P]   all equal at first
    """

    def __init__(self, num_nodes: int, num_procs: int) -> None:
        self.logits = np.zeros((num_nodes, num_procs))
        self.num_steps = 0
        self._first, self._second = np.zeros_like(self.logits), np.zeros_like(self.logits)

    @property
    def probabilities(self) -> np.ndarray:
        """float[N, P]; each row sums to 1."""
        raised = np.exp(self.logits - self.logits.max(axis=1, keepdims=True))
        return raised / raised.sum(axis=1, keepdims=True)

    def sample(self, rng: np.random.Generator) -> np.ndarray:
        """int[N]: a random processor for each node."""
        ends = self.probabilities.cumsum(axis=1)
        drawn = (rng.random((len(ends), 1)) >= ends).sum(axis=1)
        return np.minimum(drawn, ends.shape[1] - 1)

    def gradient(self, placements: np.ndarray, advantages: np.ndarray, entropy: float) -> np.ndarray:
        """float[N, P]: the gradient of the expected advantage, estimated (Williams 1992), plus `entropy` times that of
        the policy's entropy.

        placements[S, N], advantages[S]
        """
        p = self.probabilities
        chosen = placements[:, :, None] == np.arange(p.shape[1])
        logs = np.log(np.maximum(p, np.finfo(float).tiny))
        of_entropy = -p * (logs - (p * logs).sum(axis=1, keepdims=True))
        return np.einsum("s,snp->np", advantages, chosen - p) / len(advantages) + entropy * of_entropy

    def learn(self, placements: np.ndarray, advantages: np.ndarray, entropy: float) -> None:
        """One step of gradient ascent. Advantages are divided by their spread, so any unit of time will do."""
        self.num_steps += 1
        spread = float(np.sqrt((advantages**2).mean()))
        if spread == 0:
            return
        gradient = self.gradient(placements, advantages / spread, entropy)
        self._first = FIRST * self._first + (1 - FIRST) * gradient
        self._second = SECOND * self._second + (1 - SECOND) * gradient**2
        first, second = self._first / (1 - FIRST**self.num_steps), self._second / (1 - SECOND**self.num_steps)
        self.logits += RATE * first / (np.sqrt(second) + 1e-8)
