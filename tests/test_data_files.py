"""Images in idx files and arrays in npz and npy files: read right, gzipped or not, refused in words when damaged."""

import gzip
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis.extra import numpy as hnp

from castile.launch import data
from castile.launch.data import idx
from tests.data_files import everything, idx_bytes, idx_files

IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"


def write(folder: Path, end: str = "", **changed: bytes) -> Path:
    """A folder of the four files, some with other contents."""
    for name, array in idx_files().items():
        content = changed.get(name, idx_bytes(array))
        (folder / (name + end)).write_bytes(gzip.compress(content) if end == ".gz" else content)
    return folder


@pytest.mark.parametrize("end", ["", ".gz"])
def test_idx_files_are_read_as_they_are_written(tmp_path, end):
    d = data.load(f"idx:folder={write(tmp_path, end)}", 0)
    files = idx_files()
    assert d.shapes == {"image": (1, 5, 4), "label": ()} and (d.num_samples, d.num_held_out) == (40, 12)
    train, held_out = everything(d.train), everything(d.held_out)
    np.testing.assert_array_equal(train["label"], files[LABELS])
    np.testing.assert_array_equal(held_out["label"], files["t10k-labels-idx1-ubyte"])
    pixels = files[IMAGES].astype(np.float64)
    expected = (files["t10k-images-idx3-ubyte"] - pixels.mean()) / pixels.std()
    np.testing.assert_allclose(held_out["image"][:, 0], expected, atol=1e-6)
    assert abs(train["image"].mean()) < 1e-6 and abs(train["image"].std() - 1) < 1e-6


@given(hnp.arrays(np.uint8, hnp.array_shapes(min_dims=3, max_dims=3, max_side=6)))
def test_images_of_any_kind_are_standardised(images):
    rows = idx.Standard.of(images)(images)
    deviation = images.astype(np.float64).std()
    assert rows.dtype == np.float32 and abs(rows.mean(dtype=np.float64)) < 1e-4
    np.testing.assert_allclose(rows.std(dtype=np.float64), 1 if deviation else 0, atol=1e-4)


def test_names_with_points_are_found(tmp_path):
    write(tmp_path)
    for path in list(tmp_path.iterdir()):
        path.rename(path.with_name(path.name.replace("-idx", ".idx")))
    assert data.load(f"idx:folder={tmp_path}", 0).num_samples == 40


IDX_DAMAGE = {
    "truncated": lambda content: content[:-7],
    "longer": lambda content: content + b"\0",
    "wrong magic": lambda content: b"\0\0\x0d\x03" + content[4:],
    "wrong dims": lambda content: b"\0\0\x08\x02" + content[4:],
    "wrong count": lambda content: content[:4] + (41).to_bytes(4, "big") + content[8:],
    "header only": lambda content: content[:9],
    "none": lambda content: b"",
    "no images": lambda content: content[:4] + bytes(4) + content[8:16],
}


@pytest.mark.parametrize("end", ["", ".gz"])
@pytest.mark.parametrize("how", IDX_DAMAGE)
def test_damaged_idx_files_are_refused(tmp_path, how, end):
    write(tmp_path, end, **{IMAGES: IDX_DAMAGE[how](idx_bytes(idx_files()[IMAGES]))})
    with pytest.raises(ValueError, match=rf"^data set idx: .*{IMAGES}{end}") as caught:
        data.load(f"idx:folder={tmp_path}", 0)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("how", ["cut", "garbled", "plain"])
def test_damaged_gzip_files_are_refused(tmp_path, how):
    path = write(tmp_path, ".gz") / f"{LABELS}.gz"
    content = path.read_bytes()
    garbled = content[:20] + bytes([content[20] ^ 255]) + content[21:]
    path.write_bytes({"cut": content[:-9], "garbled": garbled, "plain": gzip.decompress(content)}[how])
    with pytest.raises(ValueError, match=rf"^data set idx: .*{LABELS}\.gz is damaged"):
        data.load(f"idx:folder={tmp_path}", 0)


