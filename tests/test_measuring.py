"""Measuring on a GPU, against a device of which only the clock and the memory are there."""

import sys
import types
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import pytest

from castile.kernels import choice
from castile.kernels.choice import Array
from castile.kernels.cupy import measuring
from castile.kernels.ids import OutOfRange
from castile.kernels.table import definitions
from tests.kernel_cases import cases

LAUNCH_SECONDS, CACHE_BYTES = 5e-6, 2**16


class CUDARuntimeError(RuntimeError):
    """What CuPy raises."""


class Device:
    """A clock that kernels move on; from the host each launch takes a while too, within a graph it does not.

    captures   False: no stream can be captured. None: none with such kernels
    """

    def __init__(self, free: int = 2**24, captures: bool | None = True) -> None:
        self.now, self.free, self.captures = 0.0, free, captures
        self.recording: list[float] | None = None
        self.num_launches, self.num_streams, self.in_place = 0, 0, 0

    def kernel(self, seconds: float) -> Any:
        def run() -> None:
            assert self.in_place == 1, "within the stream of measurements"
            if self.recording is not None:
                if self.captures is None:
                    raise RuntimeError("cuBLAS ended with status 14")
                self.recording.append(seconds)
                return
            self.num_launches += 1
            self.now += max(LAUNCH_SECONDS, seconds)

        return run

    def cupy(self) -> types.SimpleNamespace:
        device = self

        class Event:
            def record(self, stream: Any) -> None:
                self.time = device.now

            def synchronize(self) -> None:
                pass

        class Graph:
            def __init__(self, kernels: list[float]) -> None:
                self.kernels = kernels

            def launch(self, stream: Any) -> None:
                device.now += LAUNCH_SECONDS + sum(self.kernels)

        class Stream:
            def __init__(self, non_blocking: bool) -> None:
                assert non_blocking
                device.num_streams += 1

            def __enter__(self) -> "Stream":
                device.in_place += 1
                return self

            def __exit__(self, *_: object) -> None:
                device.in_place -= 1

            def synchronize(self) -> None:
                assert device.recording is None

            def begin_capture(self) -> None:
                if device.captures is False:
                    raise CUDARuntimeError
                device.recording = []

            def end_capture(self) -> Graph:
                kernels, device.recording = device.recording, None
                if kernels is None:
                    raise CUDARuntimeError
                return Graph(kernels)

        stream = Stream(non_blocking=True)
        runtime = types.SimpleNamespace(
            getDevice=lambda: 0,
            memGetInfo=lambda: (device.free, 2 * device.free),
            getDeviceProperties=lambda which: {"l2CacheSize": CACHE_BYTES},
            CUDARuntimeError=CUDARuntimeError,
        )
        cuda = types.SimpleNamespace(
            runtime=runtime,
            Event=Event,
            Stream=lambda non_blocking: stream,
            get_current_stream=lambda: stream,
            get_elapsed_time=lambda a, b: 1e3 * (b.time - a.time),
        )
        pool = types.SimpleNamespace(free_bytes=lambda: 0, free_all_blocks=lambda: None)
        return types.SimpleNamespace(
            cuda=cuda, random=Random, ndarray=made, get_default_memory_pool=lambda: pool, empty=np.empty
        )


class Random:
    """CuPy's generators, with arrays that say where their memory is."""

    @staticmethod
    def RandomState(seed: int) -> Any:
        rng = np.random.default_rng(seed)
        return types.SimpleNamespace(
            standard_normal=lambda size, dtype: Flat(rng.standard_normal(size, dtype)),
            randint=lambda low, high, size: Flat(rng.integers(low, high, size)),
        )


class Flat:
    """A flat array whose memory is itself."""

    def __init__(self, host: np.ndarray) -> None:
        self.data, self.dtype = host, host.dtype

    def astype(self, dtype: Any) -> "Flat":
        return Flat(self.data.astype(dtype))


def made(shape: tuple[int, ...], dtype: Any, memptr: np.ndarray, strides: tuple[int, ...]) -> np.ndarray:
    return np.ndarray(shape, dtype, memptr, 0, strides)


