"""That a compiled loop kept on disk is not taken when a file changes from which its own has what it calls."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("numba")

CALLED = "from castile.kernels.numpy.jit import {form}\n@{form}\ndef number(x):\n    return x + {value}\n"
BETWEEN = "from folder.called import number\n"
CALLING = (
    "from castile.kernels.numpy.jit import compiled\nfrom folder{between} import number\n"
    "@compiled\ndef loop(x):\n    return number(x)\n"
)
SHOWN = "from folder.calling import loop; print(loop(1), sum(loop.stats.cache_hits.values()))"


@pytest.mark.parametrize(
    ("form", "between"), [("compiled", ".called"), ("inlined", ".called"), ("inlined", ".between")]
)
def test_a_loop_is_compiled_anew_when_what_it_calls_changes(tmp_path: Path, form: str, between: str) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "between.py").write_text(BETWEEN)
    (folder / "calling.py").write_text(CALLING.format(between=between))
    shown = []
    for value in (10, 10, 200):
        (folder / "called.py").write_text(CALLED.format(form=form, value=value))
        command = [sys.executable, "-c", SHOWN]
        ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True)
        shown.append(ended.stdout.split())
    assert shown == [["11", "0"], ["11", "1"], ["201", "0"]]
