"""Every Triton form compiled for chips that are not there: no spills, shared memory that fits, and estimates.

Run by `make test` in a process of its own without TRITON_INTERPRET, but for what is marked slow: shapes on which a
default asks for less of a chip than on others, float32 but for products, odd shapes and other ways to ask. All of it
`make kernels` runs, which compiles besides every default for every chip, and every setting: `tests.triton_every`.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any
from zlib import crc32

import numpy as np
import pytest
import triton
from numpy.lib.stride_tricks import as_strided

from castile.kernels.estimates.chips import CHIPS, H200
from castile.kernels.estimates.compiled import Compiled, compiled
from castile.kernels.estimates.estimate import least_seconds
from castile.kernels.triton import launch as launching
from castile.kernels.triton.chip import AbsentArray, Chip
from castile.kernels.triton.contract import DEEP_TILES, Tile, contract_pointwise
from castile.kernels.triton.launch import Launch, LaunchPlan, arrays_of
from castile.kernels.triton.tma_gemm import TmaTile
from tests import triton_cases_images
from tests.kernel_cases import Case, cases
from tests.triton_arrays import array
from tests.triton_cases import NAMES, asked, cast, fake_plan, has_network_shapes, large, launches, plan, results
from tests.triton_cases_images import is_image, layouts
from tests.triton_cases_tokens import BLOCK
from tests.triton_chips import adds_a_constant_to_pairs, spills
from tests.triton_defaults import asks_no_more, defaults, for_chips, most, of_networks
from tests.triton_estimate import told
from tests.triton_every import DTYPES

assert not triton.knobs.runtime.interpret, "these checks compile, which TRITON_INTERPRET forbids"


def fits(made: Compiled, named: str = "") -> None:
    told = f"{named} {made.name} for sm_{made.chip}"
    assert not spills(made), f"{told} spills registers: {made.stack} bytes of stack"
    limit = CHIPS[made.chip].shared_bytes
    assert made.shared <= limit, f"{told}: {made.shared} bytes of shared memory of {limit}"
    assert not adds_a_constant_to_pairs(made.ptx), f"{told} adds one constant to several pairs of 16 bits"


def test_every_kernel_is_compiled_for_a_chip_and_those_on_tensor_cores_for_every_one() -> None:
    every, found = defaults("bfloat16").values(), list(for_chips())
    multiply = {one.launch.kernel for one in every if one.launch.tensor_cores}
    assert {(one.launch.kernel, chip) for one, chip in found} >= set(product(multiply, CHIPS))
    assert {chip for one, chip in found if one.launch.kernel not in multiply} == set(CHIPS)
    compiled_too = {one for one, _ in found}
    assert {one.launch.kernel for one in compiled_too} == {one.launch.kernel for one in every}
    for left in [one for one in every if one.launch.tensor_cores and one not in compiled_too]:
        same = [one for one in compiled_too if one.launch.kernel is left.launch.kernel]
        assert any(asks_no_more(left.launch, one.launch) for one in same), f"{left.name} {left.shapes}"


FOUND = [*for_chips()]
FITTING = sorted({(one.name, chip) for one, chip in FOUND})


@pytest.mark.parametrize("name, chip", FITTING)
def test_the_default_setting_fits_a_chip(name: str, chip: int, tell: Callable[[str], None]) -> None:
    for one in [one for one, only in FOUND if (one.name, only) == (name, chip)]:
        made = compiled(one.launch, chip)
        fits(made, one.shapes)
        if chip == 90 and has_network_shapes(name):
            tell(f"{name} {one.shapes}: {told(one.launch, made)}")


LEFT = [one for one in defaults("bfloat16").values() if one not in {found for found, _ in FOUND}]


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({one.name for one in LEFT}))
def test_the_default_setting_fits_on_other_shapes(name: str) -> None:
    for turn, one in enumerate(one for one in LEFT if one.name == name):
        fits(compiled(one.launch, list(CHIPS)[turn % len(CHIPS)]), one.shapes)


def in_float32(multiply: bool) -> dict[str, list[Launch]]:
    """By form what asks most of each kernel in float32: of those with tensor cores in bfloat16, or of no use there, or
    of all others.
    """
    found: dict[str, list[Launch]] = {}
    for kernel, one in most("float32").items():
        half = most("bfloat16").get(kernel)
        if multiply == (half is None or half.launch.tensor_cores):
            found.setdefault(one.name, []).append(one.launch)
    return found


@pytest.mark.parametrize("name", sorted(in_float32(True)))
def test_the_default_setting_of_products_fits_in_float32(name: str) -> None:
    """They are other products than in bfloat16. What else there is in float32 is of the same text on fewer numbers at
    once: `make kernels` compiles that.
    """
    for launch in in_float32(True)[name]:
        fits(compiled(launch, 90))


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(in_float32(False)))
def test_the_default_setting_of_all_else_fits_in_float32(name: str) -> None:
    for launch in in_float32(False)[name]:
        fits(compiled(launch, 90))


def ways(name: str) -> list[tuple[str, int, str, LaunchPlan]]:
    """Each way to ask for a kernel once, for chips and in dtypes in turn, whatever other kernels there are: all of all
    are compiled by `make kernels`.
    """
    every = {dtype: {way: made for way, made in asked(name, dtype) if way} for dtype in DTYPES}
    found = []
    for turn, way in enumerate(dict.fromkeys(way for made in every.values() for way in made), crc32(name.encode())):
        # What is written in float32 is not of float32.
        has = [dtype for dtype in DTYPES if way in every[dtype]]
        dtype = has[turn // len(CHIPS) % len(has)]
        found.append((way, list(CHIPS)[turn % len(CHIPS)], dtype, every[dtype][way]))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_way_to_ask_for_a_kernel_fits_some_chip(name: str) -> None:
    for way, chip, dtype, made in ways(name):
        for launch in launches(made):
            fits(compiled(launch, chip), f"{name} {way} {dtype}")


def innermost(name: str) -> list[tuple[Any, Case]]:
    """Results and operands of the first and the last case whose images, channels innermost, have vectors of them."""
    found = []
    for case in large(name, "bfloat16"):
        lay = layouts(case)["channels innermost"]
        outs = tuple(lay(array(one.shape, one.dtype)) for one in results(name, *case))
        args = tuple(map(lay, case[0]))
        if any(is_image(x, case) for x in args) and all(x.shape[1] % 8 == 0 for x in args if is_image(x, case)):
            found.append((outs, (args, case[1])))
    return [*found[:1], *found[1:][-1:]]


OF_IMAGES = [name for name in NAMES if hasattr(triton_cases_images, f"large_{name}")]


@pytest.mark.parametrize("name", [name for name in OF_IMAGES if innermost(name)])
def test_channels_that_are_innermost_are_read_and_written_in_vectors(name: str) -> None:
    for outs, case in innermost(name):
        made = plan(name, outs, case)
        assert made is not None
        touching = 0
        for launch in launches(made):
            there = [x for x in arrays_of([launch]) if is_image(x, case) and x.size > 2**20]
            if not there:
                continue
            touching += 1
            # What is made of many, as a mean of all places, is written number by number.
            words = "ld|st" if any(x is out for x in there for out in outs) else "ld"
            alone = re.findall(rf"(?:{words})\.global\S*\.b(?:8|16)\s", compiled(launch, 90).ptx)
            assert not alone, f"{name} {launch.kernel.__name__}: {len(alone)} numbers one by one"
        assert touching


@pytest.mark.parametrize("name", ["conv2d", "conv2d_grad_weight"])
def test_windows_over_pictures_are_read_in_vectors(name: str) -> None:
    pictures = [case for case in large(name, "bfloat16") if any(getattr(x, "shape", ())[1:2] == (3,) for x in case[0])]
    assert pictures
    for case in pictures:
        made = fake_plan(name, case)
        assert made is not None
        products = [launch for launch in launches(made) if launch.tensor_cores]
        assert products
        for launch in products:
            assert not re.findall(r"ld\.global\S*\.b(?:8|16)\s", compiled(launch, 90).ptx)


def odd(name: str) -> list[Launch]:
    """Defaults on odd shapes. A length of 1 is a constant to the compiler, though not to the interpreter."""
    found = []
    for case in cases(name, "float32"):
        made = fake_plan(name, cast(name, case, "float16"))
        assert made is not None, f"{name} falls back to its definition"
        found += launches(made)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_odd_shapes_compile(name: str) -> None:
    for launch in odd(name):
        fits(compiled(launch, 90))


WINDOWS = cases("max_pool2d_grad", "float32")


@pytest.mark.parametrize("case", [*WINDOWS[::8], *(pytest.param(one, marks=pytest.mark.slow) for one in WINDOWS)])
def test_numbers_in_windows_are_not_added_up_in_pairs(case: Case) -> None:
    """In windows of few elements they are of 8 bits, and LLVM makes pairs of them, where ptxas may get sums wrong."""
    (dy, x), params = cast("max_pool2d_grad", case, "bfloat16")
    dy, x, out = (one.transpose(0, 2, 3, 1).copy().transpose(0, 3, 1, 2) for one in (dy, x, x))
    made = plan("max_pool2d_grad", (out,), ((dy, x), params))
    for launch in launches(made) if x.size else ():
        assert not adds_a_constant_to_pairs(compiled(launch, 90).ptx), params


def of(name: str, *shapes: tuple[int, ...], dtype: str = "bfloat16", **params: float) -> list:
    made = fake_plan(name, (tuple(array(shape, dtype) for shape in shapes), params))
    assert made is not None
    return launches(made)


def few_tiles() -> Iterator[tuple[str, LaunchPlan]]:
    """Products of fewer tiles than any chip has processors."""
    x, w = array((64, 512, 7, 7), "bfloat16"), array((512, 512, 3, 3), "bfloat16")
    how = {"stride": (1, 1), "pads": (1, 1, 1, 1), "dilation": (1, 1), "groups": 1}
    matrices = tuple(array(shape, "bfloat16") for shape in ((1280, 2048), (1280, 2048)))
    for name, case in (
        ("contract", (("ik,jk->ij", *matrices), {})),
        ("conv2d", ((x, w), how)),
        ("conv2d_grad_input", ((x, w), how | {"shape": x.shape})),
    ):
        made = fake_plan(name, case)
        assert made is not None
        yield name, made


def test_products_of_few_tiles_have_more_on_their_way_where_a_chip_has_room() -> None:
    """Products of matrices for every chip, windows for chips in turn: `make kernels` compiles all settings for all."""
    for name, made in few_tiles():
        deep = [one for one in made.settings if getattr(one, "tile", one) in DEEP_TILES]
        assert len(deep) == len(DEEP_TILES) and made.settings[0] == deep[0], name
        for turn, setting in enumerate(deep):
            launch = max(made.launches(setting), key=lambda one: one.flops)
            chips = [chip for chip in CHIPS if chip >= launch.min_capability]
            for chip in chips if name == "contract" else [chips[turn % len(chips)]]:
                fits(compiled(launch, chip), f"{name} {setting}")
        assert all(launch.min_capability == 0 for launch in launches(made)), "any chip takes what comes first"


def adafactors(shapes: list[tuple[int, ...]]) -> list[Launch]:
    """The launches of a task that updates parameters of these shapes."""
    arrays = [(shape, shape, shape[: len(shape) - 1] or shape, shape[-1:], (), ()) for shape in shapes]
    settings = {"beta2_decay": -0.8, "eps1": 1e-7, "eps2": 1e-3, "clip": 1.0, "decay": 0.1}
    return of("adafactor", *(one for each in arrays for one in each), dtype="float32", **settings)


def test_adafactor_of_many_parameters_takes_few_launches() -> None:
    """A task's sixteen, as those of two layers: what they need in one pass is one launch to three."""
    shapes = [(768,), (768, 768), (768,), (3072, 768), (3072,), (768, 3072), (768,), (768, 768)] * 2
    apart, together = sum(len(adafactors([shape])) for shape in shapes), adafactors(shapes)
    assert 6 * len(together) < apart
    for launch in together:
        fits(compiled(launch, 90))


