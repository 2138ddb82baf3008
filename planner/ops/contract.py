"""Contraction: the sum of products of two arrays over the axes that their result lacks, batched over those it shares.

    g.contract("scores", "b h s d, b h t d -> b h s t", q, k)

It does not know what the axes mean, nor matrices: any order of axes will do, and none is moved first.
"""

from __future__ import annotations

from string import ascii_letters

from castile.planner.axes import LEADING, parse
from castile.planner.op import Op, Part, Tensor, op


@op("..., ... -> ...", flops_per_point=2)
class Contract(Op):
    """x, y -> the array that `text` says; every axis is in the result or in both operands; they may be parameters."""

    text: str = "..., ... -> ..."

    def __post_init__(self) -> None:
        if any(mark in self.text for mark in "()*!"):
            raise ValueError(f"contract: {self.text!r} should name one axis a dim, without marks")
        line = parse(self.text)
        if len(line.operands) != 2 or len(line.results) != 1:
            raise ValueError(f"contract: {self.text!r} should have two operands and one result")
        terms = [o.axes for o in (*line.operands, *line.results)]
        twice = [axis for term in terms for axis in term if term.count(axis) > 1]
        if twice:
            raise ValueError(f"contract: {self.text!r} names axis {twice[0]!r} twice in one array")
        alone = [axis for axis in {a for term in terms for a in term} if sum(axis in term for term in terms) < 2]
        if alone:
            raise ValueError(f"contract: {self.text!r} has axis {alone[0]!r} in one array only; sum it before")

    def axis_line(self, inputs: tuple[Tensor, ...]) -> str:
        left, _, right = self.text.partition("->")
        terms = [term.strip() for term in left.split(",")]
        marks = ["*" * t.param for t in inputs] if len(inputs) == 2 else ["", ""]
        return f"{marks[0]}{terms[0]}, {marks[1]}{terms[1]} -> {right.strip()}"

    def flops(self, which: str, part: Part) -> float:
        # one pass has the gradients of both where both are parameters, or neither is
        made = 1 if which == "F" else sum(o.param == (which == "W") for o in part.alignment.operands)
        return made * super().flops(which, part)

    def forward(self, k, x, y):
        a, b, c = self._terms
        return k.contract(f"{a},{b}->{c}", x, y)

    def grad_inputs(self, k, dz, x, y, *, at):
        return self._gradients(k, dz, x, y, at, False)

    def grad_params(self, k, dz, x, y, *, at):
        return self._gradients(k, dz, x, y, at, True)

    def _gradients(self, k, dz, x, y, at, params: bool):
        a, b, c = self._terms
        of_x, of_y = (o.param == params for o in at.alignment.operands)
        dx = (k.contract(f"{c},{b}->{a}", dz, y),) if of_x else ()
        dy = (k.contract(f"{c},{a}->{b}", dz, x),) if of_y else ()
        return dx + dy

    @property
    def _terms(self) -> tuple[str, str, str]:
        """The arrays' axes as one letter each."""
        line = parse(self.text)
        arrays = [o.axes for o in (*line.operands, *line.results)]
        axes = dict.fromkeys(axis for term in arrays for axis in term if axis != LEADING)
        letters = dict(zip(axes, ascii_letters)) | {LEADING: LEADING}
        a, b, c = ("".join(letters[axis] for axis in term) for term in arrays)
        return a, b, c

    @staticmethod
    def layer(g, name: str, text: str, x: Tensor, y: Tensor) -> Tensor:
        """Add a contraction to graph `g`; `text` names the axes of both operands and of the result."""
        return g.apply(Contract(text), name, x, y)
