"""Numbers that are not finite: masks that came so are kept, samples that hold them are named, rates are blamed last."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from castile.launch.__main__ import main
from castile.launch.checkpoints.folder import latest
from castile.runtime.region import whole
from tests.runs import losses

MASKED = """
import numpy as np
from castile.planner.graph import Graph
from castile.planner.op import Init


def build(batch=None, dtype="float32"):
    g = Graph("masked", dtype)
    b = batch or 16
    image, label = g.input("image", (b, 1, 8, 8), "b c h w"), g.input("label", (b,), "b", "int32")
    logits = g.linear("head", g.reshape("flat", image, "b c h w -> b (c h w)"), features=12)
    mask = g.state("mask", (12,), ("o",), Init("given", values=np.array([0.0] * 10 + [-np.inf] * 2)))
    logits = g.add("masked", logits, mask)
    g.outputs = [logits.name]
    g.minimise(g.cross_entropy("loss", logits, label))
    return g
"""


def trained(*words: str) -> None:
    assert main(["train", "masked.py", "--data", "digits", "--search", "data_parallel", *words]) == 0


def test_a_mask_that_came_with_infinities_is_saved_and_gone_on_from(alone: Path, capsys) -> None:
    (alone / "masked.py").write_text(MASKED)
    trained("--steps", "6", "--checkpoint", "whole", "--metrics", "whole.jsonl")
    trained("--steps", "6", "--checkpoint", "parts", "--checkpoint-every", "3", "--keep", "9")
    for left in (alone / "parts").glob("step-*6"):
        for file in left.iterdir():
            file.unlink()
        left.rmdir()
    trained("--steps", "6", "--checkpoint", "parts", "--resume", "--metrics", "parts.jsonl")
    assert main(["checkpoint", "verify", "parts"]) == 0
    assert main(["checkpoint", "export", "parts", "--out", "w.safetensors"]) == 0
    first, later = losses(alone / "whole.jsonl"), losses(alone / "parts.jsonl")
    assert list(later) == [4, 5, 6] and later == {step: first[step] for step in later}
    found = latest("parts").open()
    mask = found.read("mask", whole(found.regions["mask"].shape))
    np.testing.assert_array_equal(mask, [0.0] * 10 + [-np.inf] * 2)
    assert main(["predict", "masked.py", "--checkpoint", "parts", "--data", "digits"]) == 0
