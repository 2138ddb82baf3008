"""Choices between forms: named by the call, kept as text, taken when bound; and what the libraries' forms compute."""

import ctypes
import itertools
import json
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("triton")

from hypothesis import given
from hypothesis import strategies as st

from castile.kernels import choice, tuning
from castile.kernels.choice import Choice, Operands
from castile.kernels.cupy.contract import products
from castile.kernels.form import Refused, offers, prepares
from castile.kernels.table import Table, definitions, forms, native_accumulate
from castile.kernels.triton.views import View, view
from castile.kernels.tuning import dense as dense_array
from tests.kernel_cases import cases
from tests.stand_in import cublas
from tests.test_kernels import dense, several, sliced, stepped, unwritten

RESULTS = Path(__file__).resolve().parents[1] / "benchmarks" / "results"
CODES = {0: "float32", 1: "float64", 2: "float16"}


class DeviceArray:
    """As much of a CuPy array as the forms look at, over NumPy's memory."""

    def __init__(self, host: np.ndarray) -> None:
        self.host, self.shape, self.strides, self.dtype = host, host.shape, host.strides, host.dtype
        self.ndim, self.size, self.itemsize, self.flags = host.ndim, host.size, host.itemsize, host.flags
        self.data = types.SimpleNamespace(ptr=host.__array_interface__["data"][0])


class Stream:
    """The stream that is current."""

    ptr = 7


def memory(address: int, nbytes: int) -> np.ndarray:
    """The bytes at an address."""
    return np.frombuffer((ctypes.c_ubyte * nbytes).from_address(address), "uint8")


def at_once(stream: int, work: Any) -> None:
    assert stream == Stream.ptr
    work()


def move(to: int, source: int, nbytes: int, kind: int, stream: int) -> None:
    assert (kind, stream) == (3, Stream.ptr)
    ctypes.memmove(to, source, nbytes)


def aligned(nbytes: int, dtype: str) -> DeviceArray:
    """Memory as the device gives it out."""
    whole = np.empty(nbytes + 256, dtype)
    return DeviceArray(whole[-whole.ctypes.data % 256 :][:nbytes])


@contextmanager
def device() -> Iterator[cublas.Library]:
    """As much of CuPy as the forms call, with the library under it."""
    cuda = types.SimpleNamespace(
        cublas=types.SimpleNamespace(__file__=cublas.PATH),
        runtime=types.SimpleNamespace(memcpyAsync=move, getDevice=lambda: 0),
        get_current_stream=Stream,
    )
    with pytest.MonkeyPatch.context() as patch, cublas.installed(cublas.Library(cublas.Place(memory, at_once))) as made:
        patch.setitem(sys.modules, "cupy", types.SimpleNamespace(cuda=cuda, empty=aligned))
        yield made


@pytest.fixture
def cupy() -> Iterator[cublas.Library]:
    with device() as made:
        yield made


@pytest.fixture(autouse=True)
def _nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "_chosen", {})


def on_device(x: Any) -> Any:
    return DeviceArray(x) if isinstance(x, np.ndarray) else x


@pytest.mark.parametrize("lay", [dense, sliced, stepped])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", sorted(forms("cupy")))
def test_what_a_library_takes_it_computes_as_defined(name: str, dtype: str, lay: Any, cupy: Any) -> None:
    num_taken, form = 0, forms("cupy")[name]
    for args, params in cases(name, dtype):
        wants = several(definitions()[name](*args, **params))
        operands = tuple(on_device(lay(x) if isinstance(x, np.ndarray) else x) for x in args)
        outs = tuple(lay(unwritten(want)) for want in wants)
        on = tuple(map(on_device, outs))
        for times in (1, 2) if native_accumulate(form) else (1,):
            words = {"accumulate": times > 1, "scratch": None} if native_accumulate(form) else {}
            call = form(on if len(on) > 1 else on[0], *operands, **params, **words)
            num_taken += call is not None
            if call is not None:
                call()
                for out, want in zip(outs, wants, strict=True):
                    np.testing.assert_allclose(out, times * want, rtol=1e-5, atol=1e-5)
    assert num_taken or lay is not dense


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_products_of_sixteen_bits_may_be_kept_in_float32(dtype: str, cupy: Any) -> None:
    num_taken = 0
    for (spec, *whole), _ in cases("contract", "float32"):
        xs = [x.astype(dtype) for x in whole]
        want = definitions()["contract"](spec, *(x.astype("float64") for x in xs))
        out = unwritten(want.astype("float32"))
        call = forms("cupy")["contract"](on_device(out), spec, *map(on_device, xs), scratch=None, accumulate=False)
        num_taken += call is not None
        if call is not None:
            call()
            np.testing.assert_allclose(out, want, rtol=1e-5, atol=1e-5)
    assert num_taken


