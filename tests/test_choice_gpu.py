"""On a GPU: what libraries compute, tuning by the real clock, and a profiling run."""

import json
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

pytest.importorskip("triton")

from castile.kernels import choice, tuning
from castile.kernels.form import Refused
from castile.kernels.table import Table, definitions, forms
from castile.launch.__main__ import main
from castile.planner.bodies import vocabulary
from tests import homes
from tests.kernel_cases import cases
from tests.test_kernels import several, unwritten
from tests.triton_cases import cast, error, large, plain, specs

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", sorted(forms("cupy")))
def test_a_librarys_form_equals_the_definition_on_a_gpu(name: str, dtype: str) -> None:
    import cupy

    def moved(x: Any) -> Any:
        return cupy.asarray(x) if isinstance(x, np.ndarray) else x

    num_taken = 0
    for case in cases(name, "float32"):
        low = cast(name, case, dtype)
        args, params = cast(name, low, "float64")
        wants, rounded = several(definitions()[name](*args, **params)), plain(name, low, dtype)
        outs = [moved(unwritten(one)) for one in rounded]
        words = {"scratch": None, "accumulate": False} if name == "contract" else {}
        call = forms("cupy")[name](outs[0] if len(outs) == 1 else outs, *map(moved, low[0]), **low[1], **words)
        num_taken += call is not None
        if call is not None:
            call()
            for out, want, near in zip(outs, wants, rounded, strict=True):
                least = 4e-6 * max(1.0, float(np.abs(want).max()))
                assert error(out.get(), want) <= 2 * error(near, want) + least
    assert num_taken


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", sorted(forms("cupy")))
def test_a_librarys_form_is_captured_on_a_gpu(name: str, dtype: str) -> None:
    """As one launch it gives the same bits as call by call."""
    import cupy

    num_taken = 0
    for args, params in large(name, dtype):
        specs_of = vocabulary.results(name, specs(args), params)
        # On the stream itself: what is copied on another may come later than what is computed here.
        with cupy.cuda.Stream(non_blocking=True) as stream:
            xs = [cupy.asarray(np.random.default_rng(0).normal(size=x.shape).astype(x.dtype))
                  if isinstance(x, np.ndarray) else x for x in args]  # fmt: skip
            outs = [cupy.asarray(np.zeros(spec.shape, spec.dtype)) for spec in specs_of]
            words = {"scratch": None, "accumulate": False} if name == "contract" else {}
            call = forms("cupy")[name](outs[0] if len(outs) == 1 else outs, *xs, **params, **words)
            if call is None:
                continue
            num_taken += 1
            call()
            firsts = [out.get() for out in outs]
            for out in outs:
                out.data.memset_async(0xFF, out.nbytes, stream)
            stream.begin_capture()
            call()
            graph = stream.end_capture()
            graph.launch(stream)
            for out, first in zip(outs, firsts, strict=True):
                assert np.array_equal(out.get(), first) and np.isfinite(first.astype("float32")).all()
    assert num_taken


@pytest.mark.parametrize("name", ["contract", "softmax", "copy"])
def test_tuning_on_a_gpu_times_every_way(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "_chosen", {})
    table, case = Table("triton"), next(large(name, "bfloat16"))
    args, params = case
    outs = [tuning.dense(one.shape, one.dtype) for one in vocabulary.results(name, specs(args), params)]
    which = tuning.call_key(table, name, outs, args, params, False)
    found = tuning.tune(table, which, tuning.gpu())
    assert 1 < len(found) <= len(tuning.choices(table, which))
    nbytes = sum(one.nbytes for one in choice.arrays_of(choice.call_of(which)))
    # No memory moves ten terabytes a second.
    assert all(nbytes / 1e13 < seconds < 0.1 for seconds in found.values()), found


def test_processes_compile_what_a_gpu_runs(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import cupy
    from triton import knobs

    from castile.kernels.triton import precompile

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(precompile, "LEAST_CALLS", 1)
    monkeypatch.setattr(precompile, "_seen", set())
    table, calls, built = Table("triton"), [], list[bool]()
    for name in ("softmax", "contract", "layer_norm"):
        args, params = next(large(name, "bfloat16"))
        there = tuple(cupy.zeros(x.shape, x.dtype) if isinstance(x, np.ndarray) else x for x in args)
        outs = tuple(cupy.zeros(x.shape, np.dtype(x.dtype)) for x in vocabulary.results(name, specs(args), params))
        which = choice.key(choice.kernel_call(name, outs, there, params, False))
        calls += [
            (name, there, outs, params, which, way) for way in tuning.choices(table, which) if way.form == "triton"
        ]
    tuning.precompile([(which, way) for *_, which, way in calls], lambda done, total: None)
    with knobs.compilation.scope():
        knobs.compilation.listener = lambda cache_hit, **_: built.append(not cache_hit)
        for name, there, outs, params, _, way in calls:
            with suppress(Refused):
                table.bind(name, there, outs, params, None, False, way)
    assert not any(built)


def test_a_profile_on_a_gpu(tmp_path: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in homes.make(tmp_path).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(choice, "_chosen", {})
    assert (
        main(["profile", "mlp:layers=1,width=256", "--batch", "4096", "--profile", f"{tmp_path}/a.db", "--json"]) == 0
    )
    facts = json.loads(capsys.readouterr().out)
    assert facts["processor"]["kind"] == "gpu" and facts["num_tuned_calls"] > 0
    assert all(key["seconds"] > 0 for key in facts["keys"])