def test_what_is_alike_but_for_where_it_lies_is_one_text_with_the_vectors_of_one() -> None:
    """Behind branches a compiler forgets what it knew of addresses and lengths."""
    for one, three in zip(adafactors([(768, 3072)]), adafactors([(768, 3072)] * 3), strict=True):
        wide, long = (re.findall(r"(?:ld|st)\.global\S*\.v4\S*", compiled(x, 90).ptx) for x in (one, three))
        assert Counter(long) >= Counter(wide)


def test_casts_of_many_parameters_read_and_write_vectors() -> None:
    outs = tuple(array(shape, "bfloat16") for shape in BLOCK)
    made = plan("copy", outs, (tuple(array(shape, "float32") for shape in BLOCK), {}))
    assert made is not None
    for setting in made.settings:
        (launch,) = made.launches(setting)
        for chip in CHIPS:
            code = compiled(launch, chip)
            fits(code)
            assert not re.findall(r"(?:ld|st)\.global\S*\.b(?:8|16)\s", code.ptx)
            assert ".v4.b32" in code.ptx


@pytest.mark.parametrize("name", ["max_pool2d", "max_pool2d_grad", "avg_pool2d", "avg_pool2d_grad"])
def test_columns_side_by_side_are_pooled_in_vectors(name: str) -> None:
    """What windows share at the ends of a thread's columns is read number by number: two such a row at most."""
    # of a kernel that is asked for in several ways the last
    for launch in {one.launch.kernel: one.launch for one in of_networks(name, "bfloat16")}.values():
        assert launch.constants["NEAR"] > 1
        text = compiled(launch, 90).ptx
        wide, alone = (
            re.findall(rf"(?:ld|st)\.global\S*{word}\s", text) for word in (r"\.v\d\.b32|b32", r"\.b(?:8|16)")
        )
        assert len(alone) <= len(wide) and "st.shared" not in text


