"""What blocks of classes tell of a softmax cross-entropy: the first half of one whose classes may be split.

It knows no other block: `split_cross_entropy` merges them.
"""

from __future__ import annotations

from castile.planner.op import Op, Part, op


@op("... (p ~v!), ... -> ... p c!", flops_per_point=6)
class BlockEntropy(Op):
    """logits [..., v], labels [...] (integers below v) -> [..., p, 2]: of each of p blocks of classes, as even as can
    be, the log-sum-exp of its logits, and the logit at the label where the block has it, else 0."""

    place_in_literals = True
    numbering = ((1, "v"),)
    p: int = 1

    def extents(self, known: dict[str, int]) -> dict[str, int]:
        return {"c": 2}

    def _local(self, at: Part) -> dict[str, int]:
        return {"first": at.range("p")[0], "of": at.extent("p"), "classes": at.extent("v")}

    def flops(self, which: str, part: Part) -> float:
        # All blocks together have every class once.
        return super().flops(which, part) / part.extent("p")

    def forward(self, k, logits, labels, *, at):
        first, last = at.range("p")
        return k.block_entropy(logits, labels, blocks=last - first, **self._local(at))

    def grad_inputs(self, k, dy, logits, labels, *, at, y):
        return k.block_entropy_grad(dy, logits, labels, y[0], **self._local(at)), None