@given(data=st.data())
def test_products_are_the_contraction_or_are_refused(data: st.DataObject) -> None:
    labels = "abcdef"
    sizes = {label: data.draw(st.integers(1, 4), label) for label in labels}
    terms = [data.draw(st.lists(st.sampled_from(labels), min_size=1, max_size=4, unique=True)) for _ in "xy"]
    result = data.draw(st.permutations(sorted({*terms[0], *terms[1]})))[: data.draw(st.integers(0, 5))]
    terms, rng = [*terms, result], np.random.default_rng(0)
    x, y, out = (np.asarray(rng.normal(size=[sizes[label] for label in term])) for term in terms)
    lays = [data.draw(st.sampled_from([dense, sliced, stepped])) for _ in "xyz"]
    x, y, out = (lay(one) for lay, one in zip(lays, (x, y, out), strict=True))
    spec = ",".join("".join(one) for one in terms[:2]) + "->" + "".join(result)
    found = products([view(one) for one in (x, y, out)], ["".join(term) for term in terms])
    if found is None:
        return
    want = np.einsum(spec, x, y)
    with device():
        xs = (on_device(x), on_device(y))
        call = forms("cupy")["contract"](on_device(out), spec, *xs, scratch=None, accumulate=False)
        call()
    np.testing.assert_allclose(out, want, rtol=1e-9, atol=1e-12)


def test_each_stream_has_a_handle_with_its_own_working_memory(cupy: cublas.Library, monkeypatch: Any) -> None:
    x = DeviceArray(np.ones((4, 4), "float32"))
    for stream in (7, 9, 7):
        monkeypatch.setattr(Stream, "ptr", stream)
        forms("cupy")["contract"](x, "ij,jk->ik", x, x, scratch=None, accumulate=False)
    found = list(cupy.handles.values())
    assert [one.stream for one in found] == [7, 9] and found[0].workspace != found[1].workspace
    # IEEE's float32, and sums of sixteen bits in float32 even where they are made in parts
    assert all(one.workspace and one.math == 16 for one in found)


def test_what_the_library_refuses_is_a_sentence(cupy: cublas.Library) -> None:
    x = DeviceArray(np.ones((4, 4), "float32"))
    call = forms("cupy")["contract"](x, "ij,jk->ik", x, x, scratch=None, accumulate=False)
    cupy.handles.clear()
    with pytest.raises(RuntimeError, match="cublasGemmStridedBatchedEx of cuBLAS ended with status 1"):
        call()


def test_what_32_bits_cannot_count_is_not_for_the_library() -> None:
    for size, taken in ((2**31 - 1, True), (2**31, False)):
        x, y = view(np.empty((1, 4), "float32")), view(np.empty((4, 1), "float32"))
        wide, out = View(x.array, (size, 4), (4, 1)), View(x.array, (size, 1), (1, 1))
        assert (products([wide, y, out], ["ij", "jk", "ik"]) is not None) == taken


def test_linear_layers_are_one_call_in_all_passes() -> None:
    x, w, y = (np.empty(shape, "float32") for shape in ((8, 16, 24), (40, 24), (8, 16, 40)))
    for spec, one, other, out in (("xyi,oi->xyo", x, w, y), ("xyo,oi->xyi", y, w, x), ("xyo,xyi->oi", y, x, w)):
        terms, result = spec.split("->")
        found = products([view(part) for part in (one, other, out)], [*terms.split(","), result])
        assert found is not None and found.loops == () and found.batch.size == 1


