"""The kernel calls that a case stands for, on operands that are not there; it needs no GPU and times nothing."""

from __future__ import annotations

from functools import singledispatch
from typing import Any, NamedTuple

import ml_dtypes  # noqa: F401  (makes "bfloat16" a dtype)
import numpy as np

from benchmarks.gpu import cases
from castile.kernels import tuning
from castile.kernels.table import Table
from castile.planner.bodies import vocabulary
from castile.planner.bodies.vocabulary import Spec

# Channels of pictures.
_COLOURS = 3
ADAMW: dict[str, Any] = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "decay": 0.1, "decoupled": True}


class Call(NamedTuple):
    """A kernel call on operands that are not there yet: Specs and literals.

    orders: of those whose dims lie in another order in memory the dims, the outermost first.
    """

    kernel: str
    args: tuple[Any, ...]
    params: dict[str, Any]
    orders: tuple[tuple[Spec, tuple[int, ...]], ...] = ()

    @property
    def outs(self) -> tuple[Spec, ...]:
        return vocabulary.results(self.kernel, self.args, self.params)

    @property
    def named(self) -> str:
        """What choices know it by."""
        args, outs = ([self._array(x) for x in xs] for xs in (self.args, self.outs))
        return tuning.call_key(Table("triton"), self.kernel, outs, args, self.params, False)

    @property
    def nbytes(self) -> int:
        """Bytes that it must move: each array once."""
        arrays = [x for x in (*self.args, *self.outs) if isinstance(x, Spec)]
        return sum(int(np.prod(x.shape)) * np.dtype(x.dtype).itemsize for x in arrays)

    def _array(self, x: Any) -> Any:
        if not isinstance(x, Spec):
            return x
        order = dict(self.orders).get(x, tuple(range(len(x.shape))))
        back = tuple(order.index(dim) for dim in range(len(order)))
        return tuning.dense(tuple(x.shape[dim] for dim in order), x.dtype).transpose(back)


@singledispatch
def calls(case: Any) -> list[Call]:
    """The kernel calls of a case, one after the other."""
    raise NotImplementedError(type(case).__name__)


@calls.register
def _(case: cases.Product) -> list[Call]:
    straight = [letter == "n" for letter in case.layout]
    spec = f"{'mk' if straight[0] else 'km'},{'kn' if straight[1] else 'nk'}->mn"
    a = Spec((case.m, case.k) if straight[0] else (case.k, case.m), case.dtype)
    b = Spec((case.k, case.n) if straight[1] else (case.n, case.k), case.dtype)
    if case.line:
        return [Call("contract_pointwise", (spec, case.line, a, b, Spec((case.n,), case.dtype)), {})]
    return [Call("contract", (spec, a, b), {})]


@calls.register
def _(case: cases.Attention) -> list[Call]:
    q = Spec((case.batch, case.length, case.heads * case.width), "bfloat16")
    k = Spec((case.batch, case.length, case.groups * case.width), "bfloat16")
    params = {"heads": case.heads, "causal": case.causal, "offset": 0, "scale": case.width**-0.5}
    forward = Call("attention", (q, k, k), params)
    return [Call("attention_grad", (q, q, k, k, *forward.outs), params)] if case.backward else [forward]


@calls.register
def _(case: cases.Convolution) -> list[Call]:
    x = Spec((case.batch, case.channels, case.size, case.size), "bfloat16")
    w = Spec((case.outputs, case.channels // case.groups, case.kernel, case.kernel), "bfloat16")
    y = Spec((case.batch, case.outputs, case.result, case.result), "bfloat16")
    params: dict[str, Any] = {"stride": (case.stride,) * 2, "pads": (case.pad,) * 4, "dilation": (1, 1)}
    params["groups"] = case.groups
    images = tuple(one for one in (x, y) if one.shape[1] > _COLOURS) if case.innermost else ()
    made = {
        "forward": Call("conv2d", (x, w), params),
        "input": Call("conv2d_grad_input", (y, w), params | {"shape": x.shape}),
        "weight": Call("conv2d_grad_weight", (y, x), params | {"kernel": w.shape[2:]}),
    }
    return [made[case.which]._replace(orders=tuple((one, (0, 2, 3, 1)) for one in images))]


@calls.register
def _(case: cases.Loss) -> list[Call]:
    logits, ids = Spec((case.rows, case.classes), "bfloat16"), Spec((case.rows,), "int64")
    orders = ((logits, (1, 0)),) if case.outermost else ()
    forward = Call("cross_entropy", (logits, ids), {"scale": 1 / case.rows}, orders)
    loss, lse = forward.outs
    return [forward, Call("cross_entropy_grad", (loss, logits, ids, lse), forward.params, orders)]


@calls.register
def _(case: cases.Update) -> list[Call]:
    number = Spec((), "float32")
    every = (one for shape in case.shapes for one in (*[Spec(shape, "float32")] * 4, number, number))
    return [Call("adam", tuple(every), ADAMW)]


@calls.register
def _(case: cases.Step) -> list[Call]:
    # Those of its plan, which whoever runs it knows.
    return []


@calls.register
def _(case: cases.Stream) -> list[Call]:
    line = (case.line,) if case.line else ()
    operands = (Spec(shape, case.dtype_of(number)) for number, shape in enumerate(case.shapes))
    return [Call(case.kernel, (*line, *operands), dict(case.params))]