def test_a_row_that_fits_into_registers_is_read_once() -> None:
    for name, num, params in (("softmax", 1, {}), ("log_softmax", 1, {}), ("softmax_grad", 2, {})):
        (launch,) = of(name, *[(4096, 1024)] * num, **params)
        made = compiled(launch, 90)
        loads = [line for line in made.ptx.splitlines() if "ld.global" in line]
        assert all(".v4.b32" in line for line in loads)
        assert len(loads) * 16 * 32 * made.warps == num * 1024 * 2, f"{name} reads a row more than once"


def test_moments_are_added_in_float64() -> None:
    for chip in CHIPS:
        (launch,) = of("add", (2, 2048), (2, 2048), dtype="float64")
        made = compiled(launch, chip)
        fits(made)
        assert "add.f64" in made.ptx or "add.rn.f64" in made.ptx


def test_products_of_halves_run_on_tensor_cores() -> None:
    case = ("ik,jk->ij", *(array((4096, 4096), "bfloat16") for _ in range(2))), {}
    made = fake_plan("contract", case)
    assert made is not None
    (launch,) = launches(made)
    for chip, word in {80: "mma.sync", 90: "wgmma.mma_async", 100: "tcgen05.mma"}.items():
        assert word in compiled(launch, chip).ptx, f"sm_{chip} does without {word}"
    assert least_seconds(launch, H200) == pytest.approx(2 * 4096**3 / CHIPS[90].bf16_flops_per_second)


