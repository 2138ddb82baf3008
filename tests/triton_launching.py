"""Frozen launches against a driver that runs nothing and stand-ins for CuPy's arrays: what reaches cuLaunchKernelEx.

Run by tests/test_triton.py in a process of its own, in which libcuda.so.1 is that of tests/triton_stub.c. What it shows
is that the calls are made as they should be; no kernel runs.
"""

import ctypes
import sys
import types
from collections.abc import Iterator
from itertools import count
from math import prod
from typing import Any

import numpy as np
import pytest

from castile.kernels.choice import Choice
from castile.kernels.form import Refused
from castile.kernels.table import Table
from castile.kernels.triton import driver
from tests.triton_arrays import array
from tests.triton_cases import fake_plan, launches

ADDRESSES = count(0x100000, 0x100000)


class DeviceArray:
    """As much of a CuPy array as the forms look at, without memory."""

    def __init__(self, shape: tuple[int, ...], dtype: str, address: int | None = None) -> None:
        self.shape, self.dtype, self.ndim = shape, np.dtype(dtype), len(shape)
        self.itemsize, self.size = self.dtype.itemsize, prod(shape)
        self.strides = tuple(self.itemsize * prod(shape[dim + 1 :]) for dim in range(len(shape)))
        self.data = types.SimpleNamespace(ptr=next(ADDRESSES) if address is None else address)

    def __getitem__(self, piece: slice) -> "DeviceArray":
        return DeviceArray((piece.stop,), self.dtype.name, self.data.ptr)

    def view(self, dtype: str) -> "DeviceArray":
        return DeviceArray((self.size * self.itemsize // np.dtype(dtype).itemsize,), dtype, self.data.ptr)


class NoTorch:
    """Refuses to find torch, and remembers who looked for it: with torch there that would import it."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name.split(".")[0] == "torch":
            self.asked.append(name)
            raise ImportError("torch is wanted")


class Record(ctypes.Structure):
    """What the stub wrote down of a launch."""

    _fields_ = [
        ("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared", ctypes.c_uint),
        ("stream", ctypes.c_uint64), ("function", ctypes.c_uint64), ("words", ctypes.c_uint64 * 64),
    ]  # fmt: skip


STREAM = types.SimpleNamespace(ptr=0x77)


@pytest.fixture(autouse=True)
def cupy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    runtime = types.SimpleNamespace(
        getDevice=lambda: 0,
        setDevice=lambda device: None,
        deviceGetAttribute=lambda which, device: {75: 9, 76: 0, 16: 132}[which],
    )
    cuda = types.SimpleNamespace(runtime=runtime, get_current_stream=lambda: STREAM, is_available=lambda: True)
    made = types.SimpleNamespace(cuda=cuda, dtype=np.dtype, empty=lambda size, dtype: DeviceArray((size,), dtype))
    monkeypatch.setitem(sys.modules, "cupy", made)
    # Whoever imports torch fails, though it may be installed.
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    spy = NoTorch()
    monkeypatch.setattr(sys, "meta_path", [spy, *sys.meta_path])
    yield made
    assert not spy.asked


@pytest.fixture
def library() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def recorded(library: ctypes.CDLL, call: Any, num_words: int) -> list[Record]:
    """What calling `call` launches, with the first words of the arguments."""
    done = ctypes.c_uint64.in_dll(library, "stub_count")
    words = ctypes.c_int.in_dll(library, "stub_num_words")
    before, words.value = done.value, num_words
    call()
    words.value = 0
    records = (Record * 64).in_dll(library, "stub_records")
    return [Record.from_buffer_copy(records[n % 64]) for n in range(before, done.value)]


def address(x: DeviceArray) -> int:
    return int(x.data.ptr)


def test_a_frozen_launch_is_what_the_plan_says(library: ctypes.CDLL) -> None:
    x, g, b = (DeviceArray(shape, "float32") for shape in ((64, 768), (768,), (768,)))
    outs = tuple(DeviceArray(shape, "float32") for shape in ((64, 768), (64,), (64,)))
    call = Table("triton").bind("layer_norm", (x, g, b), outs, {"eps": 1e-5})
    made = fake_plan("layer_norm", (tuple(array(one.shape, "float32") for one in (x, g, b)), {"eps": 1e-5}))
    assert made is not None
    (said,) = launches(made)
    for _ in range(2):
        (done,) = recorded(library, call, 8)
        assert tuple(done.grid) == (*said.grid, 1, 1)
        assert tuple(done.block) == (32 * said.warps, 1, 1)
        assert done.stream == STREAM.ptr
        # A step that is 1 is no argument; the steps of 768 are, which stand behind y and x.
        pointers = [word for word in done.words if word >= 0x100000 and word & 0xFFFFF == 0]
        assert pointers[:2] == [address(outs[0]), address(x)]


def test_a_sum_in_parts_passes_through_room_of_its_stream(library: ctypes.CDLL) -> None:
    x, out = DeviceArray((90000, 64), "float32"), DeviceArray((64,), "float32")
    params = {"dims": (0,)}
    call = Table("triton").bind("sum_over", (x,), (out,), params)
    first, second = recorded(library, call, 1)
    assert second.words[0] == address(out)
    assert first.function != second.function
    room = first.words[0]
    again = recorded(library, Table("triton").bind("sum_over", (x,), (out,), params), 1)
    assert again[0].words[0] == room
    STREAM.ptr = 0x99
    other = recorded(library, Table("triton").bind("sum_over", (x,), (out,), params), 1)
    STREAM.ptr = 0x77
    assert other[0].stream == 0x99 and other[0].words[0] not in (0, room)
    assert {one.stream for one in recorded(library, call, 1)} == {0x77}


def test_products_ask_for_their_shared_memory(library: ctypes.CDLL) -> None:
    x, y, out = (DeviceArray((1024, 1024), "float16") for _ in range(3))
    call = Table("triton").bind("contract", ("ij,kj->ik", x, y), (out,), {}, None, False)
    made = recorded(library, call, 3)
    assert made[0].shared > 48 * 1024
    assert list(made[-1].words[:1]) == [address(out)]


def test_programs_that_walk_are_no_more_than_processors(library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y, out = (DeviceArray(shape, "bfloat16") for shape in ((4096, 1024), (2048, 1024), (4096, 2048)))
    # Descriptors begin at multiples of 16 bytes: from elsewhere on another setting is taken.
    odd = DeviceArray(x.shape, "bfloat16", address(x) + 2)

    def launched(x: DeviceArray, way: Choice) -> Record:
        call = Table("triton").bind("contract", ("ik,jk->ij", x, y), (out,), {}, None, False, way)
        return recorded(library, call, 3)[0]

    ways = Table("triton").ways("contract", ("ik,jk->ij", x, y), (out,), {}, False)
    pointers, walks = ([way for way in ways if way.form == "triton" and ('"' in way.setting) == there]
                       for there in (True, False))  # fmt: skip
    assert (132, 1, 1) in {tuple(launched(x, way).grid) for way in walks}
    assert {launched(odd, way).function for way in walks} == {launched(odd, pointers[0]).function}
    monkeypatch.setattr(driver, "capability", lambda: 80)
    with pytest.raises(Refused, match="too old"):
        launched(x, walks[0])


def test_a_grid_that_no_device_takes_is_refused() -> None:
    launch = types.SimpleNamespace(grid=(1, 70000), kernel=types.SimpleNamespace(__name__="some"), walks=False)
    with pytest.raises(ValueError, match="no grid"):
        driver.call(launch, ())
