"""castile on the cases: `python -m benchmarks.gpu.ours ERRAND KEPT NAME ...`, a JSON line a case; PyTorch is not there.

Kernels run with their forms' own settings ("default"), or in every way there is, as `castile profile` times them
("tuned"): `seconds` is that of the fastest Triton form, `library_seconds` that of the library beside it where there is
one. What the fastest computes is compared with the same work in float32 on the device where that is cheap. "compile"
does what both wait for else. KEPT begins the names of files in which steps keep what tuning found.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial, singledispatch
from multiprocessing import get_context
from typing import Any

import cupy
import ml_dtypes  # noqa: F401  (makes "bfloat16" a dtype)
import numpy as np

from benchmarks.gpu import cases, sides, steps
from benchmarks.gpu.calls import Call, calls
from castile.kernels import choice, tuning
from castile.kernels.choice import Array, Choice, call_of
from castile.kernels.cupy import measuring
from castile.kernels.form import Refused
from castile.kernels.table import Table
from castile.planner.bodies.vocabulary import Spec

# Cores that are left to whoever waits for compilers, and to the other side.
SPARED_CORES = 2


def fastest(call: Call, errand: str) -> dict[str, Any]:
    """Seconds of the fastest Triton form of those ways that are asked for, and of the library's; the fastest of all is
    taken from then on. `ways` is what each took, the fastest first.
    """
    table, found = Table("triton"), dict[Choice, float]()
    for some in asked(table, call.named, errand):
        if not any(way.form == "triton" for way in found):
            found |= tuning.tune(table, call.named, tuning.gpu(), some)
    if not found:
        every = measuring.operands(call_of(call.named))
        bound = [table.bind(call.kernel, one.args, one.outs, call.params) for one in every]
        return {"seconds": measuring.seconds(bound)}
    tuning.remember_all({call.named: min(found, key=lambda way: found[way])})
    best = {form: min(found[way] for way in found if way.form == form) for form in {way.form for way in found}}
    told = {("seconds" if form == "triton" else "library_seconds"): took for form, took in best.items()}
    return told | {"ways": [[way.form, way.setting, found[way]] for way in sorted(found, key=lambda way: found[way])]}


def asked(table: Table, which: str, errand: str) -> list[list[Choice]]:
    """The ways in which a call is to be timed; the next ones only where the device refuses those before."""
    ways = tuning.choices(table, which)
    if errand == "tuned":
        return [ways]
    of_triton, others = ([way for way in ways if (way.form == "triton") == own] for own in (True, False))
    # What comes first on the device is not what does so on a host.
    return [[Choice("triton"), *others], *([way] for way in of_triton)] if of_triton else []


@singledispatch
def measure(case: Any, errand: str, kept: str) -> dict[str, Any]:
    """What one case takes, and what else there is to tell."""
    choice.forget()
    told = [fastest(call, errand) for call in calls(case)]
    beside = {key: told[0][key] for key in ("library_seconds",) if key in told[0]}
    return {"seconds": sum(one["seconds"] for one in told)} | beside | _ways(told) | error(case)


@measure.register
def _(case: cases.Stream, errand: str, kept: str) -> dict[str, Any]:
    choice.forget()
    (call,) = calls(case)
    told = fastest(call, errand)
    return told | _ways([told]) | {"nbytes": call.nbytes, "library_seconds": copied(call.nbytes)}


def _ways(told: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Those of each call of a case, in one."""
    return {"ways": [one.get("ways", []) for one in told]}


@measure.register
def _(case: cases.Step, errand: str, kept: str) -> dict[str, Any]:
    return steps.measure(case, kept)