def leading(m: int, n: int, k: int, batch: int = 1, apart: int = 0) -> Choice | None:
    """What leads in products of so many matrices in bfloat16, the rows of the first of which begin so far apart."""
    a, b, c = (dense_array((batch, *size), "bfloat16") for size in ((m, apart or k), (k, n), (m, n)))
    a = a._replace(shape=(batch, m, k))
    wanted = choice.kernel_call("contract", (c,), ("lik,lkj->lij", a, b), {}, False)
    return tuning.library_choice(Table("triton"), choice.key(wanted))


def test_a_library_leads_in_large_products_whose_rows_begin_where_vectors_do() -> None:
    for sizes in itertools.product((64, 192), (64, 4096), (64, 256)):
        found = leading(*sizes), leading(*sizes, batch=3), leading(*sizes, apart=sizes[2] + 8)
        assert set(found) == {Choice("cupy")}
    for sizes in ((32, 64, 64), (64, 32, 64), (64, 64, 32), (64, 100, 64), (64, 50257, 64)):
        assert leading(*sizes) is None
    assert leading(64, 64, 64, apart=65) is None


def test_a_library_does_not_lead_where_it_takes_several_calls() -> None:
    """As of batches of two dims that lie in one order in an operand, and in the other in another."""
    a, b, c = (dense_array((3, 2, 64, 64), "bfloat16") for _ in range(3))
    turned = dense_array((2, 3, 64, 64), "bfloat16").transpose((1, 0, 2, 3))
    for first, expected in ((a, Choice("cupy")), (turned, None)):
        wanted = choice.kernel_call("contract", (c,), ("hlik,hlkj->hlij", first, b), {}, False)
        assert tuning.library_choice(Table("triton"), choice.key(wanted)) == expected
        assert Choice("cupy") in tuning.choices(Table("triton"), choice.key(wanted))


def test_a_library_led_where_it_was_measured_to_be_the_fastest() -> None:
    found = json.loads((RESULTS / "h200-gpt2-ways.json").read_text())["calls"]
    named = [(json.dumps(one["call"], separators=(",", ":")), one["ways"]) for one in found]
    led = [ways for name, ways in named if tuning.library_choice(Table("triton"), name)]
    assert len(led) == 10 and all(min(ways, key=lambda way: way[2])[0] == "cupy" for ways in led)


scalars = st.one_of(st.integers(-5, 5), st.floats(allow_nan=False), st.booleans(), st.text(max_size=3), st.none())
literals = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=5)
arrays = st.builds(
    lambda shape, dtype: np.zeros(shape, dtype),
    st.lists(st.integers(0, 3), max_size=3), st.sampled_from(["float32", "float16", "int64", "bool"]),
)  # fmt: skip


@given(
    st.lists(st.one_of(arrays, literals), max_size=3),
    arrays,
    st.dictionaries(st.text(max_size=3), literals),
    st.booleans(),
)
def test_a_key_gives_its_call_back(args: list[Any], out: Any, params: dict[str, Any], adds: bool) -> None:
    call = choice.kernel_call("softmax", (out,), tuple(args), params, adds)
    assert choice.call_of(choice.key(call)) == call
    assert [a.nbytes for a in choice.arrays_of(call)] == [x.nbytes for x in (out, *args) if hasattr(x, "strides")]
    others = (call._replace(accumulate=not adds), call._replace(outs=(*call.outs, *call.outs)),
              call._replace(kernel="relu"), call._replace(params={**params, "more": 1}))  # fmt: skip
    assert len({choice.key(one) for one in (call, *others)}) == 5


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "null", '["relu",[],[],{}]', '["relu",[],[],[],true]', '["relu",[{}],[],{},true]']
)
def test_what_is_no_key_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no kernel call is named"):
        choice.call_of(text)


def test_dims_of_one_element_have_no_steps() -> None:
    x = np.zeros((4, 1, 3), "float32")
    same = (x, x[:, :1][:, ::2], x.copy("F"))
    keys = {choice.key(choice.kernel_call("relu", (one,), (one,), {}, False)) for one in same}
    assert len(keys) == 2


def offered(out: Any, x: Any, *, accumulate: bool) -> list[str]:
    return ["first", "second", "third"]


