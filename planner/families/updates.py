"""How parameters are updated: an optimizer, which parameters it decays, and by what norm gradients are clipped.

It does not know graphs, strategies or processors.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, ClassVar

from castile.planner.bodies.vocabulary import wide
from castile.planner.op import Op, Part, Tensor
from castile.runtime.region import Box


class Optimizer(Op):
    """Base of operators that update a parameter.

    Operands: parameter, gradient, a state for each result but the first, and the scalars, each () in the parameter's
    dtype. Results: parameter and states, new. `scalars` names what the host fills in at each step: "lr", the learning
    rate, and "step", which counts from 1. State begins as zeros. `forward` may get one more operand, a guard, and hands
    it to its kernel, which leaves all as it was unless that is above 0.
    """

    scalars: ClassVar[tuple[str, ...]] = ("lr",)

    def state_axes(self, label: str, axes: tuple[str, ...]) -> tuple[str, ...]:
        """Which of the parameter's axes a state bears; all of them by default."""
        return axes


def filled(name: str) -> str:
    """The region of one of `Optimizer.scalars`: no tensor of a graph can have its name."""
    return f"updates/{name}"


@dataclass(frozen=True)
class Guarded(Optimizer):
    """An optimizer with one more operand, its guard: a number (), unless that is above 0 parameter and states stay."""

    inner: Any

    def __post_init__(self) -> None:
        for name in ("results", "scalars", "flops_per_point", "place_in_literals"):
            object.__setattr__(self, name, getattr(self.inner, name))

    @property
    def name(self) -> str:
        return str(self.inner.name)

    @cached_property
    def settings(self) -> tuple[tuple[str, object], ...]:
        return (*self.inner.settings, ("guarded", True))

    def axis_line(self, inputs: tuple[Tensor, ...]) -> str:
        operands, arrow, results = self.inner.axis_line(inputs[:-1]).partition("->")
        return f"{operands}, {arrow}{results}"

    def reads(self, operand: int, part: Part) -> Box:
        is_guard = operand == len(part.alignment.operands) - 1
        return super().reads(operand, part) if is_guard else self.inner.reads(operand, part)

    def follows(self, operand: int) -> bool:
        return bool(self.inner.follows(operand))

    def state_axes(self, label: str, axes: tuple[str, ...]) -> tuple[str, ...]:
        found: tuple[str, ...] = self.inner.state_axes(label, axes)
        return found

    def asks(self, which: str) -> frozenset[str]:
        return frozenset(self.inner.asks(which))

    def forward(self, k: Any, *operands: Any, **context: Any) -> Any:
        return self.inner.forward(k, *operands, **context)


@dataclass(frozen=True)
class Updates:
    """What happens to gradients and parameters at the end of a step.

    clip        the most that the norm of all gradients together may be; what is longer is scaled to it
    undecayed   patterns of the names of parameters whose weight decay is 0 (`*.bias`)
    master      the dtype in which parameters and optimizer state are kept and gradients summed: by default the graph's,
                or float32 where that has 16 bits; where it is another, each step computes with copies of the parameters
                in the graph's own (Micikevicius et al., 2018)
    scaled      whether the loss is scaled so that small gradients do not vanish, and a step is skipped whose gradients
                overflow: by default where the graph computes in float16
    growth      after so many good steps in a row the scale doubles
    served      whether nothing is updated, as where a network only predicts: parameters are kept as they are used
    """

    optimizer: Optimizer
    clip: float | None = None
    undecayed: tuple[str, ...] = ()
    master: str = ""
    scaled: bool | None = None
    growth: int = 2000
    served: bool = False

    def __post_init__(self) -> None:
        if self.clip is not None and self.clip <= 0:
            raise ValueError(f"gradients cannot be clipped to a norm of {self.clip}; it should be more than 0")

    def kept(self, dtype: str) -> str:
        """The dtype in which parameters are kept that are used in `dtype`."""
        return dtype if self.served else self.master or wide(dtype)

    def of(self, param: str) -> Optimizer:
        """The optimizer of a parameter."""
        optimizer: Any = self.optimizer
        if any(fnmatchcase(param, pattern) for pattern in self.undecayed) and getattr(optimizer, "decay", None):
            return replace(optimizer, decay=0.0)
        return optimizer
