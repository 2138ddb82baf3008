"""Data that do not fit a model of one's own are told in one sentence, with the task that met them."""

import pytest

from castile.launch import models
from castile.launch.__main__ import main
from castile.launch.jobs import sample_checks

MODEL = """
def build(batch=None, dtype="float32", classes: int = 10, words: int = 17):
    from castile.planner.graph import Graph
    g = Graph("own", dtype)
    image = g.input("image", (batch or 64, 1, 8, 8), "b c h w")
    label = g.input("label", (batch or 64,), "b", "int32")
    x = g.reshape("flat", image, "b c h w -> b (c h w)")
    x = g.concat("both", 1, x, g.embedding("table", label, rows=words, features=3))
    logits = g.linear("head", x, features=classes)
    g.minimise(g.cross_entropy("loss", logits, label))
    return g
"""


@pytest.mark.parametrize(
    "settings, task", [("classes=9", "loss.F[0], rank 0: cross_entropy"), ("words=9", "table.F[0], rank 0: embedding")]
)
def test_an_integer_out_of_range_is_told_with_its_task(settings, task, alone, capsys, monkeypatch):
    # It may stand in a sample beyond those that are looked at before the run.
    monkeypatch.setattr(sample_checks, "MOST_BATCHES", 0)
    (alone / "own.py").write_text(MODEL)
    assert main(["train", f"own.py:{settings}", "--search", "data_parallel", "--steps", "3"]) == 2
    err = capsys.readouterr().err
    assert f"castile: step 1, task {task}: " in err and "mend the samples" in err and "Traceback" not in err, err


def test_numbers_of_numpy_are_those_of_a_recipe(tmp_path) -> None:
    """As a rate that is computed from a batch is."""
    recipe = "RECIPE = Recipe('digits', np.int64(64), np.sqrt(np.float32(0.25)))"
    lines = ["import numpy as np", "from castile.launch.models import Recipe", recipe, "def build(batch, dtype): pass"]
    (tmp_path / "net.py").write_text("\n".join(lines))
    found = models.parse(str(tmp_path / "net.py")).recipe
    assert found == models.Recipe("digits", 64, 0.5) and type(found.lr) is float and type(found.batch) is int


@pytest.mark.parametrize(
    ("share", "words"),
    [("1 / step", "share(0, 3) failed: ZeroDivisionError"), ("(1, 0.5)[step]", "share(2, 3) failed: IndexError")],
)
def test_a_schedule_that_fails_at_an_end_is_told_of_before_anything_is_measured(share, words, alone, capsys):
    (alone / "mine.py").write_text(f"def share(step, num_steps): return {share}")
    assert main(["train", "mlp", "--schedule", "mine.py", "--steps", "3", "--checkpoint", "run"]) == 2
    out, err = capsys.readouterr()
    assert words in err and "measuring" not in out + err and not list(alone.glob("run/step-*"))
