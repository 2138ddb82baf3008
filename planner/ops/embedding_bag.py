"""Embedding bag: of each bag of integers the sum, or the mean, of their rows of a table."""

from __future__ import annotations

from castile.planner.op import Init, Op, Part, Tensor, op


@op("... n, *v d -> ... d")
class EmbeddingBag(Op):
    """ids [..., n] (integers below v), table [v, d], optionally weights [..., n] -> [..., d].

    A mean is over the n of the whole, so that bags may be split; a part that has some rows sums those.
    """

    place_in_literals = True
    numbering = ((0, "v"),)
    looked_up = ((1, 0),)
    mean: bool = False

    def axis_line(self, inputs: tuple[Tensor, ...]) -> str:
        return self.line if len(inputs) == 2 else "... n, *v d, ... n -> ... d"

    def _local(self, at: Part) -> dict[str, float]:
        scale = 1 / at.extent("n") if self.mean else 1.0
        return {"scale": scale, "first": at.range("v")[0], "known": at.extent("v")}

    def forward(self, k, ids, table, *weights, at):
        return k.embedding_bag(ids, table, *weights, **self._local(at))

    def grad_inputs(self, k, dy, ids, table, *weights, at):
        slopes = (k.embedding_bag_weights_grad(dy, ids, table, **self._local(at)) for _ in weights)
        return None, *slopes

    def grad_params(self, k, dy, ids, table, *weights, at):
        return (k.embedding_bag_grad(dy, ids, *weights, rows=table.shape[0], **self._local(at)),)

    @staticmethod
    def layer(
        g,
        name: str,
        ids: Tensor,
        rows: int,
        features: int,
        weights: Tensor | None = None,
        mean: bool = False,
        scale: float = 0.02,
    ) -> Tensor:
        """Add an embedding bag with its table to graph `g`; rows normal of standard deviation `scale`."""
        table = g.param(f"{name}.weight", (rows, features), ("v", "d"), Init("normal", scale))
        return g.apply(EmbeddingBag(mean), name, ids, table, *([] if weights is None else [weights]))