@contextmanager
def on(device: Device, monkeypatch: pytest.MonkeyPatch) -> Any:
    measuring._stream.cache_clear()
    monkeypatch.setitem(sys.modules, "cupy", device.cupy())
    yield
    measuring._stream.cache_clear()


def call_of(*arrays: Array) -> choice.KernelCall:
    return choice.KernelCall("k", arrays[:1], (*arrays[1:], "text", 3), {})


def test_operands_are_random_as_the_call_wants_them_and_outgrow_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    floats, steps = Array((8, 1, 6), (32, 0, 4), "float32"), Array((5, 3), (40, 8), "float16")
    ids = Array((4, 4), (16, 4), "int32")
    with on(Device(), monkeypatch):
        found = measuring.operands(call_of(floats, steps, ids))
        assert measuring.operands(call_of(Array((2**20,), (4,), "float32")))[1:], "two at least"
    nbytes = floats.nbytes + steps.nbytes + ids.nbytes
    assert len(found) == measuring.MOST_COPIES or len(found) * nbytes >= measuring.OUTGROWN * CACHE_BYTES
    for one in found:
        for array, want in zip((*one.outs, *one.args[:2]), (floats, steps, ids), strict=True):
            assert (array.shape, array.dtype.name) == (want.shape, want.dtype) and array.any()
            assert all(n == 1 or a == b for n, a, b in zip(want.shape, array.strides, want.strides, strict=True))
        assert one.args[2:] == ("text", 3)
        assert 0 <= one.args[1].min() and one.args[1].max() < 3, "an index of every array"
    assert len({one.args[0].tobytes() for one in found}) == len(found), "all different"


def test_integers_are_below_what_they_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a gradient of a table would be timed with as many words as there are samples, say."""
    out, ids = Array((4096, 8), (32, 4), "float32"), Array((512,), (4,), "int32")
    dy, params = Array((512, 8), (32, 4), "float32"), {"rows": 4096, "first": 0, "known": 4096}
    with on(Device(), monkeypatch):
        found = measuring.operands(choice.KernelCall("embedding_grad", (out,), (dy, ids), params))
    assert all(2048 < one.args[1].max() < 4096 for one in found)


@pytest.mark.parametrize("name", [name for name, one in definitions().items() if hasattr(one, "numbers")])
def test_what_integers_number_is_a_parameter_that_is_checked(name: str) -> None:
    definition: Any = definitions()[name]
    given = [case for case in cases(name, "float32") if all(x.size for x in case[0])]
    for args, params in given:
        beyond = (x + params[definition.numbers] if x.dtype.kind in "iu" else x for x in args)
        with pytest.raises(OutOfRange):
            definition(*beyond, **params)
    assert given


def test_operands_for_which_there_is_no_room_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    big = Array((2**16,), (4,), "float32")
    with on(Device(free=2**17), monkeypatch), pytest.raises(MemoryError, match=f"take {2**18} bytes"):
        measuring.operands(call_of(big))
    with on(Device(free=2**20), monkeypatch):
        assert len(measuring.operands(call_of(big))) == 2, "half of what is free"


@pytest.mark.parametrize("seconds", [1e-7, 2e-6, 1e-4, 3e-2])
@pytest.mark.parametrize("captures", [True, False, None])
def test_what_is_told_is_a_kernels_time_without_that_of_short_ones_launches(
    seconds: float, captures: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = Device(captures=captures)
    with on(device, monkeypatch), measuring.place():
        found = measuring.seconds([device.kernel(seconds)] * 3)
    share = LAUNCH_SECONDS / measuring.LAUNCHES_OF_A_GRAPH
    assert found == pytest.approx(seconds + share if captures and seconds < 1e-5 else max(seconds, LAUNCH_SECONDS))
    assert device.in_place == 0 and device.recording is None


def test_calls_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    device, order = Device(), []
    lasts = device.kernel(1e-3)

    def call(number: int) -> None:
        order.append(number)
        lasts()

    calls = [partial(call, number) for number in range(3)]
    with on(device, monkeypatch), measuring.place():
        measuring.seconds(calls)
    assert order[:6] == [0, 1, 2, 0, 1, 2] and len(order) > 6 + measuring.NUM_SAMPLES
