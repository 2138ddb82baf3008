"""What a pass records: its body run on the shapes of a part, with the sums of its gradients and what they are added to.

It does not know boxes, regions or costs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from castile.planner.op import PASSES, Part
from castile.planner.program import Port, Step
from castile.planner.symbols import Symbol
from castile.planner.trace import Recording, record
from castile.planner.vocabulary import Spec


def recorded(step: Step, part: Part, specs: tuple[Spec, ...]) -> Recording:
    """Run the pass's body on shapes; its inputs are numbered as the step's ports."""
    op, which = step.node.op, step.which
    roles = [p.role for p in step.inputs]
    pulled = tuple(s for s, role in zip(specs, roles, strict=True) if role == "dy")
    operands = [s for s, role in zip(specs, roles, strict=True) if role == "x"]
    positional = [*(pulled if op.flows == 1 else [pulled] if pulled else []), *operands]
    kept = tuple(s for s, role in zip(specs, roles, strict=True) if role == "y")
    context: dict[str, object] = {"at": part} if "at" in op.asks(which) else {}
    if kept:
        context["y"] = kept
    body, added = getattr(op, PASSES[which]), [p for p in step.inputs if p.role == "onto"]
    if added:
        context["onto"] = tuple(s for s, role in zip(specs, roles, strict=True) if role == "onto")
        given = _given(step)
        places = {given.index(p.index): n for n, p in enumerate(added) if all(map(part.first, _repeats(step, p)))}
        body = _adding(body, places)
    return record(body, positional, _mask(step), **context)


def wanted(step: Step, recording: Recording) -> list[Spec | None]:
    """The specs of the results that the step's output ports take, in the order of the ports."""
    mask = _mask(step)
    return [r for n, r in enumerate(recording.results) if mask is None or mask[n]]


def place_counts(step: Step) -> bool:
    """Whether what a part records may depend on which one it is, in more than literals."""
    op = step.node.op
    asks = "at" in op.asks(step.which) and not op.told
    return asks or any(_repeats(step, p) for p in step.inputs if p.role == "onto")


def _repeats(step: Step, port: Port) -> list[str]:
    """The axes along which only the first parts add an operand's gradient to another: others repeat it."""
    a = step.node.alignment
    apart = step.node.op.apart(port.index, a)
    assert apart is not None, f"{step.name}: nobody knows which part adds to {port.region!r}"
    return [axis for axis in a.axes if axis not in apart and axis not in a.frozen]


def _adding(body: Callable[..., Any], places: Mapping[int, int]) -> Callable[..., Any]:
    """A body whose results of these numbers are added to arrays, by number, of which it is given all as `onto`."""

    def whole(k: Any, *operands: Any, onto: tuple[Symbol, ...], **context: Any) -> tuple[Symbol | None, ...]:
        made = body(k, *operands, **context)
        results: list[Symbol | None] = list(made) if isinstance(made, tuple) else [made]
        for place, number in places.items():
            one = results[place]
            results[place] = onto[number] if one is None else k.pointwise("x, y -> x + y", one, onto[number])
        return tuple(results)

    return whole


def _mask(step: Step) -> tuple[bool, ...] | None:
    """Which of the body's results are wanted: it gives one for each operand of its kind."""
    if step.which == "F":
        return None
    indices = {p.index for p in step.outputs}
    return tuple(i in indices for i in _given(step))


def _given(step: Step) -> list[int]:
    """The operands of which a gradient pass gives the gradients."""
    return [i for i, o in enumerate(step.node.alignment.operands) if o.param == (step.which == "W")]
