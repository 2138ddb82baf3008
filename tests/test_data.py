"""Data sets: real, split by a seed, and the same samples in every world; damaged files are refused in words."""

import importlib
import inspect
import shutil
import sysconfig
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from castile.launch import data
from castile.launch.data import Arrays, Dataset, digits
from tests.data_files import everything, small

# Inputs that no data set's settings show.
TAKES = {
    "x": data.InputSpec((2, 3)), "ids": data.InputSpec((4,), True, np.array([1, 3, 9, 70])),
    "mask": data.InputSpec((2,), True),
}  # fmt: skip

every_set = pytest.mark.parametrize("name", data.available())


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, Dataset]]:
    """Every data set, with the words that name it."""
    texts = {name: small(name, tmp_path_factory.mktemp(name)) for name in data.available()}
    return {name: (text, data.load(text, 0, TAKES)) for name, text in texts.items()}


@every_set
def test_training_and_held_out_samples_are_alike(loaded, name):
    d = loaded[name][1]
    assert d.num_samples > d.num_held_out > 0
    train, held_out = everything(d.train), everything(d.held_out)
    assert train.keys() == held_out.keys() == d.shapes.keys()
    for key, array in train.items():
        held = held_out[key]
        assert len(array) == d.num_samples and len(held) == d.num_held_out
        assert array.shape[1:] == held.shape[1:] == d.shapes[key] and array.dtype == held.dtype
        assert array.dtype in (np.int32, np.float32)


@every_set
@pytest.mark.parametrize("share", [0.1, 0.3])
def test_as_many_are_held_out_as_are_asked_for(name, share, tmp_path):
    """Where a data set draws them: to within one sample, or one window of text."""
    load = importlib.import_module(f"castile.launch.data.{name}").load
    if not isinstance(inspect.signature(load).parameters.get("held_out", inspect.Parameter).default, float):
        return
    text = small(name, tmp_path)
    d = data.load(f"{text}{',' if ':' in text else ':'}held_out={share}", 0)
    assert abs(d.num_held_out - share * (d.num_samples + d.num_held_out)) <= 1


@every_set
def test_loading_again_gives_the_same(loaded, name):
    text, d = loaded[name]
    again = data.load(text, 0, TAKES)
    held = [data.full_batch(found.held_out, 2, 9, found.shapes) for found in (d, again)]
    for one, other in ((d.batch(3, 9), again.batch(3, 9)), held):
        for key, array in one.items():
            np.testing.assert_array_equal(array, other[key])


@every_set
def test_samples_in_order_are_those_of_each_kind_as_the_data_have_them(loaded, name):
    """Of all, those that lie in the same arrays as they lie there, and others behind those that are trained on."""
    d = loaded[name][1]
    for which, parts in (("train", [d.train]), ("held_out", [d.held_out]), ("all", [d.train, d.held_out])):
        found, each = d.in_order(which), [data.rows_of(part) for part in parts]
        order = [np.argsort(rows) for rows in each]
        taken = [{key: rows[n] for key, rows in everything(part).items()} for part, n in zip(parts, order, strict=True)]
        together = len({*each[0], *each[-1]}) == sum(map(len, each)) and len(parts) > 1
        behind = np.argsort(np.concatenate([np.sort(rows) for rows in each])) if together else slice(None)
        for key, rows in everything(found).items():
            np.testing.assert_array_equal(rows, np.concatenate([one[key] for one in taken])[behind])


