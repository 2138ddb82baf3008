"""Cost keys of passes: what a kernel's cost depends on, for parts of any shapes.

It does not know costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod

from castile.planner.axes import Operand
from castile.planner.bodies.vocabulary import itemsize
from castile.planner.op import Part
from castile.planner.step.program import Step, bearing
from castile.runtime.task import LOOKS, ROWS_OF_IMAGES, CostKey


class KeyMaker:
    """What the cost keys of a pass have in common for all shapes of parts; dtypes: those of all its ports."""

    def __init__(self, step: Step, dtypes: Sequence[str]) -> None:
        op = step.node.op
        self._name, self._dtype = kernel_of(step), compute_dtype(step, dtypes)
        self._settings = ",".join([f"{name}={value}" for name, value in op.cost_settings])
        # As `+3x4` what a gradient is added to, which else could be taken for one more that is given.
        signs = ["+" * (port.role == "onto") for port in (*step.inputs, *step.outputs)]
        self._ports = list(zip(signs, map(_dim_order, bearing(step)), map(itemsize, dtypes)))
        self._looked_up = lookup_ports(step)
        self._rows = op.rows if op.has_rows else None
        self._looks = partial(op.looks, step.which) if op.has_looks else None

    def key(self, arrays: Sequence[tuple[int, tuple[int, ...]]], flops: float, part: Part) -> CostKey:
        """The cost key of a part that touches arrays of these shapes at ports of these numbers."""
        shapes, nbytes = [], 0
        for n, shape in arrays:
            sign, laid, size = self._ports[n]
            shapes.append(sign + "x".join(map(str, shape)) + laid)
            touched = part.touches(self._looked_up[n]) if n in self._looked_up else prod(shape)
            nbytes += int(touched) * size
        rows = self._rows and self._rows(part.reads(0).shape, part.writes(0).shape, part.alignment.extents)
        looks = self._looks and self._looks(part)
        settings = self._settings + "".join([f"{of}{n}" for of, n in ((ROWS_OF_IMAGES, rows), (LOOKS, looks)) if n])
        return CostKey(self._name, f"{';'.join(shapes)}|{settings}", self._dtype, round(flops), nbytes)


def lookup_ports(step: Step) -> dict[int, int]:
    """Ports, inputs first, through which a pass reads indexed rows, and the operand of each."""
    tables = dict(step.node.op.looked_up)
    return {n: port.index for n, port in enumerate(step.inputs) if port.role == "x" and port.index in tables}


def _dim_order(one: Operand) -> str:
    """As in `@0231`: the order of an array's dims in memory, where it is not the usual one."""
    return "@" + "".join(map(str, one.order)) if one.order else ""


def kernel_of(step: Step) -> str:
    """The name of a pass's kernel, whatever the shapes: the operator's, a dot, and the pass."""
    return f"{step.node.op.name}.{step.which}"


def compute_dtype(step: Step, dtypes: Sequence[str]) -> str:
    """The dtype that a pass computes with: parameters' gradients may be summed in a wider one."""
    return dtypes[0 if step.which == "W" else len(step.inputs)]
