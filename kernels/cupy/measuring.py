"""Timing on a GPU: random operands of a call's shapes, as many as outgrow the caches, and the seconds that it takes.

It knows no kernel.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from importlib import import_module
from itertools import cycle, islice
from typing import Any

import numpy as np

from castile.kernels.choice import Array, KernelCall, Operands, arrays_of
from castile.kernels.table import Call, definitions

# Operands together are so many times as large as the device's last cache, but no more than so many, nor a share of what
# memory is free.
OUTGROWN, MOST_COPIES, MOST_SHARE = 3, 32, 0.5
# A sample lasts about so long; the median of so many is taken.
SAMPLE_SECONDS, NUM_SAMPLES = 4e-3, 5
# Kernels shorter than this take less time than their launches, which a graph of them does not count.
SHORT_SECONDS = 3e-5
LAUNCHES_OF_A_GRAPH = 64


@contextmanager
def place() -> Iterator[None]:
    """A stream of the current device for all that is measured on it; memory is given back after each use."""
    cupy = import_module("cupy")
    with _stream(cupy.cuda.runtime.getDevice()) as stream:
        yield
        stream.synchronize()
    cupy.get_default_memory_pool().free_all_blocks()


@cache
def _stream(device: int) -> Any:
    # One that is not the default, which graphs cannot be captured on; forms keep working memory by stream.
    return import_module("cupy").cuda.Stream(non_blocking=True)


def operands(call: KernelCall) -> list[Operands]:
    """Random arrays for a call, never zeros; integers are below what they number, or are an index of any array.

    MemoryError where not even one fits.
    """
    cupy = import_module("cupy")
    nbytes = sum(one.nbytes for one in arrays_of(call))
    free, _ = cupy.cuda.runtime.memGetInfo()
    fitting = int(MOST_SHARE * (free + cupy.get_default_memory_pool().free_bytes())) // max(1, nbytes)
    if not fitting:
        raise MemoryError(f"kernel {call.kernel}: its arrays take {nbytes} bytes, and {free} are free")
    cache = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.runtime.getDevice())["l2CacheSize"]
    copies = min(fitting, MOST_COPIES, max(2, -(-OUTGROWN * cache // max(1, nbytes))))
    return [_operands(cupy, call, cupy.random.RandomState(seed)) for seed in range(copies)]


def seconds(calls: Sequence[Call]) -> float:
    """What one of the calls takes, in turns; within `place`."""
    cuda = import_module("cupy").cuda
    stream = cuda.get_current_stream()
    for call in calls:
        call()
    stream.synchronize()
    once = _timed(cuda, stream, lambda: _run(calls), 1) / len(calls)
    work, each = calls, 1
    if once < SHORT_SECONDS and (graph := _graph(stream, calls)):
        work, each = [graph], LAUNCHES_OF_A_GRAPH
        once = _timed(cuda, stream, graph, 1) / each
    count = max(1, int(SAMPLE_SECONDS / max(once, 1e-7) / each))
    turns = list(islice(cycle(work), count))
    return float(np.median([_timed(cuda, stream, lambda: _run(turns), count * each) for _ in range(NUM_SAMPLES)]))


def _operands(cupy: Any, call: KernelCall, random: Any) -> Operands:
    extents = [n for one in arrays_of(call) if "float" in one.dtype for n in one.shape if n > 1]
    numbered = getattr(definitions().get(call.kernel), "numbers", "")
    below = call.params.get(numbered, min(extents, default=2))

    def made(x: Any) -> Any:
        return _random(cupy, x, random, below) if isinstance(x, Array) else x

    return Operands(tuple(map(made, call.outs)), tuple(map(made, call.args)))


def _random(cupy: Any, one: Array, random: Any, below: int) -> Any:
    """An array with those steps over memory of its own."""
    size = one.nbytes // one.itemsize
    if "float" in one.dtype:
        flat = random.standard_normal(max(size, 1), dtype="float32").astype(np.dtype(one.dtype))
    else:
        flat = random.randint(0, 2 if one.dtype == "bool" else below, max(size, 1)).astype(one.dtype)
    return cupy.ndarray(one.shape, flat.dtype, memptr=flat.data, strides=one.full_strides)


def _run(calls: Sequence[Call]) -> None:
    for call in calls:
        call()


def _timed(cuda: Any, stream: Any, work: Callable[[], object], count: int) -> float:
    """Seconds of one of the `count` calls that `work` makes, by events on the device."""
    begin, end = cuda.Event(), cuda.Event()
    begin.record(stream)
    work()
    end.record(stream)
    end.synchronize()
    return max(float(cuda.get_elapsed_time(begin, end)), 1e-6) / 1e3 / count


def _graph(stream: Any, calls: Sequence[Call]) -> Call | None:
    """Many of the calls as one launch; None where they cannot be captured."""
    # What allocates or waits cannot be captured, and all that has run outside may be refused within: CuPy's words and
    # those of libraries are RuntimeErrors. It is timed with its launches.
    try:
        stream.begin_capture()
        _run(list(islice(cycle(calls), LAUNCHES_OF_A_GRAPH)))
        captured = stream.end_capture()
    except RuntimeError:
        # A capture that was begun is under way still, and without all of its calls.
        with suppress(RuntimeError):
            stream.end_capture()
        return None
    captured.launch(stream)
    stream.synchronize()
    launch: Call = lambda: captured.launch(stream)  # noqa: E731
    return launch
