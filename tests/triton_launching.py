"""Frozen launches against a driver that runs nothing and stand-ins for CuPy's arrays: what reaches cuLaunchKernelEx.

Run by tests/test_triton.py in a process of its own, in which libcuda.so.1 is that of tests/triton_stub.c. What it shows
is that the calls are made as they should be; no kernel runs.
"""

import ctypes
import sys
import types
from collections.abc import Iterator
from contextlib import suppress
from itertools import count, product
from typing import Any

import numpy as np
import pytest
import triton

from castile.kernels import choice, tuning
from castile.kernels.choice import Choice
from castile.kernels.form import Refused
from castile.kernels.table import Table
from castile.kernels.triton import chip, driver, precompile
from tests.effort import rare
from tests.kernel_cases import cases
from tests.triton_arrays import array
from tests.triton_cases import NAMES, cast, fake_plan, launches, results

ADDRESSES = count(0x100000, 0x100000)
TOLD = ("dtype", "shape", "strides", "flags")


class DeviceArray:
    """As much of a CuPy array as the forms look at, without memory."""

    def __init__(self, shape: tuple[int, ...], dtype: str, address: int | None = None, told: Any = None) -> None:
        # an array of NumPy's that tells shape and steps
        self.told = array(shape, dtype) if told is None else told
        self.dtype, self.shape, self.strides, self.flags = (getattr(self.told, x) for x in TOLD)
        self.ndim, self.itemsize, self.size = self.told.ndim, self.told.itemsize, self.told.size
        self.data = types.SimpleNamespace(ptr=next(ADDRESSES) if address is None else address)

    def __getitem__(self, where: Any) -> "DeviceArray":
        part = self.told[where]
        begins = [one.__array_interface__["data"][0] for one in (part, self.told)]
        return DeviceArray((), self.dtype.name, self.data.ptr + begins[0] - begins[1], part)

    def __array_function__(self, function: Any, types: Any, args: Any, words: Any) -> "DeviceArray":
        assert function is np.broadcast_to and args[0] is self
        return DeviceArray((), self.dtype.name, self.data.ptr, function(self.told, *args[1:], **words))

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

    ways = Table("triton").choices("contract", ("ik,jk->ij", x, y), (out,), {}, False)
    pointers, walks = ([way for way in ways if way.form == "triton" and ('"' in way.setting) == there]
                       for there in (True, False))  # fmt: skip
    # of those that fetch blocks not all walk
    assert (132, 1, 1) in {tuple(launched(x, way).grid) for way in walks if way.setting.endswith("true]")}
    assert {launched(odd, way).function for way in walks} == {launched(odd, pointers[0]).function}
    monkeypatch.setattr(driver, "capability", lambda: 80)
    with pytest.raises(Refused, match="too old"):
        launched(x, walks[0])


def test_a_grid_that_no_device_takes_is_refused() -> None:
    launch = types.SimpleNamespace(grid=(1, 70000), kernel=types.SimpleNamespace(__name__="some"), is_persistent=False)
    with pytest.raises(Refused, match="no grid"):
        driver.call(launch, ())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_more_products_than_a_grid_has_rows_go_another_way(dtype: str) -> None:
    """As of the windows of a large batch: those that fetch blocks, or the library's, take any number."""
    xs = tuple(DeviceArray((70000, 32, 32), dtype) for _ in range(3))
    spec, table = "bik,bkj->bij", Table("triton")
    with pytest.raises(Refused, match="no grid"):
        table.bind("contract", (spec, *xs[:2]), xs[2:], {}, None, False)
    ways = table.choices("contract", (spec, *xs[:2]), xs[2:], {}, False)
    assert any(way.form == "cupy" for way in ways)


def settled(launch: Any, pointers: Any) -> tuple[Any, ...]:
    """What Triton's cache knows a compiled launch by."""

    def one(x: Any) -> Any:
        if hasattr(x, "block_shape"):
            return (one(x.base), *map(tuple, (x.shape, x.strides, x.block_shape)))
        return (str(x.dtype), x.data_ptr() % 16) if hasattr(x, "data_ptr") else x

    options = (launch.warps, launch.stages, *launch.constants.items())
    return launch.kernel.__name__, tuple(map(one, pointers)), options


