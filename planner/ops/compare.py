"""Comparisons: a number where a relation holds between elements, or between them and a number, and another elsewhere.

They have no gradient.
"""

from __future__ import annotations

from castile.planner.families.elementwise import broadcast_line
from castile.planner.op import Op, Tensor, op

SIGNS = (">", ">=", "<", "<=", "==")


@op("... -> ...", flops_per_point=1, flows=0)
class Compare(Op):
    """a [...], and b [...] or the number `than` -> `yes` where a is so to it, else `no`; a NaN is so to nothing.

    Missing leading dims and dims of one are stretched.
    """

    sign: str = ">"
    than: float = 0.0
    yes: float = 1.0
    no: float = 0.0

    def __post_init__(self) -> None:
        if self.sign not in SIGNS:
            raise ValueError(f"compare: there is no relation {self.sign!r}; there are {', '.join(SIGNS)}")

    def axis_line(self, inputs: tuple[Tensor, ...]) -> str:
        return broadcast_line(self.name, inputs) if len(inputs) == 2 else self.line

    def forward(self, k, a, *b):
        names, other = ("a, b", "b") if b else ("a", "than")
        numbers = {"yes": self.yes, "no": self.no} | ({} if b else {"than": self.than})
        return k.pointwise(f"{names} -> where(a {self.sign} {other}, yes, no)", a, *b, **numbers)

    @staticmethod
    def layer(g, name: str, x: Tensor, sign: str, other: Tensor | float = 0.0) -> Tensor:
        """Add to graph `g` 1 where x is so to the other, or to a number, and 0 elsewhere."""
        if isinstance(other, Tensor):
            return g.apply(Compare(sign), name, x, other)
        return g.apply(Compare(sign, float(other)), name, x)