def test_images_without_their_labels_are_refused(tmp_path):
    write(tmp_path, **{LABELS: idx_bytes(np.zeros(39, np.uint8))})
    with pytest.raises(ValueError, match=rf"{LABELS} has 39 labels for 40 images"):
        data.load(f"idx:folder={tmp_path}", 0)


def test_held_out_images_of_another_size_are_refused(tmp_path):
    write(tmp_path, **{"t10k-images-idx3-ubyte": idx_bytes(np.zeros((12, 4, 5), np.uint8))})
    with pytest.raises(ValueError, match="two sizes, for training and held out: 5x4 and 4x5"):
        data.load(f"idx:folder={tmp_path}", 0)


@pytest.mark.parametrize("missing", ["folder", "file"])
def test_missing_images_are_told_how_to_get(tmp_path, monkeypatch, missing):
    monkeypatch.setattr(idx, "DEBIAN", tmp_path / "none" if missing == "folder" else tmp_path)
    with pytest.raises(ValueError, match=r"apt-get install dataset-fashion-mnist") as caught:
        data.load("idx", 0)
    assert "apt-get download dataset-fashion-mnist && dpkg-deb -x" in str(caught.value)
    assert "folder=PATH" in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.skipif(not idx.DEBIAN.is_dir(), reason="Debian's package dataset-fashion-mnist is not installed")
def test_fashion_mnist_is_the_whole_data_set():
    d = data.load("idx", 0)
    assert (d.num_samples, d.num_held_out, d.shapes["image"]) == (60000, 10000, (1, 28, 28))
    for samples, each in ((d.train, 6000), (d.held_out, 1000)):
        labels = samples.take({"label": np.arange(len(samples))})["label"]
        assert np.bincount(labels).tolist() == [each] * 10
    image = d.batch(0, 1000)["image"]
    assert image.dtype == np.float32 and abs(image.mean()) < 0.05 and abs(image.std() - 1) < 0.05


ARRAYS = {"x": np.arange(60, dtype=np.float32).reshape(20, 3), "label": np.arange(20), "on": np.arange(20) % 2 == 0}


def store(folder: Path, form: str, arrays: dict[str, np.ndarray]) -> Path:
    if form == "npz":
        np.savez(folder / "all.npz", **arrays)
        return folder / "all.npz"
    place = folder / "all"
    place.mkdir()
    for name, array in arrays.items():
        np.save(place / name, array)
    return place


@pytest.mark.parametrize("form", ["npz", "folder"])
def test_arrays_are_split_and_none_is_lost(tmp_path, form):
    d = data.load(f"numpy:file={store(tmp_path, form, ARRAYS)},share=0.25", 3)
    assert (d.num_samples, d.num_held_out) == (15, 5) and d.shapes == {"label": (), "on": (), "x": (3,)}
    train, held_out = everything(d.train), everything(d.held_out)
    labels = np.concatenate([train["label"], held_out["label"]])
    assert labels.dtype == np.int32 and sorted(labels.tolist()) == list(range(20)) != labels.tolist()
    for part in (train, held_out):
        np.testing.assert_array_equal(part["x"], ARRAYS["x"][part["label"]])
        np.testing.assert_array_equal(part["on"], ARRAYS["on"][part["label"]])


def test_two_files_are_taken_as_they_are(tmp_path):
    np.savez(tmp_path / "a.npz", **ARRAYS)
    np.savez(tmp_path / "b.npz", **{name: array[:4] for name, array in ARRAYS.items()})
    d = data.load(f"numpy:train={tmp_path / 'a.npz'},held_out={tmp_path / 'b.npz'}", 0)
    np.testing.assert_array_equal(everything(d.train)["x"], ARRAYS["x"])
    np.testing.assert_array_equal(everything(d.held_out)["label"], np.arange(4))