@pytest.mark.parametrize("name", NAMES)
def test_what_is_compiled_ahead_is_what_is_bound(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of any call, known by its name alone: of the first case with every setting, of others with the first and last."""
    noted: list[Any] = []

    def note(launch: Any, pointers: Any) -> Any:
        noted.append(settled(launch, pointers))
        return types.SimpleNamespace(run=None, function=None, packed_metadata=None)

    monkeypatch.setattr(driver, "compiled", note)
    monkeypatch.delattr(chip.nvidia, "make_launcher", raising=False)
    table = Table("triton")
    every = [*product(enumerate(cases(name, "float32")), ("float32", "float16"))]
    for (number, case), dtype in (every[0], every[-1], *rare(*every[1:-1])):
        args, params = cast(name, case, dtype)
        there = tuple(DeviceArray(x.shape, x.dtype.name) if hasattr(x, "strides") else x for x in args)
        outs = tuple(DeviceArray(one.shape, one.dtype) for one in results(name, args, params))
        wanted = choice.kernel_call(name, outs, there, params, False)
        ways = [one for one in tuning.choices(table, choice.key(wanted)) if one.form == "triton"] or [None]
        for way in ways if number == 0 else ways[:: max(1, len(ways) - 1)]:
            with suppress(Refused):
                table.bind(name, there, outs, params, None, False, way)
            bound, noted[:] = list(noted), []
            precompile._compile(choice.key(wanted), way.setting if way else "")
            assert noted == bound and bound
            noted.clear()


def test_processes_leave_nothing_to_compile(library: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    table, calls = Table("triton"), []
    for name, num in (("relu", 1), ("add", 2), ("softmax", 1)):
        arrays = tuple(DeviceArray((48, 256), "float32") for _ in range(num))
        which = choice.key(choice.kernel_call(name, arrays[:1], arrays, {}, False))
        # what is chosen is compiled, what was remembered too, and else what comes first
        way = tuning.choices(table, which)[-1] if num == 1 else None
        if name == "relu":
            monkeypatch.setattr(choice, "_chosen", {which: way})
        calls.append((name, arrays, which, way if name == "softmax" else None))
    heard: list[tuple[int, int]] = []
    built: list[bool] = []
    monkeypatch.setattr(precompile, "LEAST_CALLS", 1)
    monkeypatch.setattr(precompile, "sched_getaffinity", lambda process: {0, 1})
    with triton.knobs.compilation.scope():
        triton.knobs.compilation.listener = lambda cache_hit, **_: built.append(not cache_hit)
        tuning.precompile([(which, way) for *_, which, way in calls], lambda *one: heard.append(one))
        assert heard == [(0, 3), *((n, 3) for n in range(2, 4))]
        monkeypatch.setattr(triton.runtime.build, "_build", None)
        for name, arrays, _, way in calls:
            call = table.bind(name, arrays, arrays[:1], {}, None, False, way)
            assert recorded(library, call, 1)
    assert built and not any(built), "each of them is found in the cache"
    # and then no process is started
    precompile._seen.clear()
    monkeypatch.setattr(precompile.worker_pool, "worker_pool", None)
    tuning.precompile([(which, way) for *_, which, way in calls], lambda *one: None)


def test_processes_that_die_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precompile, "LEAST_CALLS", 1)
    monkeypatch.setattr(precompile, "sched_getaffinity", lambda process: {0, 1})
    monkeypatch.setattr(precompile, "_is_kept", lambda one: False)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    heard: list[tuple[int, int]] = []
    calls = [("b", str(n)) for n in range(10)]
    for _ in range(2):
        precompile.compile_all(calls, 90, lambda *one: heard.append(one))
    assert heard == [(0, 10), *((n, 10) for n in range(2, 11))], "and once is enough"
