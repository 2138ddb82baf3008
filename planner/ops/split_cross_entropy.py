"""Softmax cross-entropy over classes that may be split: blocks of them are told apart and merged (the merge of
log-sum-exps is not elementwise, so it stands after a stacked axis of parts).

Each block is worked on where its logits are, as in the parallel loss of Megatron (Shoeybi et al., 2019); the merge sees
two numbers a block.
"""

from __future__ import annotations

from math import prod

from castile.planner.op import Op, Part, Tensor, op
from castile.planner.ops.block_entropy import BlockEntropy

# As many as most groups of processors divide, and each still hundreds of words long.
CLASS_BLOCKS = 96


@op("... p! c! -> , ...", flops_per_point=4, results=("", "lse"))
class SplitCrossEntropy(Op):
    """parts [..., p, 2] of `block_entropy` -> loss (), lse [...] (log-sum-exp of each whole row of logits).

    The mean is over the whole batch, so the losses of its pieces add up.
    """

    def _scale(self, at: Part) -> float:
        return 1 / prod(at.whole(0)[:-2])

    def forward(self, k, parts, *, at):
        return k.split_cross_entropy(parts, scale=self._scale(at))

    def grad_inputs(self, k, dy, parts, *, at, y):
        return (k.split_cross_entropy_grad(dy, parts, y[1], scale=self._scale(at)),)

    @staticmethod
    def layer(g, name: str, logits: Tensor, labels: Tensor, blocks: int = CLASS_BLOCKS) -> Tensor:
        """Add the mean cross-entropy to graph `g`; the classes may be split at the borders of `blocks` of them."""
        if not 1 <= blocks <= logits.shape[-1]:
            raise ValueError(f"{name}: {logits.shape[-1]} classes are cut into 1 to as many blocks, not {blocks}")
        parts = g.apply(BlockEntropy(blocks), f"{name}.blocks", logits, labels)
        return g.apply(SplitCrossEntropy(), name, parts)