@pytest.mark.parametrize("spec, m_k, n_k", [("ik,jk->ij", False, False), ("ki,kj->ij", True, True)])
def test_blocks_of_products_are_copied_in_bulk(spec: str, m_k: bool, n_k: bool) -> None:
    x, y = (array((512, 1024) if turned else (1024, 512), "bfloat16") for turned in (m_k, n_k))
    made = fake_plan("contract", ((spec, x, y), {}))
    assert made is not None
    walks = [launch for way in made.settings if isinstance(way, TmaTile) for launch in made.launches(way)[:1]]
    assert any(launch.is_persistent for launch in walks) and {launch.min_capability for launch in walks} == {90}
    for launch in walks:
        for chip, word in {90: "wgmma.mma_async", 100: "tcgen05.mma"}.items():
            found = compiled(launch, chip)
            fits(found)
            assert word in found.ptx and "cp.async.bulk.tensor" in found.ptx
            assert "ld.global" not in found.ptx and "cp.async.cg" not in found.ptx


@pytest.mark.parametrize("capability", CHIPS)
@pytest.mark.parametrize("line", ["s, b -> s + b", "s, b, y -> s + b + y"])
def test_where_a_chip_has_a_copy_engine_long_sums_walk_first(capability: int, line: str) -> None:
    """Of tiles that the product has most of; what any chip takes is next, and is taken where memory begins anywhere."""
    for m, n, k in ((8192, 8192, 8192), (8192, 768, 3072), (8192, 3072, 768), (8192, 3072, 512)):
        shapes = ((m, k), (n, k), (n,), (m, n))[: 2 + line.count(",")]
        some = [array(shape, "bfloat16").view(AbsentArray) for shape in shapes]
        triton.runtime.driver.set_active(Chip(capability))
        made, on_host = (fake_plan("contract_pointwise", (("ik,jk->ij", line, *xs), {}))
                         for xs in (some, [array(shape, "bfloat16") for shape in shapes]))  # fmt: skip
        assert made is not None and on_host is not None
        walks = capability >= 90 and k > 512
        first, *rest = made.settings
        assert set(made.settings) == set(on_host.settings) and isinstance(first, TmaTile) == walks
        assert (rest if walks else [first])[0] == on_host.settings[0]
        for launch in made.launches(first) if walks else ():
            assert launch.constants["N"] == (256 if n == 8192 and line.count(",") == 1 else 128)
            fits(compiled(launch, capability), f"{first}")


