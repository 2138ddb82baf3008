"""Optimizers as a user names them: `adamw:beta1=0.9,decay=0.1` is the operator planner/ops/adamw.py with settings.

It does not know how updates are cut or run.
"""

from __future__ import annotations

from typing import Any

from castile.launch.typed import settings
from castile.planner import op as ops
from castile.planner.families.updates import Optimizer, Updates
from castile.runtime.strict import suggestion


def parse(text: str) -> Optimizer:
    """The operator of NAME or NAME:key=value,...

    Raises ValueError in one sentence for an unknown name or setting, and for a value that makes no sense.
    """
    name, given = settings.split(text)
    # All others are loaded only where this one is none.
    kind: type[Any] = ops.find(name) if name in ops.available() else object
    if not issubclass(kind, Optimizer):
        known = available()
        raise ValueError(f"no optimizer {name!r}{suggestion(name, list(known))}; there are {', '.join(known)}")
    made: Optimizer = kind(**settings.typed(kind, given, f"optimizer {name}"))
    return made


def updates(optimizer: str, clip: float | None, undecayed: str) -> Updates:
    """What happens to gradients and parameters at the end of a step, as --optimizer, --clip and --undecayed say it; a
    clip of 0 is none. Raises ValueError as `parse` does.
    """
    return Updates(parse(optimizer), clip or None, patterns(undecayed))


def available() -> tuple[str, ...]:
    """The names of all optimizers among the operators."""
    return tuple(name for name in ops.available() if issubclass(ops.find(name), Optimizer))


def patterns(text: str) -> tuple[str, ...]:
    """Names with wildcards, separated by commas, as a tuple."""
    return tuple(word for word in (piece.strip() for piece in text.split(",")) if word)
