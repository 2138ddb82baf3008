"""Recordings of passes: a body run on the shapes of a part, with the sums of its gradients and what they are added to.

It does not know boxes, regions or costs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from castile.planner.bodies.symbols import Symbol
from castile.planner.bodies.trace import Recording, record
from castile.planner.bodies.vocabulary import Spec
from castile.planner.op import PASSES, Part
from castile.planner.step.program import Port, Step


class Recorder:
    """Records one pass of a node for shapes of parts; the arguments of its body follow from the ports, determined once.
    """

    def __init__(self, step: Step) -> None:
        op, which = step.node.op, step.which
        at = {role: [n for n, p in enumerate(step.inputs) if p.role == role] for role in ("dy", "x", "y", "onto")}
        self._at, self._is_one, self._is_placed = at, op.flows == 1, "at" in op.asks(which)
        self._body: Callable[..., Any] = getattr(op, PASSES[which])
        given = [i for i, o in enumerate(step.node.alignment.operands) if o.param == (which == "W")]
        indices = {p.index for p in step.outputs}
        # The body gives a result for each operand of its kind.
        self._mask = None if which == "F" else tuple([i in indices for i in given])
        added = [step.inputs[n] for n in at["onto"]]
        self._places = [(given.index(p.index), n, _repeats(step, p)) for n, p in enumerate(added)]

    def recorded(self, part: Part, specs: tuple[Spec, ...]) -> Recording:
        """Run the pass's body on shapes; inputs are numbered as the step's ports."""
        pulled, operands, kept, onto = ([specs[n] for n in of] for of in self._at.values())
        positional = [*(pulled if self._is_one else [tuple(pulled)] if pulled else []), *operands]
        context: dict[str, object] = {"at": part} if self._is_placed else {}
        body = self._body
        if kept:
            context["y"] = tuple(kept)
        if onto:
            context["onto"] = tuple(onto)
            body = _adding(body, {place: n for place, n, axes in self._places if all(map(part.first, axes))})
        return record(body, positional, self._mask, **context)

    def wanted(self, recording: Recording) -> list[Symbol | None]:
        """The results that the step's output ports take, in the order of the ports."""
        return [one for n, one in enumerate(recording.outputs) if self._mask is None or self._mask[n]]


def place_counts(step: Step) -> bool:
    """Whether a part's recording may depend on its position, in more than literals."""
    op = step.node.op
    asks = "at" in op.asks(step.which) and not op.place_in_literals
    return asks or any(_repeats(step, p) for p in step.inputs if p.role == "onto")


def _repeats(step: Step, port: Port) -> list[str]:
    """The axes along which only the first parts add an operand's gradient to another: others repeat it."""
    a = step.node.alignment
    apart = step.node.op.apart(port.index, a)
    assert apart is not None, f"{step.name}: nobody knows which part adds to {port.region!r}"
    return [axis for axis in a.axes if axis not in apart and axis not in a.frozen]


def _adding(body: Callable[..., Any], places: Mapping[int, int]) -> Callable[..., Any]:
    """A body whose results of these numbers are added to arrays, which it gets by number as `onto`."""

    def whole(k: Any, *operands: Any, onto: tuple[Symbol, ...], **context: Any) -> tuple[Symbol | None, ...]:
        made = body(k, *operands, **context)
        results: list[Symbol | None] = list(made) if isinstance(made, tuple) else [made]
        for place, number in places.items():
            one = results[place]
            results[place] = onto[number] if one is None else k.pointwise("x, y -> x + y", one, onto[number])
        return tuple(results)

    return whole