@prepares
@offers(offered)
def fancy(out: Any, x: Any, *, setting: str = "first", accumulate: bool) -> Any:
    """A form with settings, of which a device takes but two."""
    if setting == "second":
        raise Refused("too much memory")
    return lambda: np.copyto(out, ["first", "second", "third", "library"].index(setting))


@prepares
@offers(lambda out, x: [""] if out.size > 4 else [])
def library(out: Any, x: Any) -> Any:
    """The form of a library, for long arrays."""
    return (lambda: np.copyto(out, 3)) if out.size > 4 else None


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Table:
    made = Table("triton")
    monkeypatch.setattr(made, "forms", {"relu": fancy, "clip": library})
    monkeypatch.setattr(made, "library", {"relu": library})
    return made


def run(table: Table, size: int, adds: bool = False, chosen: Choice | None = None) -> int:
    out, x = np.zeros(size), np.zeros(size)
    table.bind("relu", (x,), (out,), {}, None, adds, chosen)()
    return int(out[0])


def relu(table: Table, size: int, adds: bool = False) -> str:
    x = dense_array((size,), "float64")
    return tuning.call_key(table, "relu", [x], [x], {}, adds)


def test_what_is_remembered_is_bound_for_its_call_alone(table: Table) -> None:
    assert run(table, 8) == 0
    for taken, value in ((Choice("triton", "third"), 2), (Choice("cupy"), 3), (Choice("triton", "first"), 0)):
        tuning.remember_all({relu(table, 8): taken})
        assert run(table, 8) == value and run(table, 9) == run(table, 8, adds=True) == 0
    choice.forget()
    assert run(table, 8) == 0
    assert run(table, 8, chosen=Choice("triton", "third")) == 2
    # Another table has no such forms and goes its own way.
    tuning.remember_all({relu(table, 8): Choice("cupy")})
    out, x = np.zeros(8), np.full(8, 5.0)
    Table("numpy").bind("relu", (x,), (out,), {})()
    assert out[0] == 5


class Meter:
    """Two pairs of arrays, and a clock that says what was written."""

    def __init__(self, spent: dict[int, float]) -> None:
        self.spent, self.timed, self.depth = spent, [], 0

    @contextmanager
    def place(self):
        self.depth += 1
        yield
        self.depth -= 1

    def operands(self, call: choice.KernelCall) -> list[Operands]:
        assert self.depth == 1
        (size,) = call.outs[0].shape
        self.made = [Operands((np.zeros(size),), (np.zeros(size),)) for _ in range(2)]
        return self.made

    def seconds(self, calls: Any) -> float:
        assert self.depth == 1
        for call, one in zip(calls, self.made, strict=True):
            call()
            self.timed.append(int(one.outs[0][0]))
        return self.spent[self.timed[-1]]


def test_tuning_times_each_way_that_the_device_takes(table: Table) -> None:
    meter = Meter({0: 3.0, 2: 1.0, 3: 2.0})
    for size, adds, ways in ((8, False, [0, 2, 3]), (4, False, [0, 2]), (8, True, [0, 2])):
        found = tuning.tune(table, relu(table, size, adds), meter)
        assert [meter.spent[way] for way in ways] == list(found.values())
        assert meter.timed == [way for way in ways for _ in "ab"], "each on all operands"
        assert all(str(way).split()[0] in ("triton", "cupy") for way in found)
        meter.timed.clear()
    assert tuning.tune(Table("numpy"), relu(table, 8), meter) == {} and not meter.timed


def test_a_kernel_that_cannot_add_is_tuned_as_it_fills_what_is_added(table: Table) -> None:
    wide = choice.Array((3, 4), (64, 8), "float64")
    texts = [tuning.call_key(table, "clip", [out], [], {}, adds)
             for out in (wide, dense_array((3, 4), "float64")) for adds in (True, False)]  # fmt: skip
    assert texts[0] == texts[2] == texts[3] != texts[1]


def test_calls_are_named_as_arrays_name_them() -> None:
    for shape, dtype in (((3, 4, 5), "float32"), ((), "int64"), ((1, 2, 1), "float16"), ((7,), "bool")):
        x = np.zeros(shape, dtype)
        bare = choice.kernel_call("relu", (dense_array(shape, dtype),), (), {}, False)
        assert choice.key(bare) == choice.key(choice.kernel_call("relu", (x,), (), {}, False))