def test_npy_files_are_mapped_and_named_after_themselves(tmp_path):
    np.save(tmp_path / "tokens.npy", np.arange(30, dtype=np.int64).reshape(10, 3))
    d = data.load(f"numpy:file={tmp_path / 'tokens.npy'}", 0)
    assert d.shapes == {"tokens": (3,)} and not d.train.columns["tokens"].flags.owndata
    assert not d.train.columns["tokens"].flags.writeable
    assert d.batch(0, 4)["tokens"].dtype == np.int32


@pytest.mark.parametrize("form", ["npz", "folder"])
def test_what_lies_beside_the_arrays_that_are_taken_may_be_anything(tmp_path, form):
    others = {
        "names": np.array(["a", "b", "c"]), "notes": np.array([{}, {}], object), "mean": np.float64(1),
        "when": np.zeros(20, "datetime64[s]"), "few": np.zeros(3), "on": ARRAYS["on"],
    }  # fmt: skip
    path = store(tmp_path, form, others | ARRAYS)
    takes = {"x": data.InputSpec((3,)), "label": data.InputSpec((), True)}
    d = data.load(f"numpy:file={path},share=0.25", 3, takes)
    # what could be samples stays to be told of
    assert d.shapes == {"label": (), "on": (), "x": (3,)} and (d.num_samples, d.num_held_out) == (15, 5)
    # where none of them is taken it is not known which were meant
    with pytest.raises(ValueError, match=r"^data set numpy: "):
        data.load(f"numpy:file={path},share=0.25", 3, {"image": data.InputSpec(())})
    np.savez(tmp_path / "b.npz", x=ARRAYS["x"][:4], label=ARRAYS["label"][:4], notes=others["notes"])
    d = data.load(f"numpy:train={path},held_out={tmp_path / 'b.npz'}", 0, takes)
    assert (d.num_samples, d.num_held_out) == (20, 4)


def wrong_arrays(folder: Path, how: str) -> str:
    path = folder / "x.npz"
    if how == "words":
        return "numpy"
    if how == "half":
        return "numpy:train=x.npz"
    if how == "lengths":
        np.savez(path, x=np.zeros(3), y=np.zeros(4))
    elif how == "texts":
        np.savez(path, x=np.array(["a", "b"]))
    elif how == "pickled":
        np.savez(path, x=np.array([{}, {}], object))
    elif how == "scalar":
        np.savez(path, x=np.float64(1))
    elif how == "one":
        np.savez(path, x=np.zeros(1))
    elif how == "nothing":
        np.savez(path)
    elif how == "cut":
        np.savez(path, x=np.zeros(300))
        path.write_bytes(path.read_bytes()[:1000])
    elif how == "cut npy":
        np.save(path.with_suffix(".npy"), np.zeros(300))
        content = path.with_suffix(".npy").read_bytes()
        path.with_suffix(".npy").write_bytes(content[:-8])
        return f"numpy:file={path.with_suffix('.npy')}"
    elif how == "apart":
        np.savez(path, x=np.zeros((2, 3)))
        np.savez(folder / "y.npz", x=np.zeros((2, 4)))
        return f"numpy:train={path},held_out={folder / 'y.npz'}"
    return f"numpy:file={path}"


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("words", "give file=PATH, or both train=PATH and held_out=PATH"),
        ("half", "give file=PATH, or both"),
        ("missing", r"x\.npz: No such file"),
        ("lengths", r"x\.npz: arrays hold different numbers of samples: x 3, y 4"),
        ("texts", r"x\.npz: array 'x' holds <U1"),
        ("pickled", r"x\.npz is damaged or not an npz file of numbers"),
        ("scalar", r"x\.npz: array 'x' has shape \(\)"),
        ("one", r"1 sample is too few to hold one out .*x\.npz"),
        ("nothing", r"x\.npz holds no arrays"),
        ("cut", r"x\.npz is damaged"),
        ("cut npy", r"x\.npy is damaged"),
        ("apart", r"samples of .*x\.npz are x \[3\], those of .*y\.npz x \[4\]"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(tmp_path, how, words):
    with pytest.raises(ValueError, match=rf"^data set numpy: .*{words}") as caught:
        data.load(wrong_arrays(tmp_path, how), 0)
    assert "\n" not in str(caught.value)
