"""Embedding: a row of a table for each integer."""

from __future__ import annotations

from castile.planner.op import Init, Op, Part, Tensor, op


@op("..., *v d -> ... d")
class Embedding(Op):
    """ids [...] (integers below v), table [v, d] -> [..., d].

    A part that has some rows gives those, and zeros where the ids name others.
    """

    place_in_literals = True
    numbering = ((0, "v"),)
    looked_up = ((1, 0),)

    def _local(self, at: Part) -> dict[str, int]:
        return {"first": at.range("v")[0], "known": at.extent("v")}

    def forward(self, k, ids, table, *, at):
        return k.embedding(ids, table, **self._local(at))

    def grad_params(self, k, dy, ids, table, *, at):
        return (k.embedding_grad(dy, ids, rows=table.shape[0], **self._local(at)),)

    @staticmethod
    def layer(g, name: str, ids: Tensor, rows: int, features: int, scale: float = 0.02) -> Tensor:
        """Add an embedding with its table to graph `g`; rows normal of standard deviation `scale`."""
        table = g.param(f"{name}.weight", (rows, features), ("v", "d"), Init("normal", scale))
        return g.apply(Embedding(), name, ids, table)
