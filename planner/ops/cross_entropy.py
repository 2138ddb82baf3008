"""Softmax cross-entropy: the mean over all labels of -log softmax(logits) at the label."""

from __future__ import annotations

from math import prod

from castile.planner.op import Op, Part, Tensor, op

# Logits of fewer are little beside what else a sample has.
MANY_CLASSES = 4096


@op("... v!, ... -> , ...", flops_per_point=6, results=("", "lse"))
class CrossEntropy(Op):
    """logits [..., v], labels [...] (integers below v) -> loss (), lse [...] (log-sum-exp of each row of logits).

    The mean is over the whole batch, so the losses of its pieces add up.
    """

    numbering = ((1, "v"),)

    def _scale(self, at: Part) -> float:
        return 1 / prod(at.whole(1))

    def forward(self, k, logits, labels, *, at):
        return k.cross_entropy(logits, labels, scale=self._scale(at))

    def grad_inputs(self, k, dy, logits, labels, *, at, y):
        return k.cross_entropy_grad(dy, logits, labels, y[1], scale=self._scale(at)), None

    @staticmethod
    def layer(g, name: str, logits: Tensor, labels: Tensor, blocks: int = 0) -> Tensor:
        """Add the mean cross-entropy to graph `g`; many classes may be split at the borders of blocks of them.

        blocks   how many there are; 0 for 96 of MANY_CLASSES or more, and 1 of fewer
        """
        if blocks == 1 or (blocks == 0 and logits.shape[-1] < MANY_CLASSES):
            return g.apply(CrossEntropy(), name, logits, labels)
        return g.split_cross_entropy(name, logits, labels, *([blocks] if blocks else []))