def copied(nbytes: int) -> float:
    """Seconds of a plain copy that reads and writes so many bytes together."""
    half = Spec((max(512, nbytes // 2),), "uint8")
    stream = cupy.cuda.get_current_stream()

    def copy(to: Any, source: Any) -> None:
        cupy.cuda.runtime.memcpyAsync(to.data.ptr, source.data.ptr, half.shape[0], 3, stream.ptr)

    every = measuring.operands(call_of(Call("copy", (half,), {}).named))
    return measuring.seconds([partial(copy, one.outs[0], one.args[0]) for one in every])


@singledispatch
def error(case: Any) -> dict[str, float]:
    """How far the fastest is from the same in float32: the norm of the difference over the norm."""
    return {}


def _run(call: Call, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The results of the fastest way, in memory that was NaN."""
    outs = tuple(cupy.full(one.shape, np.nan, np.dtype(one.dtype)) for one in call.outs)
    Table("triton").bind(call.kernel, args, outs, call.params)()
    return outs


def _operands(call: Call) -> tuple[Any, ...]:
    return measuring.operands(call_of(call.named))[0].args


def _distance(got: Sequence[Any], want: Sequence[Any]) -> dict[str, float]:
    pairs = [(x.astype("float32"), y) for x, y in zip(got, want, strict=True)]
    return {"error": max(float(cupy.linalg.norm((x - y).ravel()) / cupy.linalg.norm(y.ravel())) for x, y in pairs)}


@error.register
def _(case: cases.Product) -> dict[str, float]:
    if case.line:
        return {}
    (call,) = calls(case)
    spec, a, b = _operands(call)
    got = _run(call, (spec, a, b))
    straight = (a if case.layout[0] == "n" else a.T), (b if case.layout[1] == "n" else b.T)
    return _distance(got, [cupy.matmul(*(x.astype("float32") for x in straight))])


@error.register
def _(case: cases.Attention) -> dict[str, float]:
    if case.length > 1024:
        return {}
    forward = calls(replace(case, backward=False))[0]
    q, k, v = _operands(forward)
    got = _run(forward, (q, k, v))
    dy = _operands(Call("copy", (Spec(q.shape, "bfloat16"),), {}))[0]
    y, dq, dk, dv = _in_float32(case, q, k, v, dy)
    if not case.backward:
        return _distance(got[:1], [y])
    return _distance(_run(calls(case)[0], (dy, q, k, v, *got)), [dq, dk, dv])


def _in_float32(case: cases.Attention, q: Any, k: Any, v: Any, dy: Any) -> tuple[Any, ...]:
    """Attention and its gradients with all scores in memory."""
    shape, shared = (case.batch, case.length, -1, case.width), case.heads // case.groups
    q, k, v, dy = (x.astype("float32").reshape(shape).transpose(0, 2, 1, 3) for x in (q, k, v, dy))
    k, v = (cupy.repeat(x, shared, 1) for x in (k, v))
    scale = case.width**-0.5
    s = cupy.matmul(q, k.transpose(0, 1, 3, 2)) * scale
    if case.causal:
        s = cupy.where(cupy.tri(case.length, dtype=bool), s, -cupy.inf)
    p = cupy.exp(s - s.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    y = cupy.matmul(p, v)
    ds = p * (cupy.matmul(dy, v.transpose(0, 1, 3, 2)) - (dy * y).sum(-1, keepdims=True)) * scale

    def flat(x: Any) -> Any:
        return x.transpose(0, 2, 1, 3).reshape(case.batch, case.length, -1)

    def gathered(x: Any) -> Any:
        return flat(x.reshape(case.batch, case.groups, shared, case.length, case.width).sum(2))

    dk, dv = cupy.matmul(ds.transpose(0, 1, 3, 2), q), cupy.matmul(p.transpose(0, 1, 3, 2), dy)
    return flat(y), flat(cupy.matmul(ds, k)), gathered(dk), gathered(dv)


@error.register
def _(case: cases.Loss) -> dict[str, float]:
    forward = calls(case)[0]
    logits, ids = _operands(forward)
    _, lse = _run(forward, (logits, ids))
    some = logits[:512].astype("float32")
    top = some.max(-1, keepdims=True)
    return _distance([lse[:512]], [cupy.log(cupy.exp(some - top).sum(-1)) + top[:, 0]])


def compile_ways(named: str) -> None:
    """Compile all ways of one call into Triton's cache, by binding them to memory that nothing is written to.

    What is wrong with one is told where it is measured.
    """
    table, call = Table("triton"), call_of(named)
    with cupy.cuda.Stream(non_blocking=True), suppress(Exception):
        outs, args = (tuple(_empty(x) if isinstance(x, Array) else x for x in xs) for xs in (call.outs, call.args))
        for way in tuning.choices(table, named) or [Choice("triton")]:
            with suppress(Refused):
                table.bind(call.kernel, args, outs, call.params, None, False, way)
    cupy.get_default_memory_pool().free_all_blocks()


def _empty(one: Array) -> Any:
    flat = cupy.empty(max(1, one.nbytes // one.itemsize), np.dtype(one.dtype))
    return cupy.ndarray(one.shape, flat.dtype, memptr=flat.data, strides=one.full_strides)


def compile_all(names: Sequence[str]) -> None:
    """Compile all kernels of these cases, side by side."""
    every = cases.named()
    wanted = dict.fromkeys(call.named for name in names for call in calls(every[name]))
    num_processes = max(1, sides.num_at_once() - SPARED_CORES)
    with get_context("spawn").Pool(num_processes) as pool:
        for number, _ in enumerate(pool.imap_unordered(compile_ways, wanted), 1):
            # Whoever waits for rows sees that they are worked at.
            print(f"compiled {number} of {len(wanted)}", flush=True)


def main(errand: str, kept: str, names: Sequence[str]) -> int:
    """Do this with the cases of these names, in their order. The status to end with."""
    if errand == "compile":
        compile_all(names)
        return 0
    with cupy.cuda.Stream(non_blocking=True) as stream:
        free = cupy.get_default_memory_pool().free_all_blocks
        return sides.tell(names, partial(measure, errand=errand, kept=kept), stream.synchronize, free)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
