"""Operators from elsewhere, a model's file: whether bodies give what the axis line says, whole and cut, and whether
settings are values, by which plans know an operator.

Of castile's own operators the tests hold it. It does not know what bodies compute.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from castile.planner.bodies.trace import record
from castile.planner.bodies.vocabulary import Spec
from castile.planner.op import PASSES, Op, Part, Tensor


def check(who: str, whole: Part, operands: Sequence[Tensor], results: Sequence[Tensor]) -> None:
    """Raises ValueError, in one sentence that begins with `who`, where a body gives other shapes than the axis line
    says, of the whole or of what is cut in two along one axis, and for a setting that is no value.
    """
    if strange := [(name, value) for name, value in whole.op.settings if not _is_value(value)]:
        name, value = strange[0]
        raise ValueError(
            f"{who}: its setting {name!r} is of type {type(value).__name__}: plans know an operator by its settings, "
            "so let each be a number, a text, true or false, None, or a tuple of these"
        )
    for part in (whole, *_halves(whole)):
        reads = [Spec(part.reads(n).shape, t.dtype) for n, t in enumerate(operands)]
        writes = [Spec(part.writes(n).shape, t.dtype) for n, t in enumerate(results)]
        for which, body in PASSES.items():
            if part.op.has(which):
                _check(f"{who}: {body}", part, which, reads, writes)


def _is_value(setting: object) -> bool:
    """Whether it is told by what it is written as, in every process."""
    if isinstance(setting, tuple | Op):
        return all(map(_is_value, setting if isinstance(setting, tuple) else [value for _, value in setting.settings]))
    return setting is None or isinstance(setting, bool | int | float | str | np.generic)


def _halves(whole: Part) -> Iterator[Part]:
    """The second half of the whole along each axis that may be split."""
    for axis, extent in whole.alignment.extents.items():
        if axis not in whole.alignment.frozen and extent > 1:
            yield whole._replace(ranges={**whole.ranges, axis: (extent // 2, extent)})


def _check(who: str, part: Part, which: str, reads: Sequence[Spec], writes: Sequence[Spec]) -> None:
    op, wanted = part.op, {f"result {n}": spec for n, spec in enumerate(writes)}
    given: list[Spec | tuple[Spec, ...]] = [*reads]
    if which != "F":
        params = [operand.param for operand in part.alignment.operands]
        wanted = {f"operand {n}": spec for n, spec in enumerate(reads) if params[n] == (which == "W")}
        given.insert(0, writes[0] if op.flows == 1 else tuple(writes[: op.flows]))
    context = {"at": part, "y": tuple(writes)}
    asked: dict[str, object] = {name: context[name] for name in op.asks(which)}
    try:
        made = record(getattr(op, PASSES[which]), given, None, **asked).outputs
    except ValueError as error:
        raise ValueError(f"{who}: {error}") from error
    if len(made) != len(wanted):
        raise ValueError(f"{who} should give {len(wanted)} arrays, for {' and '.join(wanted)}; it gives {len(made)}")
    cut = [f"{a} is cut from {part.extent(a)} to {hi - lo}" for a, (lo, hi) in part.ranges.items() if lo]
    for one, (what, spec) in zip(made, wanted.items(), strict=True):
        if one is not None and one.shape != spec.shape:
            where = f" where {cut[0]}" if cut else ""
            raise ValueError(f"{who} gives {one.shape} for {what}{where}, which by the axis line is {spec.shape}")
