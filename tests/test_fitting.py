"""Samples that are nearly what a model takes: they are taken as they are meant, or refused with what to do."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from castile.launch import data
from castile.launch.__main__ import main
from castile.launch.data import Arrays, InputSpec
from castile.launch.jobs.input_matching import renamed
from tests.data_files import everything
from tests.effort import rare
from tests.runs import losses, told

RNG = np.random.default_rng(0)
IMAGES, LABELS = RNG.normal(size=(40, 1, 8, 8)).astype(np.float32), RNG.integers(0, 10, 40)
NUMPY = ("--data", "numpy:file=mine.npz", "--batch", "8", "--steps", "3")
KINDS = [
    ("image", np.float16), ("image", np.uint8), ("label", np.uint64), ("label", np.bool_), ("label", np.float64),
    *rare(
        ("image", np.float64), ("image", np.int64), ("image", np.bool_),
        ("label", np.int32), ("label", np.uint8), ("label", np.float16),
    ),
]  # fmt: skip


def stored(path: str = "mine.npz", **changed: np.ndarray) -> None:
    np.savez(path, **{"image": IMAGES, "label": LABELS, **changed})


@pytest.mark.parametrize(("name", "dtype"), KINDS)
def test_numbers_of_any_kind_are_taken(name: str, dtype: type, alone: Path, capsys) -> None:
    """However they are stored, training and evaluation see the same numbers as from others that are as large."""
    changed = (IMAGES > 0 if name == "image" else LABELS % 2).astype(dtype)
    runs = []
    for array in (changed, changed.astype(np.float32 if name == "image" else np.int32)):
        stored(**{name: array})
        facts = told(capsys, *NUMPY)
        runs.append((facts["losses"], facts["held_out_loss"], facts["held_out_accuracy"]))
    assert runs[0] == runs[1]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"label": LABELS + 0.5}, r"data: input 'label' has \d\.5 where the model takes whole numbers: number classes"),
        ({"label": LABELS * np.float32(np.nan)}, r"input 'label' has nan where the model takes whole numbers"),
        ({"label": LABELS + np.inf}, r"input 'label' has inf where the model takes whole numbers"),
        ({"label": LABELS + 1e12}, r"'label' has the whole number 10+\d; int32 goes from"),
        ({"label": np.where(np.arange(40) == 3, -100.0, LABELS)}, r"have -100 in 'label', .*: no number is ignored"),
        ({"label": np.where(np.arange(40) == 3, -100, LABELS)}, r"leave such samples out, or number such places"),
        ({"label": LABELS + 9}, r"have \d+ in 'label', where loss takes 0 to 9: number them so, or let the model"),
        ({"label": LABELS.astype(str)}, r"array 'label' holds <U\d+; inputs are numbers"),
        ({"label": LABELS.astype(object)}, r"mine.npz is damaged or not an npz file of numbers"),
        ({"label": LABELS.astype("datetime64[s]")}, r"array 'label' holds datetime64"),
        ({"image": IMAGES.astype(complex)}, r"array 'image' holds complex128; inputs are numbers"),
        ({"label": LABELS[:30]}, r"arrays hold different numbers of samples: image 40, label 30"),
        ({"label": LABELS[:, None]}, r"takes 'label' of shape \(\), .* 'label' of shape \(1,\): let names and shapes"),
        ({"image": IMAGES[:5], "label": LABELS[:5]}, r"numpy has 4 samples, too few for a batch of 8"),
    ],
)
def test_what_cannot_be_meant_is_refused_at_the_start(changed, words: str, alone: Path, capsys) -> None:
    stored(**changed)
    assert main(["train", "mlp:width=8", *NUMPY, "--metrics", "a.jsonl"]) == 2
    err = capsys.readouterr().err
    assert re.fullmatch(rf"castile: .*{words}.*\n", err), err
    assert not Path("a.jsonl").exists()


def test_arrays_that_the_model_does_not_take_may_hold_anything(alone: Path, capsys) -> None:
    stored(user=LABELS + 10**12, weight=LABELS * np.nan, names=np.array(["zero", "one"]), maker=np.array({}, object))
    assert told(capsys, *NUMPY)["num_steps"] == 3


def test_one_sample_may_be_held_out(alone: Path, capsys) -> None:
    stored()
    stored("one.npz", image=IMAGES[:1], label=LABELS[:1].astype(float))
    facts = told(capsys, *NUMPY[2:], "--data", "numpy:train=mine.npz,held_out=one.npz")
    assert facts["num_held_out"] == 1 and facts["held_out_accuracy"] in (0, 1)


def test_what_comes_from_python_is_taken_as_whole_numbers_or_refused_by_its_step(alone: Path, capsys) -> None:
    text = "import numpy as np\ndef samples(seed, epoch):\n    for n in range(40):\n        yield "
    (alone / "mine.py").write_text(text + "{'image': np.ones((1, 8, 8)) * n / 40, 'label': n % 10 + n // 20 / LEFT}\n")
    whole = "def held_out(seed):\n    return list(samples(seed, 0))[:3]\nLEFT = 1.0\n"
    (alone / "whole.py").write_text((alone / "mine.py").read_text().replace("n // 20 / LEFT", "0.0") + whole)
    facts = told(capsys, "--data", "iterator:file=whole.py", "--batch", "8", "--steps", "5")
    assert facts["num_steps"] == 5 and facts["num_held_out"] == 3
    (alone / "half.py").write_text((alone / "mine.py").read_text() + "LEFT = 2.0\n")
    words = ["train", "mlp:width=8", "--data", "iterator:file=half.py", "--batch", "8", "--search", "data_parallel"]
    assert main([*words, "--steps", "5", "--metrics", "a.jsonl"]) == 2
    err = capsys.readouterr().err
    assert "castile: samples of step 3: data: input 'label' has 0.5 where the model takes whole numbers" in err
    assert list(losses(alone / "a.jsonl")) == [1, 2]


def test_whole_numbers_are_amounts_where_the_model_takes_any(alone: Path, capsys) -> None:
    """And no classes of which the output tells as many apart as it has numbers."""
    (alone / "sums.py").write_text(
        "from castile.planner.graph import Graph\n"
        "def build(batch=None, dtype='float32'):\n"
        "    g = Graph('sums', dtype)\n"
        "    x, y = g.input('image', (batch, 1, 8, 8), 'b c h w'), g.input('label', (batch,), 'b')\n"
        "    made = g.linear('fc', g.reshape('flat', x, 'b c h w -> b (c h w)'), features=1)\n"
        "    g.outputs = [made.name]\n"
        "    g.minimise(g.mse('loss', g.reshape('said', made, 'b o -> (b o)'), y))\n"
        "    return g\n"
    )
    judged = []
    for labels in (LABELS, LABELS.astype(np.float32), LABELS > 4):
        stored(label=labels)
        assert main(["train", "sums.py", *NUMPY, "--search", "data_parallel", "--lr", "0.001"]) == 0
        judged.append(re.search(r"held out: .*", capsys.readouterr().out)[0])
    assert judged[0] == judged[1] != judged[2]


@given(st.lists(st.integers(-(2**24), 2**24), max_size=5), st.sampled_from("fdg"))
def test_whole_numbers_that_are_stored_as_others_are_the_same_numbers(numbers: list[int], dtype: str) -> None:
    found = data.as_input("x", np.array(numbers, dtype), True)
    assert found.dtype == np.int32 and found.tolist() == numbers


def test_samples_are_taken_as_a_model_takes_them(tmp_path: Path) -> None:
    """All of them, and in the order in which they were."""
    np.savez(tmp_path / "mine.npz", id=np.arange(30.0), x=np.arange(30.0))
    taken = {"id": InputSpec((), True), "x": InputSpec(())}
    d = data.load(f"numpy:file={tmp_path / 'mine.npz'}", 3, taken)
    every = everything(d.in_order("all"))
    assert every["id"].dtype == np.int32 and every["id"].tolist() == every["x"].tolist() == list(range(30))
    assert every["x"].dtype == np.float64 and isinstance(d.train, Arrays)


@pytest.mark.parametrize(
    ("taken", "there", "found"),
    [
        ({"a": (3,), "b": ()}, {"b": (), "c": (3,)}, {"a": "c"}),
        ({"a": (3,), "b": ()}, {"a": (3,), "b": ()}, {}),
        ({"a": (3,), "b": ()}, {"a": (4,), "b": (), "c": (3,)}, None),
        ({"ids": (3,), "mask": (3,)}, {"x": (3,), "y": (3,)}, None),
        (
            {"tokens": (3,), "label": (3,)},
            {"input_ids": (3,), "labels": (3,)},
            {"label": "labels", "tokens": "input_ids"},
        ),
        ({"a": (3,), "b": (3,)}, {"c": (3,)}, None),
        ({"a": (3,)}, {"b": (3,), "c": (3,)}, None),
    ],
)
def test_names_are_paired_where_they_can_only_be_meant_so(taken, there, found) -> None:
    assert renamed(taken, there) == found


def test_other_names_for_arrays_are_told(alone: Path, capsys) -> None:
    np.savez("mine.npz", picture=IMAGES, labels=LABELS)
    assert main(["train", "mlp:width=8", *NUMPY]) == 2
    assert capsys.readouterr().err.endswith(
        ": call 'picture' of the data 'image' and call 'labels' of the data 'label'\n"
    )


LANGUAGE = """<ir_version: 8, opset_import: ["" : 17]>
lm (int64[N, 6] tokens) => (float[N, 6, 10] said) {
    x = Gather (table, tokens)
    said = MatMul (x, head)
}"""


@pytest.mark.parametrize(
    ("model", "names", "words"),
    [
        ("lm.onnx", ("tokens", "label"), "say lm.onnx:loss=cross_entropy"),
        ("lm.onnx:loss=mse", ("tokens", "label"), "say lm.onnx:loss=cross_entropy"),
        (
            "lm.onnx",
            ("ids", "labels"),
            "say lm.onnx:loss=cross_entropy,inputs=ids and call 'labels' of the data 'label'",
        ),
        ("lm.onnx:loss=cross_entropy", ("ids", "label"), "say lm.onnx:loss=cross_entropy,inputs=ids"),
        ("lm.onnx:inputs=text", ("ids", "label"), "say lm.onnx:inputs=ids,loss=cross_entropy"),
        ("lm.onnx", ("x", "y"), "let names and shapes agree (lm.onnx:inputs=A+B gives tokens other names), or choose"),
    ],
)
def test_settings_by_which_a_file_takes_the_data_are_told(model: str, names, words: str, alone: Path, capsys) -> None:
    pytest.importorskip("onnx")
    from tests.onnx_networks import network, write

    write(network(LANGUAGE, table=(10, 4), head=(4, 10)), alone / "lm.onnx")
    np.savez("mine.npz", **dict.fromkeys(names, RNG.integers(0, 10, (40, 6))))
    assert main(["train", model, *NUMPY]) == 2
    err = capsys.readouterr().err
    assert f": {words}" in err and (err.endswith(f"{words}\n") or "choose" in words), err
    if words.startswith("say") and "call" not in words:
        assert main(["train", words.removeprefix("say "), *NUMPY, "--search", "data_parallel"]) == 0
