"""Numbers that are not finite: masks that came so are kept, samples that hold them are named, rates are blamed last."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from castile.launch.__main__ import main
from castile.launch.checkpoints.folder import latest
from castile.launch.data import Arrays, Dataset
from castile.launch.training.feeding import Feeder
from castile.runtime.region import Box, whole
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


ROW = 17


def strange(value: float) -> np.ndarray:
    images = np.random.default_rng(0).normal(size=(40, 1, 8, 8)).astype(np.float32)
    images[ROW, 0, 3, 4] = value
    return images


def refused(capsys, *words: str) -> str:
    assert main(["train", "mlp:width=8", "--batch", "8", "--search", "data_parallel", *words]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and "castile: " in err, err
    return err


@pytest.mark.parametrize("held_out", [False, True])
def test_a_sample_that_is_no_number_is_named_at_the_start(held_out: bool, alone: Path, capsys) -> None:
    labels = np.arange(40) % 10
    np.savez("a.npz", image=strange(np.nan), label=labels)
    np.savez("b.npz", image=strange(0), label=labels)
    files = ("b", "a") if held_out else ("a", "b")
    err = refused(capsys, "--data", f"numpy:train={files[0]}.npz,held_out={files[1]}.npz", "--metrics", "a.jsonl")
    which = "held-out " if held_out else ""
    told = f"{which}sample {ROW}, counted from 0, has nan in 'image': mend such samples or leave them out"
    assert err == f"castile: data set numpy: {told}\n" and not Path("a.jsonl").exists()


def test_a_sample_of_a_split_file_is_named_by_its_row(alone: Path, capsys) -> None:
    np.savez("a.npz", image=strange(np.nan), label=np.arange(40) % 10)
    assert re.search(
        rf": (held-out )?sample {ROW}, counted from 0, has nan in", refused(capsys, "--data", "numpy:file=a.npz")
    )


def test_an_infinite_sample_is_named_by_the_step_that_it_ends(alone: Path, capsys) -> None:
    """Not before: what is not finite may be meant so, as masks are."""
    labels = np.arange(40) % 10
    np.savez("a.npz", image=strange(np.inf), label=labels)
    np.savez("b.npz", image=strange(0), label=labels)
    words = ("--data", "numpy:train=a.npz,held_out=b.npz", "--steps", "9", "--metrics", "a.jsonl")
    err = refused(capsys, *words)
    step = len(losses(alone / "a.jsonl"))
    told = f"sample {ROW}, counted from 0, has inf in 'image': mend such samples or leave them out"
    assert f"castile: step {step}: the loss is not a finite number: {told}" in err
    assert err.endswith("or where it is meant train again with a smaller --lr\n" if step > 1 else "out\n")


def test_a_sample_that_comes_from_python_is_named_by_the_step_that_it_ends(alone: Path, capsys) -> None:
    (alone / "mine.py").write_text(
        "import numpy as np\n"
        "def samples(seed, epoch):\n"
        "    for n in range(24):\n"
        "        value = np.nan if (epoch, n) == (1, 3) else 1.0\n"
        "        yield {'image': np.full((1, 8, 8), value), 'label': n % 10}\n"
    )
    err = refused(capsys, "--data", "iterator:file=mine.py", "--steps", "9")
    told = "sample 3 of epoch 1, counted from 0, has nan in 'image': mend such samples or leave them out\n"
    assert err.endswith(f"castile: step 4: the loss is not a finite number: {told}")


@pytest.mark.parametrize("shuffled", [False, True])
def test_what_was_fed_is_there_to_be_looked_at(shuffled: bool) -> None:
    samples = Arrays({"x": np.arange(60)})
    dataset = Dataset("mine", 0, samples, Arrays({}), shuffled)
    with Feeder(dataset, [("x", Box((2,), (5,)))], 6, 0, 10) as feeder:
        for step, _ in zip(range(4), feeder, strict=False):
            for before in range(max(step - 2, 0), step + 1):
                found = feeder.again(before, ["x"])
                numbers = dataset.indices(before, 6)[found.places["x"]]
                assert found.rows["x"].tolist() == numbers.tolist() and len(numbers) == (6 if shuffled else 3)
        assert bool(feeder.again(0, ["x"]).rows) == shuffled