@every_set
@pytest.mark.parametrize("size", [1, 7, 32])
def test_an_epoch_takes_every_sample_once(loaded, name, size):
    d = loaded[name][1]
    n = d.num_samples
    taken = np.concatenate([d.indices(step, size) for step in range(2 * n // size + 1)])
    for epoch in (0, 1):
        assert sorted((taken[epoch * n : (epoch + 1) * n] % n).tolist()) == list(range(n))
    if d.shuffled:
        assert taken[:n].tolist() != taken[n : 2 * n].tolist()


@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 500), st.integers(0, 2**64 - 1))
def test_the_order_goes_on_at_any_position_and_batch_size(size, other, position, seed):
    d = Dataset("x", seed, Arrays({"x": np.arange(41)}), Arrays({}))
    stream = np.concatenate([d.indices(step, size) for step in range((position + other) // size + 1)])
    step = position // other
    np.testing.assert_array_equal(d.indices(step, other), stream[step * other : (step + 1) * other])


@settings(max_examples=30)
@given(st.integers(0, 200), st.integers(1, 64), st.data())
def test_pieces_of_a_batch_are_slices_of_it(step, size, draws):
    d = data.load("digits", 0)
    cut = draws.draw(st.integers(0, size))
    whole = d.batch(step, size)
    pieces = [d.batch(step, size, (0, cut)), d.batch(step, size, (cut, size))]
    for key, array in whole.items():
        np.testing.assert_array_equal(array, np.concatenate([piece[key] for piece in pieces]))


@given(st.integers(2, 30), st.integers(1, 30), st.integers(1, 5))
def test_so_many_epochs_are_as_many_passes_over_the_samples(count, size, epochs):
    samples = Arrays({"x": np.arange(count)})
    d, size = Dataset("mine", 0, samples, samples), min(size, count)
    steps = d.num_steps(size, epochs)
    assert 0 <= epochs * count - steps * size < size
    seen = np.concatenate([d.batch(step, size)["x"] for step in range(steps)])
    assert set(np.bincount(seen, minlength=count)) <= {epochs, epochs - 1}


def test_only_rows_that_are_taken_are_converted():
    seen = []

    def convert(rows: np.ndarray) -> np.ndarray:
        seen.append(len(rows))
        return rows / np.float32(2)

    samples = Arrays({"x": np.arange(10, dtype=np.uint8)}, np.arange(9, -1, -1), {"x": convert})
    np.testing.assert_array_equal(samples.take({"x": np.array([0, 3])})["x"], np.array([4.5, 3], np.float32))
    assert seen == [2]


@pytest.mark.parametrize("value", [2**31, -(2**31) - 1, 2**40])
def test_integers_that_do_not_fit_are_refused(value):
    samples = Arrays({"id": np.array([1, value])})
    assert samples.take({"id": np.array([0])})["id"].dtype == np.int32
    with pytest.raises(ValueError, match="'id' has the whole number"):
        samples.take({"id": np.array([0, 1])})


@given(st.integers(2, 300), st.floats(0.001, 0.999), st.integers(0, 99))
def test_a_split_takes_every_sample_to_one_side(count, share, seed):
    train, held_out = data.split(seed, "x", count, share)
    assert len(train) > 0 and abs(len(held_out) - max(1, count * share)) <= 1
    assert sorted([*train.tolist(), *held_out.tolist()]) == list(range(count))


def test_a_held_out_batch_is_always_full():
    d = data.load("digits", 0)
    last = data.full_batch(d.held_out, 352, 16, ["label"])
    assert len(last["label"]) == 16
    np.testing.assert_array_equal(last["label"][:8], everything(d.held_out)["label"][352:])


def test_digits_are_the_whole_data_set():
    d = data.load("digits", 0)
    assert (d.num_samples, d.num_held_out) == (1437, 360)
    train, held_out = everything(d.train), everything(d.held_out)
    images = np.concatenate([train["image"], held_out["image"]])
    labels = np.concatenate([train["label"], held_out["label"]])
    assert images.shape == (1797, 1, 8, 8) and images.dtype == np.float32
    assert images.min() == 0 and images.max() == 1
    assert len(np.unique(images.reshape(1797, -1), axis=0)) == 1797
    assert np.bincount(labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert not np.array_equal(everything(data.load("digits", 1).held_out)["label"], held_out["label"])


def test_the_digits_are_attributed():
    note = digits.FILE.with_suffix(".txt").read_text()
    assert "Alpaydin" in note and "CC BY 4.0" in note and "UCI" in note


@settings(max_examples=60)
@given(st.integers(0, 90), st.integers(1, 30), st.integers(1, 100), st.floats(0, 1, exclude_min=True, exclude_max=True))
def test_text_is_windows_of_its_bytes_in_their_order(tmp_path_factory, length, seq, most, share):
    """Those of the beginning are trained on, the rest, some but not all, held out; what is not read is told."""
    path = tmp_path_factory.getbasetemp() / "a:b=c.txt"
    path.write_bytes(bytes(range(length)))
    text, number = f"text:file={path},seq={seq},most_bytes={most},held_out={share}", (min(length, most) - 1) // seq
    if number < 2:
        with pytest.raises(ValueError, match=f"{min(length, most)} bytes, too few for two windows of {seq}"):
            data.load(text, 0)
        return
    d = data.load(text, 0)
    train, held_out = everything(d.train), everything(d.held_out)
    for begin, name in enumerate(("tokens", "targets")):
        both = np.concatenate([train[name], held_out[name]])
        np.testing.assert_array_equal(both, begin + np.arange(number * seq).reshape(number, seq))
    assert d.num_samples > 0 < d.num_held_out and abs(d.num_held_out - share * number) <= 1
    assert d.read == ((most, length) if most < length else None) and d.batch(0, 1)["tokens"].dtype == np.int32


def test_text_of_the_library_is_all_that_people_wrote_to_be_read(tmp_path, monkeypatch):
    """Files in the order of their names, folders where their own names are."""
    files = ("b.py", "a/z.py", "a/test/t.py", "a.py", "c.txt", "test/u.py", "d.py/e.py")
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(f"# this is {file}\n" * 3)
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path)})
    whole = b"".join((tmp_path / file).read_bytes() for file in ("a/z.py", "a.py", "b.py", "d.py/e.py"))
    for most in (60, 2**20):
        d = data.load(f"text:seq=1,most_bytes={most}", 0)
        read = np.concatenate([everything(part)["tokens"] for part in (d.train, d.held_out)])
        assert bytes(read[:, 0].tolist()) == whole[:most][:-1] and d.read is None
    for file in files:
        (tmp_path / file).unlink()
    with pytest.raises(ValueError, match="no source files"):
        data.load("text", 0)


def test_what_is_taken_gives_way_to_what_the_user_says():
    takes = {"tokens": data.InputSpec((32,)), "segments": data.InputSpec((5,))}
    assert data.load("text", 0, takes).shapes["tokens"] == (32,)
    assert data.load("text:seq=16", 0, takes).shapes["tokens"] == (16,)


def test_what_is_synthetic_is_whatever_is_taken():
    found = everything(data.load("synthetic:samples=2000", 0, TAKES).train)
    assert {name: (array.shape[1:], array.dtype) for name, array in found.items()} == {
        "x": ((2, 3), np.float32), "ids": ((4,), np.int32), "mask": ((2,), np.int32),
    }  # fmt: skip
    assert found["ids"].min(axis=0).tolist() == [0] * 4 and found["ids"].max(axis=0).tolist() == [0, 2, 8, 69]
    assert set(found["mask"].ravel().tolist()) == {0, 1}
    assert abs(found["x"].mean()) < 0.1 and abs(found["x"].std() - 1) < 0.1


def test_numbers_are_below_what_is_taken():
    takes = {"image": data.InputSpec((1, 5, 5)), "label": data.InputSpec((), True, np.array(3))}
    found = data.load("noise:samples=30", 0, takes)
    assert found.shapes["image"] == (1, 5, 5) and set(everything(found.train)["label"].tolist()) == {0, 1, 2}
    takes = {"categories": data.InputSpec((2,), True, np.array([7, 40])), "numbers": data.InputSpec((3,))}
    found = data.load("clicks:samples=500", 0, takes)
    assert everything(found.train)["categories"].max(axis=0).tolist() == [6, 39] and found.shapes["numbers"] == (3,)


def damage(tmp_path: Path, how: str) -> Path:
    path = tmp_path / "digits.npz"
    content = digits.FILE.read_bytes()
    if how == "truncated":
        path.write_bytes(content[: len(content) // 2])
    elif how == "garbled":
        path.write_bytes(content[:20000] + bytes(64) + content[20064:])
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "text":
        path.write_text("not an archive")
    elif how == "one array":
        np.savez(path, image=np.zeros((4, 8, 8), np.uint8))
    elif how == "pickled":
        np.savez(path, image=np.array([{}], object), label=np.zeros(1, np.uint8))
    elif how == "small":
        np.savez(path, image=np.zeros((4, 8, 8), np.uint8), label=np.zeros(4, np.uint8))
    elif how == "npy":
        np.save(tmp_path / "x.npy", np.zeros(3))
        shutil.move(tmp_path / "x.npy", path)
    return path


@pytest.mark.parametrize(
    "how", ["missing", "truncated", "garbled", "empty", "text", "one array", "pickled", "small", "npy"]
)
def test_missing_or_damaged_digits_are_refused(tmp_path, how):
    with pytest.raises(ValueError, match=r"^data set digits: .*digits\.npz") as caught:
        data.load(f"digits:file={damage(tmp_path, how)}", 0)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("digit", r"no data set 'digit' \(did you mean 'digits'"),
        ("mine.npz", r"did you mean 'numpy:file=mine.npz'"),
        ("a/b.csv.gz", r"did you mean 'csv:file=a/b.csv.gz'"),
        ("./own.py", r"did you mean 'iterator:file=./own.py'"),
        ("digits:files=x", r"no setting 'files' \(did you mean 'file'"),
        ("text:file=/nowhere/x.txt", "data set text: /nowhere/x.txt: No such file"),
        ("text:most_bytes=-1", "data set text: most_bytes -1 should be at least 1"),
        ("text:seq=10000000", "too few for two windows"),
        ("text:seq=0", "seq 0 should be at least 1"),
    ],
)
def test_wrong_words_are_refused(text, words):
    with pytest.raises(ValueError, match=words):
        data.load(text, 0)


def test_a_batch_larger_than_the_data_is_refused():
    with pytest.raises(ValueError, match="1437 samples, too few for a batch of 2000"):
        data.load("digits", 0).batch(0, 2000)


ENDS = [n + more for n in (-(2**31), 0, 2**31, 2**32, 2**63) for more in (-1, 0, 1)]


@given(st.sampled_from([np.dtype(kind) for kind in "bhilqBHILQ"]), st.data())
def test_whole_numbers_are_inputs_as_they_are_or_refused(dtype, drawn):
    """Whatever they were kept as: none becomes another for want of room."""
    limits = np.iinfo(dtype)
    there = [n for n in ENDS if limits.min <= n <= limits.max]
    rows = drawn.draw(st.lists(st.sampled_from(there) | st.integers(0, 9), max_size=4))
    array = np.array(rows, dtype)
    if all(-(2**31) <= n < 2**31 for n in rows):
        found = data.as_input("x", array)
        assert found.dtype == np.int32 and found.tolist() == rows
    else:
        with pytest.raises(ValueError, match="'x' has the whole number") as told:
            data.as_input("x", array)
        number = int(str(told.value).partition("whole number ")[2].partition(";")[0])
        assert number in rows and not -(2**31) <= number < 2**31
