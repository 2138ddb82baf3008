"""Data that do not fit a model of one's own are told in one sentence, with the task that met them."""

import pytest

from castile.launch.__main__ import main
from castile.launch.jobs import numbers

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
    monkeypatch.setattr(numbers, "MOST_BATCHES", 0)
    (alone / "own.py").write_text(MODEL)
    assert main(["train", f"own.py:{settings}", "--search", "data_parallel", "--steps", "3"]) == 2
    err = capsys.readouterr().err
    assert f"castile: step 1, task {task}: " in err and "mend the samples" in err and "Traceback" not in err, err
