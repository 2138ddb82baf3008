"""Adafactor: squares of the gradient by row and by column, the length of the step, the step.

It knows no learning-rate schedule. Workspace holds what is smaller than the parameter, in float32; gradients are read
again by each pass. What several parameters need in the same pass is fused into one launch.
"""

from math import prod
from typing import Any

from castile.kernels.form import each_of
from castile.kernels.triton.codegen import contiguous_steps, elementwise_plan, reduction_plan
from castile.kernels.triton.horizontal_fusion import fused
from castile.kernels.triton.launch import LaunchPlan, Workspace, are_floats, in_sequence, planned
from castile.kernels.triton.multi_tensor import guarded_by
from castile.kernels.triton.snippet import Snippet, snippet
from castile.kernels.triton.views import Shape, View, broadcast, view

_SQUARE = snippet("g -> g * g")
_SQUARES = snippet("g, w -> g * g; w * w")
_MEAN = snippet("x -> x * share", "share")
_MEAN_SQUARE = snippet("x -> x * x * share", "share")
# State as it is kept, and as the step is computed from it.
_OLD = "x = -expm1(power * log(step)) * old + exp(power * log(step)) * (square * share)"
_STATE = Snippet(("old", "square", "step"), ("power", "share"), (_OLD,), ("x", "x"))
_VECTOR = Snippet(("old", "g", "other", "step"), ("power", "share"), ("square = g * g", _OLD), ("x", "x", "other"))
_CONSTANTS = ("eps1", "least", "share", "eps2", "clip", "decay")
_RATE = (
    "rate = maximum(eps2, sqrt(size)) * minimum(lr, 1.0 / sqrt(step))",
    "rate = rate / maximum(1.0, sqrt(length) / clip)",
)
_STEPPED = "(1.0 - lr * decay) * w - rate * (g / sqrt(squares))"


@planned
def adafactor(
    out: tuple[Any, ...],
    w: Any,
    g: Any,
    rows: Any,
    columns: Any,
    lr: Any,
    step: Any,
    *more: Any,
    beta2_decay: float,
    eps1: float,
    eps2: float,
    clip: float,
    decay: float,
    guarded: bool = False,
) -> LaunchPlan | None:
    """See the definition. In place."""
    arrays = w, g, rows, columns, lr, step, *more
    parameters = each_of(out, arrays, 3)
    if not are_floats(*out, *arrays) or not all(one[0].size for one, _ in parameters):
        return None
    settings = beta2_decay, eps1, eps2, clip, decay
    passes = [_passes(one, *given, settings=settings) for one, given in parameters]
    rounds = [plans for row in zip(*passes, strict=True) if (plans := [plan for plans in row for plan in plans])]
    return in_sequence(*map(fused, rounds), chooses=len(rounds) - 1)


def _passes(
    out: tuple[Any, ...],
    w: Any,
    g: Any,
    rows: Any,
    columns: Any,
    lr: Any,
    step: Any,
    *guard: Any,
    settings: tuple[float, ...],
) -> list[list[LaunchPlan]]:
    """The update of one parameter, as passes of which each needs those before; what is in one needs nothing of it."""
    beta2_decay, eps1, eps2, clip, decay = settings
    shape = tuple(w.shape)
    size, length, numbers = _held(()), _held(()), tuple(map(view, (step, *guard)))
    made = _vector if len(shape) < 2 else _matrices
    before, state = made(out, w, g, rows, columns, numbers, beta2_decay, size)
    constants = dict(zip(_CONSTANTS, (eps1, eps1 * eps1, 1 / w.size, eps2, clip, decay), strict=True))
    names = ("g", "down", "across", "mean")[: 1 + len(state)]
    squares = "down" if len(state) == 1 else "across / maximum(mean, eps1) * down"
    meets = f"squares = maximum({squares}, least)"
    xs = [view(g), *(broadcast(one, shape) for one in state)]
    far = Snippet(names, _CONSTANTS[:3], (meets,), ("g * g / squares * share",))
    measured = _reduction(far, [length], xs, tuple(range(len(shape))), {c: constants[c] for c in far.constants})
    scalars = (broadcast(one, shape) for one in (size, length, view(lr), *numbers))
    what = Snippet(("w", *names, "size", "length", "lr", "step"), _CONSTANTS, (meets, *_RATE), (_STEPPED,))
    last = elementwise_plan(guarded_by(what, ("w",), bool(guard)), [view(out[0])], [view(w), *xs, *scalars], constants)
    return [*before, [measured], [last]]


