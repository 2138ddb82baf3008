"""Tokens in one long array: every one but the last is in a window, beside the one after it, however files hold them."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from castile.launch import data, models
from castile.launch.data.tokens import STORED
from tests.data_files import everything

FEW = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def written(path: Path, tokens: np.ndarray) -> Path:
    """The tokens in a file of such a name."""
    if path.suffix == ".npy":
        np.save(path, tokens)
    else:
        tokens.tofile(path)
    return path


@FEW
@given(st.integers(1, 9), st.integers(0, 60), st.sampled_from(STORED), st.sampled_from(["x.bin", "x.npy", "x.dat"]))
def test_windows_lie_side_by_side(tmp_path: Path, seq: int, more: int, stored: str, name: str) -> None:
    tokens = np.random.default_rng(more).integers(0, 250, 2 * seq + 1 + more).astype(stored)
    path = written(tmp_path / name, tokens)
    found = data.load(f"tokens:file={path},seq={seq}" + f",stored={stored}" * (path.suffix != ".npy"), 0)
    taken, held = everything(found.train), everything(found.held_out)
    both = {key: np.concatenate([taken[key], held[key]]).ravel() for key in ("tokens", "targets")}
    count = (len(tokens) - 1) // seq * seq
    assert np.array_equal(both["tokens"], tokens[:count]) and np.array_equal(both["targets"], tokens[1 : count + 1])
    assert all(array.dtype == np.int32 for array in taken.values())


def test_two_files_are_taken_as_they_are_and_are_mapped(tmp_path: Path) -> None:
    """As nanoGPT writes them, or one alone of which to predict; windows are as long as a model takes them."""
    train, val = (
        written(tmp_path / f"{name}.bin", np.arange(n, dtype=np.uint16)) for name, n in (("t", 99), ("v", 20))
    )
    takes = {"tokens": data.InputSpec((6,), True), "targets": data.InputSpec((6,), True)}
    found = data.load(f"tokens:train={train},held_out={val}", 0, takes)
    assert len(found.train) == 16 and len(found.held_out) == 3
    column = found.train.columns["tokens"]
    assert not column.flags.owndata and not column.flags.writeable and column.dtype == np.uint16
    assert np.array_equal(everything(found.held_out)["targets"][0], np.arange(1, 7))
    alone = data.load(f"tokens:held_out={val},seq=6", 0)
    assert alone.num_samples == 0 and np.array_equal(everything(alone.held_out)["tokens"][2], np.arange(12, 18))
    assert models.parse("gpt:layers=1,width=8,heads=2,seq=6").graph(2).tensors["tokens"].shape == (2, 6)


@pytest.mark.parametrize(
    ("name", "tokens", "given", "words"),
    [
        ("x.bin", np.zeros(9, np.uint16), "", "give file=PATH, or both train=PATH and held_out=PATH"),
        ("x.bin", np.zeros(9, np.uint16), "train={}", "give file=PATH, or both train=PATH and held_out=PATH"),
        ("x.bin", np.zeros(9, np.uint16), "file=none.bin", "none.bin: No such file"),
        (
            "x.bin",
            np.zeros(0, np.uint16),
            "file={}",
            "x.bin has 0 tokens, too few for two windows of 4 and the token after",
        ),
        ("x.bin", np.zeros(8, np.uint16), "file={}", "x.bin has 8 tokens, too few for two windows of 4"),
        ("x.bin", np.zeros(4, np.uint16), "held_out={}", "x.bin has 4 tokens, too few for a window of 4"),
        ("x.bin", np.zeros(9, np.uint8), "file={}", "x.bin is damaged or not a file of uint16"),
        ("x.bin", np.zeros(9, np.uint16), "file={},stored=float32", "stored 'float32' one of uint8, uint16"),
        ("x.bin", np.zeros(9, np.uint16), "file={},share=2", "share 2.0 between 0 and 1"),
        ("x.npy", np.zeros((3, 3), np.int64), "file={}", "shape (3, 3) of int64; tokens are whole numbers in one row"),
        ("x.npy", np.zeros(9), "file={}", "shape (9,) of float64; tokens are whole numbers in one row"),
    ],
)
def test_what_holds_no_tokens_is_refused(tmp_path: Path, name: str, tokens: np.ndarray, given: str, words: str) -> None:
    path = written(tmp_path / name, tokens)
    with pytest.raises(ValueError, match=r"^data set tokens: ") as error:
        data.load(f"tokens:{given.format(path)},seq=4" if given else "tokens", 0)
    assert words in str(error.value) and "\n" not in str(error.value)


def test_a_damaged_npy_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.npy").write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"x\.npy is damaged or not an npy file of numbers"):
        data.load(f"tokens:file={tmp_path / 'x.npy'}", 0)
