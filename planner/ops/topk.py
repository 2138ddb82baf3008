"""Top-k: the largest elements of each row of the last dim, and where they are."""

from __future__ import annotations

from castile.planner.op import Op, Part, Tensor, op


@op("... v! -> ... k!, ... k!", flops_per_point=1, results=("", "places"))
class Topk(Op):
    """x [..., v] -> the k largest of each row, largest first, and their places [..., k] (int32, without gradient).

    Of equals the first comes first.
    """

    k: int = 1

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ValueError(f"topk: k should be at least 1, got {self.k}")

    def flops(self, which: str, part: Part) -> float:
        # what is looked at, whatever is found
        return super().flops(which, part) / self.k

    def forward(self, k, x):
        return k.top_k(x, count=self.k)

    def grad_inputs(self, k, dy, x, *, y):
        return (k.pick_grad(dy, y[1], size=x.shape[-1]),)

    @staticmethod
    def layer(g, name: str, x: Tensor, k: int) -> Tensor:
        """Add the k largest of each row to graph `g`; their places are the tensor `name:places`."""
        return g.apply(Topk(k), name, x)
