"""What the Triton forms promise without a GPU, and their launches against a driver that runs nothing."""

import inspect
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("triton")

from triton.runtime.errors import OutOfResources

from castile.kernels import choice
from castile.kernels.choice import Choice, setting_text
from castile.kernels.form import Refused
from castile.kernels.table import Table, definitions, forms
from castile.kernels.triton import driver, launch
from castile.kernels.triton.views import (
    View,
    broadcast,
    in_memory_order,
    loop_nest,
    permuted,
    power_of_two,
    split_dims,
    view,
)
from castile.planner.bodies import vocabulary
from tests.effort import examples
from tests.kernel_cases import cases
from tests.triton_cases import NAMES, fake_plan, results, specs

HERE = Path(__file__).parent


def test_every_definition_has_a_form() -> None:
    assert set(NAMES) == set(definitions())


@pytest.mark.parametrize("name", NAMES)
def test_form_takes_the_definitions_parameters(name: str) -> None:
    def keywords(f: object) -> set[str]:
        return {p.name for p in inspect.signature(f).parameters.values() if p.kind is p.KEYWORD_ONLY}  # type: ignore

    form = forms("triton")[name]
    assert keywords(form) - {"scratch", "accumulate"} == keywords(definitions()[name])
    args, params = cases(name, "float32")[0]
    outs = results(name, args, params)
    held = vocabulary.workspace(name, specs(args), outs, params, True)
    # What the vocabulary has no room for when adding, the form must do itself.
    assert "accumulate" in keywords(form) or held >= sum(vocabulary.round_up(out.nbytes) for out in outs)


@pytest.mark.parametrize(
    "error", [subprocess.CalledProcessError(1, ["gcc"]), RuntimeError("Failed to find C compiler.")]
)
def test_without_a_c_compiler_it_is_said_what_is_missing(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        raise error

    monkeypatch.setattr(driver, "CudaUtils", fails)
    with pytest.raises(ValueError, match="a C compiler and Python's headers"):
        driver._utils()


@pytest.mark.parametrize("name", NAMES)
def test_settings_are_distinct_and_all_launch_the_same_work(name: str) -> None:
    for case in cases(name, "float32"):
        made = fake_plan(name, case)
        assert made is not None
        assert len(set(made.settings)) == len(made.settings) > 0
        for setting in made.settings:
            for one in made.launches(setting):
                last = one.kernel.arg_names[len(one.args) :]
                assert set(one.constants) == set(last), f"{name}: constants must come last"
                assert all(n >= 1 for n in one.grid)


def test_a_setting_that_was_chosen_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []
    monkeypatch.setattr(choice, "_chosen", {})
    monkeypatch.setattr(launch, "bound", lambda plan, setting: taken.append(setting))
    x, y = np.ones((4, 4096), "float32"), np.ones((4, 4097), "float32")
    made = fake_plan("softmax", ((x,), {}))
    assert made is not None and len(made.settings) > 1
    last = Choice("triton", setting_text(made.settings[-1]))
    choice.remember(choice.key(choice.kernel_call("softmax", (x,), (x,), {}, False)), last)
    for one in (x, x.copy(), y):
        Table("triton").bind("softmax", (one,), (one,), {})
    assert taken[:2] == [made.settings[-1]] * 2 and taken[2] != taken[0]
    Table("triton").bind("softmax", (x,), (x,), {}, chosen=Choice("triton", "[1]"))
    assert taken[3] == made.settings[0], "what a form does not offer is passed over"


@pytest.mark.parametrize("name", NAMES)
def test_settings_are_told_apart_as_text(name: str) -> None:
    for case in cases(name, "float32"):
        made = fake_plan(name, case)
        assert made is not None
        texts = list(map(setting_text, made.settings))
        assert len(set(texts)) == len(texts), "and so the database can hold them"


def test_without_a_gpu_or_the_interpreter_binding_says_so() -> None:
    x = np.ones((4, 64), "float32")
    with pytest.raises(ValueError, match="TRITON_INTERPRET=1"):
        Table("triton").bind("relu", (x,), (np.empty_like(x),), {})


@settings(max_examples=examples(100))
@given(data=st.data())
def test_views_walk_what_numpy_walks(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4)))
    whole = np.arange(np.prod([2 * n for n in shape])).reshape([2 * n for n in shape])
    x = whole[tuple(slice(0, 2 * n, data.draw(st.sampled_from([1, 2]))) for n in shape)]
    x = x[tuple(slice(0, n) for n in shape)].transpose(data.draw(st.permutations(range(len(shape)))))
    y = np.broadcast_to(x, (3, *x.shape))
    for one, want in ((view(x), x), (broadcast(view(x), (3, *x.shape)), y)):
        assert np.array_equal(walked(one, whole), want.reshape(-1))
        walk = loop_nest([one])
        assert np.array_equal(walked(View(x, walk.sizes, walk.steps[0]), whole), want.reshape(-1))
    assert sorted(walked(in_memory_order([view(x)])[0], whole)) == sorted(x.reshape(-1))
    dims = tuple(data.draw(st.permutations(range(x.ndim))))
    assert np.array_equal(walked(permuted(view(x), dims), whole), x.transpose(dims).reshape(-1))


@given(data=st.data())
def test_split_views_walk_the_same(data: st.DataObject) -> None:
    apart = data.draw(st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=3), min_size=1, max_size=3))
    shape = tuple(int(np.prod(one)) for one in apart)
    whole = np.arange(np.prod(shape) * 2 ** len(shape)).reshape([2 * n for n in shape])
    x = whole[tuple(slice(0, n) for n in shape)]
    pieces = tuple(size for one in apart for size in one)
    assert np.array_equal(walked(split_dims(view(x), pieces), whole), x.reshape(-1))


def walked(one: View, whole: np.ndarray) -> np.ndarray:
    """The elements of `whole`, from its first on, that a view walks, in order."""
    places = sum(np.arange(size).reshape(-1, *[1] * (len(one.shape) - dim - 1)) * step
                 for dim, (size, step) in enumerate(zip(one.shape, one.steps, strict=True)))  # fmt: skip
    return whole.reshape(-1)[np.asarray(places).reshape(-1)]


@given(st.integers(1, 10**6))
def test_power_of_two(least: int) -> None:
    found = power_of_two(least)
    assert found >= least > found // 2 and found & (found - 1) == 0


def test_launches_reach_the_driver_as_planned(tmp_path: Path) -> None:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("Triton builds its launcher with a C compiler, and there is none")
    words = [compiler, "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", str(tmp_path / "libcuda.so.1")]
    subprocess.run([*words, str(HERE / "triton_stub.c")], check=True)
    unset = ("TRITON_INTERPRET", "PYTEST_XDIST_WORKER")
    env = {name: value for name, value in os.environ.items() if name not in unset}
    env |= {"LD_LIBRARY_PATH": str(tmp_path), "TRITON_LIBCUDA_PATH": str(tmp_path), "TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(HERE / "triton_launching.py")]
    ended = subprocess.run(command, cwd=HERE.parent, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_a_setting_for_which_the_device_has_too_little_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def short(launches: object) -> None:
        raise OutOfResources(2**20, 2**18, "shared memory")

    monkeypatch.setattr(launch, "_bound", short)
    x = np.ones((4, 4096), "float32")
    with pytest.raises(Refused, match="shared memory"):
        Table("triton").bind("softmax", (x,), (x,), {})