def _vector(
    out: tuple[Any, ...], w: Any, g: Any, rows: Any, columns: Any, numbers: tuple[View, ...], power: float, size: View
) -> tuple[list[list[LaunchPlan]], list[View]]:
    """Passes that renew the state of a vector and find its mean square, and the squares as the step meets them.

    numbers: that of the step, and a guard where there is one.
    """
    shape = tuple(w.shape)
    new = _held(shape)
    xs = [view(columns), view(g), view(rows), *(broadcast(one, shape) for one in numbers)]
    what = guarded_by(_VECTOR, ("old",), len(numbers) > 1)
    renewed = elementwise_plan(what, [view(out[2]), new, view(out[1])], xs, {"power": power, "share": 1.0})
    measured = _reduction(_MEAN_SQUARE, [size], [view(w)], tuple(range(len(shape))), {"share": 1 / w.size})
    return [[renewed, measured], [], []], [new]


def _matrices(
    out: tuple[Any, ...], w: Any, g: Any, rows: Any, columns: Any, numbers: tuple[View, ...], power: float, size: View
) -> tuple[list[list[LaunchPlan]], list[View]]:
    """As `_vector`, of matrices: the squares of columns and of rows, and the mean of those."""
    *lead, height, width = w.shape
    across, own, new_rows = (_held((*lead, height)) for _ in range(3))
    down, new_columns = (_held((*lead, width)) for _ in range(2))
    mean = _held(tuple(lead))
    what = guarded_by(_STATE, ("old",), len(numbers) > 1)
    sums = [
        _reduction(_SQUARES, [across, own], [view(g), view(w)], (-1,), {}),
        _reduction(_SQUARE, [down], [view(g)], (-2,), {}),
    ]
    means = [_reduction(_MEAN, [size], [own], tuple(range(len(lead) + 1)), {"share": 1 / w.size})]
    for kept, new, old, square, num in (
        (out[1], new_rows, rows, across, width),
        (out[2], new_columns, columns, down, height),
    ):
        xs = [view(old), square, *(broadcast(one, square.shape) for one in numbers)]
        means.append(elementwise_plan(what, [view(kept), new], xs, {"power": power, "share": 1 / num}))
    whole = _reduction(_MEAN, [mean], [new_rows], (-1,), {"share": 1 / height})
    return [sums, means, [whole]], [_apart(new_columns, -2), _apart(new_rows, -1), _apart(_apart(mean, -1), -1)]


def _reduction(what: Snippet, outs: list[View], xs: list[View], dims: Shape, constants: dict[str, float]) -> LaunchPlan:
    """As `reduction_plan`, with eight elements a thread: with more, masks of fused kernels would spill registers."""
    plan = reduction_plan(what, outs, xs, dims, constants)
    down, across, warps, stages = plan.settings[0]
    return plan._replace(settings=((down // 2, across, warps, stages),))


def _held(shape: Shape) -> View:
    """Working memory."""
    return View(Workspace(prod(shape)), shape, contiguous_steps(shape))


def _apart(one: View, dim: int) -> View:
    """A view with a new dim of length 1, which is then its dim `dim`."""
    at = len(one.shape) + 1 + dim
    return View(one.array, (*one.shape[:at], 1, *one.shape[at:]), (*one.steps[:at], 0, *one.steps[at:]))