def test_what_begins_between_16_bytes_is_fetched_as_on_any_chip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launching, "bound", lambda plan, setting: setting)
    triton.runtime.driver.set_active(Chip(90))
    for first, wanted in ((0, TmaTile), (1, Tile)):
        flat = np.zeros(16, "bfloat16")[first:]
        out, x, y = (as_strided(flat, shape, (2 * shape[1], 2)).view(AbsentArray) for shape in [(4096, 4096)] * 3)
        found = contract_pointwise(out, "ik,jk->ij", "s -> 2 * s", x, y, accumulate=False)
        assert isinstance(found, wanted), found


def test_places_beyond_32_bits_are_counted_in_64() -> None:
    far = (70000, 40000)
    for name, num in (("relu", 1), ("add", 2)):
        (launch,) = of(name, *[far] * num)
        assert launch.constants["WIDE"]
        fits(compiled(launch, 90))
        (near,) = of(name, *[(700, 400)] * num)
        assert not near.constants["WIDE"]
    for launch in of("sum_over", far, dims=(0,)):
        assert launch.constants["WIDE"]
    made = fake_plan("contract", (("ik,jk->ij", array(far, "bfloat16"), array((64, 40000), "bfloat16")), {}))
    assert made is not None
    assert all(launch.constants["WIDE"] for launch in launches(made))
