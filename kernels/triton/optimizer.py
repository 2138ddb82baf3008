"""Optimizers that treat each element alike, of several parameters in one launch where they lie dense.

Results may be written over what they are made of. It knows no schedule of learning rates.
"""

from functools import cache
from itertools import accumulate
from math import log
from typing import Any

from castile.kernels.triton.launch import Launch, Plan, planned, takes
from castile.kernels.triton.lines import Text, each, kernel_of, operations
from castile.kernels.triton.views import View, view

# So many parameters are updated by one launch: each has lines of its own in the kernel, and few arrays.
_AT_ONCE = 16
# Elements and warps of a program.
_SETTINGS = ((1024, 4), (2048, 4), (4096, 8), (512, 2))

# Programs are shared out: those below end0 update the first parameter, and so on.
_MANY = """
def {name}({pointers}{constants}BLOCK: tl.constexpr):
    program, at = tl.program_id(0), tl.arange(0, BLOCK)
    {each}
"""


@planned
def sgd(
    out: tuple[Any, ...], w: Any, g: Any, m: Any, lr: Any, *more: Any, momentum: float, decay: float, nesterov: bool
) -> Plan | None:
    """See the definition."""
    step = "g + momentum * m" if nesterov else "m"
    statements = ("g = g + decay * w", "m = momentum * m + g")
    what = Text(("w", "g", "m", "lr"), ("momentum", "decay"), statements, (f"w - lr * ({step})", "m"))
    return _steps(what, out, (w, g, m, lr, *more), {"momentum": momentum, "decay": decay})


@planned
def adam(
    out: tuple[Any, ...],
    w: Any,
    g: Any,
    m: Any,
    v: Any,
    lr: Any,
    step: Any,
    *more: Any,
    beta1: float,
    beta2: float,
    eps: float,
    decay: float,
    decoupled: bool,
) -> Plan | None:
    """See the definition. 1 - beta^step comes from expm1, which loses no digits where it is small."""
    statements = (
        *(() if decoupled else ("g = g + decay * w",)),
        "m = m + share1 * (g - m)",
        "v = beta2 * v + share2 * g * g",
        "size = sqrt(v) / sqrt(-expm1(step * log2)) + eps",
        "rate = lr / -expm1(step * log1)",
    )
    kept = "(1.0 - lr * decay) * w" if decoupled else "w"
    constants = {"share1": 1 - beta1, "share2": 1 - beta2, "beta2": beta2, "eps": eps, "decay": decay}
    constants |= {"log1": _log(beta1), "log2": _log(beta2)}
    names = ("w", "g", "m", "v", "lr", "step")
    what = Text(names, tuple(constants), statements, (f"{kept} - rate * m / size", "m", "v"))
    return _steps(what, out, (w, g, m, v, lr, step, *more), constants)


@planned
def lion(
    out: tuple[Any, ...], w: Any, g: Any, m: Any, lr: Any, *more: Any, beta1: float, beta2: float, decay: float
) -> Plan | None:
    """See the definition."""
    statements = ("moved = sign(beta1 * m + share1 * g)",)
    values = ("(1.0 - lr * decay) * w - lr * moved", "beta2 * m + share2 * g")
    constants = {"beta1": beta1, "share1": 1 - beta1, "beta2": beta2, "share2": 1 - beta2, "decay": decay}
    what = Text(("w", "g", "m", "lr"), tuple(constants), statements, values)
    return _steps(what, out, (w, g, m, lr, *more), constants)


def _steps(what: Text, out: tuple[Any, ...], arrays: tuple[Any, ...], constants: dict[str, float]) -> Plan | None:
    """What is done to each parameter, whose arrays are as many as the text has names; of few of them at a launch."""
    if not takes(*out, *arrays):
        return None
    results, length = len(what.values), len(what.names)
    rows = [(out[n * results :][:results], arrays[n * length :][:length]) for n in range(len(out) // results)]
    rows = [row for row in rows if row[0][0].size]
    if not rows:
        return Plan((None,), lambda _: [])
    if len(rows) == 1 or not all(_lies_dense(*made, *given) for made, given in rows):
        plans = [_step(what, made, given, constants) for made, given in rows]
        return Plan(plans[0].settings, lambda setting: [one for plan in plans for one in plan.launches(setting)])
    few = [rows[n : n + _AT_ONCE] for n in range(0, len(rows), _AT_ONCE)]
    return Plan(_SETTINGS, lambda setting: [_launch(what, some, constants, *setting) for some in few])


def _step(what: Text, out: tuple[Any, ...], arrays: tuple[Any, ...], constants: dict[str, float]) -> Plan:
    shape = tuple(arrays[0].shape)
    views = [view(one) if n <= len(out) else View(one, shape, (0,) * len(shape)) for n, one in enumerate(arrays)]
    return each(what, [*map(view, out)], views, constants)


def _lies_dense(*arrays: Any) -> bool:
    return all(one.flags.c_contiguous for one in arrays)


def _launch(
    what: Text, rows: list[tuple[tuple[Any, ...], tuple[Any, ...]]], constants: dict[str, float], block: int, warps: int
) -> Launch:
    """One launch for some parameters, told by results and arrays."""
    sizes = [made[0].size for made, _ in rows]
    ends = accumulate(-(-size // block) for size in sizes)
    args: list[Any] = []
    for (made, given), size, end in zip(rows, sizes, ends, strict=True):
        args += [*made, *given, size, end]
    numbers = [float(constants[name]) for name in what.constants]
    flops = sum(sizes) * operations(what)
    return Launch(_many(what, len(rows)), (args[-1],), (*args, *numbers), {"BLOCK": block}, warps, flops=flops)


@cache
def _many(what: Text, num: int) -> Any:
    """The kernel that does to `num` parameters what the text says, each by programs of its own."""
    lines, pointers, num_arrays = [], [], len(what.values) + 1
    for n in range(num):
        begin = f"end{n - 1}" if n else "0"
        inside = [f"base = (program - {begin}).to(tl.int64) * BLOCK", f"here = at < num{n} - base"]
        for k, x in enumerate(what.names):
            place = f"p_{x}{n} + base + at, mask=here" if k < num_arrays else f"p_{x}{n}"
            inside.append(f"{x} = tl.load({place}).to(tl.float32)")
        inside += what.statements
        for k, value in enumerate(what.values):
            inside.append(f"tl.store(p_o{k}_{n} + base + at, ({value}).to(p_o{k}_{n}.dtype.element_ty), mask=here)")
        lines += [f"if (program >= {begin}) & (program < end{n}):", *("    " + line for line in inside)]
        pointers += [f"p_o{k}_{n}" for k in range(len(what.values))]
        pointers += [*(f"p_{x}{n}" for x in what.names), f"num{n}", f"end{n}"]
    words = {
        "pointers": "".join(f"{name}, " for name in pointers),
        "constants": "".join(f"{name}, " for name in what.constants),
    }
    return kernel_of(_MANY, {"each": lines}, words)


def _log(beta: float) -> float:
    return log(beta) if beta > 0 else float("-inf")
