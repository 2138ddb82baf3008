"""PyTorch on the same cases: `python -m benchmarks.gpu.theirs ERRAND KEPT NAME ...`, one JSON line a case.

"peers" times; "ready" runs what is to be compiled, so that PyTorch finds it in its caches afterwards. KEPT is unused.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Sequence
from functools import partial, singledispatch
from typing import Any

import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.gpu import cases, clock, sides, steps
from benchmarks.torch_model import TorchModel

HALF: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16}
READY_CALLS = 3


def seconds(calls: Sequence[Callable[[], Any]]) -> float:
    """Seconds of one of the calls."""

    def events(number: int) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for n in range(number):
            calls[n % len(calls)]()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1e3

    return clock.seconds(calls, events)


@singledispatch
def measure(case: Any) -> dict[str, float]:
    """What one case takes by each way that PyTorch has, in keys that end in `_seconds`."""
    raise NotImplementedError(type(case).__name__)


@measure.register
def _(case: cases.Attention) -> dict[str, float]:
    found = {}
    ways = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}
    copies = clock.num_copies(8 * case.batch * case.length * case.heads * case.width)
    for name, backend in ways.items():
        calls = [_attention(case, backend) for _ in range(copies)]
        found[f"{name}_seconds"] = seconds(calls)
    return found


def _attention(case: cases.Attention, backend: Any) -> Callable[[], Any]:
    def draw(heads: int) -> torch.Tensor:
        # Heads lie side by side in a row of the sequence, as a product leaves them.
        x = torch.randn(case.batch, case.length, heads, case.width, **HALF)
        return x.transpose(1, 2).requires_grad_(case.backward)

    q, k, v = draw(case.heads), draw(case.groups), draw(case.groups)

    def forward() -> torch.Tensor:
        with sdpa_kernel(backend):
            grouped = case.heads != case.groups
            return F.scaled_dot_product_attention(q, k, v, is_causal=case.causal, enable_gqa=grouped)

    if not case.backward:
        return forward
    y = forward()
    return partial(torch.autograd.grad, y, (q, k, v), torch.randn_like(y), retain_graph=True)


@measure.register
def _(case: cases.Convolution) -> dict[str, float]:
    torch.backends.cudnn.benchmark = True
    copies = clock.num_copies(2 * case.batch * (case.channels * case.size**2 + case.outputs * case.result**2))
    layouts = {"nhwc": torch.channels_last, "nchw": torch.contiguous_format}
    return {
        f"{name}_seconds": seconds([_convolution(case, layout) for _ in range(copies)])
        for name, layout in layouts.items()
    }


def _convolution(case: cases.Convolution, layout: Any) -> Callable[[], Any]:
    x = torch.randn(case.batch, case.channels, case.size, case.size, **HALF).to(memory_format=layout)
    w = torch.randn(case.outputs, case.channels // case.groups, case.kernel, case.kernel, **HALF)
    w = w.to(memory_format=layout)
    forward = partial(F.conv2d, x, w, stride=case.stride, padding=case.pad, groups=case.groups)
    if case.which == "forward":
        return forward
    dy = torch.randn_like(forward())
    how = ([case.stride] * 2, [case.pad] * 2, [1, 1], False, [0, 0], case.groups)
    wanted = [case.which == "input", case.which == "weight", False]
    return partial(torch.ops.aten.convolution_backward, dy, x, w, None, *how, wanted)


@measure.register
def _(case: cases.Loss) -> dict[str, float]:
    return {"eager_seconds": seconds([_loss(case, F.cross_entropy)]), "compiled_seconds": seconds([compiled(case)])}


@measure.register
def _(case: cases.Update) -> dict[str, float]:
    return {"fused_seconds": seconds([_update(case, fused=True).step]), "compiled_seconds": seconds([compiled(case)])}


@measure.register
def _(case: cases.Step) -> dict[str, float]:
    return {**_step_told("eager", partial(_step, case, _as_it_is)), **_step_told("compiled", partial(compiled, case))}


def _step_told(name: str, made: Callable[[], Callable[[], torch.Tensor]]) -> dict[str, Any]:
    """What a step takes; nothing of another one is in memory, as none is kept."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    step = made()
    losses = [float(step()) for _ in range(steps.NUM_LOSSES)]
    took = seconds([step])
    return {f"{name}_seconds": took, f"{name}_nbytes": torch.cuda.max_memory_allocated(), f"{name}_losses": losses}


@singledispatch
def compiled(case: Any) -> Callable[[], Any]:
    """The work of a case as `torch.compile` makes it, when it is first called."""
    raise NotImplementedError(type(case).__name__)


@compiled.register
def _(case: cases.Loss) -> Callable[[], Any]:
    return _loss(case, torch.compile(F.cross_entropy))


@compiled.register
def _(case: cases.Update) -> Callable[[], Any]:
    work: Callable[[], Any] = torch.compile(_update(case, capturable=True).step)
    return work


@compiled.register
def _(case: cases.Step) -> Callable[[], Any]:
    return _step(case, torch.compile)


def ready(case: Any) -> dict[str, float]:
    """Compile what is compiled: what begins with the second call is, too."""
    work = compiled(case)
    for _ in range(READY_CALLS):
        work()
    return {}


def _loss(case: cases.Loss, loss: Callable[..., Any]) -> Callable[[], None]:
    x = torch.randn(case.rows, case.classes, **HALF, requires_grad=True)
    ids = torch.randint(0, case.classes, (case.rows,), device="cuda")

    def step() -> None:
        x.grad = None
        loss(x, ids).backward()

    return step


def _update(case: cases.Update, **how: bool) -> torch.optim.AdamW:
    held = [torch.randn(shape, device="cuda", requires_grad=True) for shape in case.shapes]
    for one in held:
        one.grad = torch.randn_like(one)
    return torch.optim.AdamW(held, **how)


def _as_it_is(model: Any) -> Any:
    return model


def _step(case: cases.Step, made: Callable[[Any], Any]) -> Callable[[], torch.Tensor]:
    """A step as one writes it: parameters in float32, autocast, the fused AdamW, images with channels last."""
    graph = steps.graph(case, "float32")
    whole = TorchModel(graph, steps.SEED).to("cuda", memory_format=torch.channels_last)
    whole._kept = {name: x.cuda() for name, x in whole._kept.items()}
    inputs = {name: _moved(torch.from_numpy(x).cuda()) for name, x in steps.numbers(graph).items()}
    optimizer = torch.optim.AdamW(whole.parameters(), fused=True, **steps.ADAMW)
    model = made(whole)

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16):
            loss: torch.Tensor = model(inputs)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def _moved(x: torch.Tensor) -> torch.Tensor:
    """As PyTorch wants what it is given: images with channels last, labels of 64 bits."""
    if not x.is_floating_point():
        return x.long()
    return x.to(memory_format=torch.channels_last) if x.ndim == 4 else x


def main(errand: str, names: Sequence[str]) -> int:
    """Do this with the cases of these names, in their order. The status to end with."""
    errands: dict[str, Callable[[Any], dict[str, Any]]] = {"peers": measure, "ready": ready}
    return sides.tell(names, errands[errand], torch.cuda.synchronize, torch.cuda.empty_cache)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[3:]))
