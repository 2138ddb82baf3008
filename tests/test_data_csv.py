"""Tables in CSV files: categories by rank, numbers standardised, rows dropped and counted, faults told with a line."""

import csv
import gzip
import io
import re
import tempfile
import zipfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from castile.launch import data, models
from castile.launch.data.csv import Texts
from castile.launch.jobs import input_matching
from castile.launch.processes.ranks import UserError
from tests.answers import sentence
from tests.data_files import everything

PLANES = """carrier,seats,delay,"a, b"
UA,10,20,x
AA,20,NA,x
UA,30,-5,"y
z"
DL,40,15,x
UA,,16,x
AA,50,16,x
"""


def write(path: Path, text: str) -> Path:
    content = text.encode()
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(content))
    elif path.suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("readme.txt", "a table")
            archive.writestr("planes.csv", content)
    else:
        path.write_bytes(content)
    return path


@pytest.fixture
def planes(tmp_path: Path) -> Path:
    return write(tmp_path / "planes.csv", PLANES)


def both(d: data.Dataset) -> dict[str, np.ndarray]:
    """All rows that were kept."""
    train, held_out = everything(d.train), everything(d.held_out)
    return {name: np.concatenate([array, held_out[name]]) for name, array in train.items()}


@pytest.mark.parametrize("end", [".csv", ".csv.gz", ".csv.zip"])
@pytest.mark.parametrize(
    ("positive", "labels"),
    [
        ("", [-5, 15, 16, 20]),
        (",positive=>15", [0, 0, 1, 1]),
        (",positive=>=15", [0, 1, 1, 1]),
        (",positive=<0", [0, 0, 0, 1]),
    ],
)
def test_a_table_is_read_whatever_it_is_packed_in(tmp_path, end, positive, labels):
    path = write(tmp_path / f"planes{end}", "\ufeff" + PLANES)
    d = data.load(f"csv:file={path},label=delay,categories=carrier,numbers=seats,rare=1{positive}", 0)
    assert (d.num_samples + d.num_held_out, d.num_dropped) == (4, 2)
    assert d.shapes == {"categories": (1,), "numbers": (1,), "label": (1,)}
    rows = both(d)
    assert sorted(rows["label"][:, 0].tolist()) == labels
    assert {name: array.dtype.name for name, array in rows.items()} == {
        "categories": "int32", "numbers": "float32", "label": "float32",
    }  # fmt: skip


def test_a_label_can_be_a_text_or_a_class(planes):
    d = data.load(f"csv:file={planes},label=carrier,positive=UA,numbers=seats+delay", 0)
    assert sorted(both(d)["label"][:, 0].tolist()) == [0, 0, 1, 1] and "categories" not in d.shapes
    d = data.load(f"csv:file={planes},label=seats,classes=true,categories=carrier", 0)
    assert d.shapes == {"categories": (1,), "label": ()} and d.sizes["seats"] == 5
    assert sorted(both(d)["label"].tolist()) == [0, 1, 2, 3, 4] and d.num_dropped == 1


@settings(max_examples=60)
@given(st.lists(st.sampled_from("abcdefgh"), min_size=2, max_size=60), st.integers(1, 4), st.data())
def test_categories_are_ranked_by_the_training_rows(cells, rare, draws):
    texts = Texts()
    cut = draws.draw(st.integers(0, len(cells)))
    texts.add(cells[:cut])
    texts.add(cells[cut:])
    train = np.array(draws.draw(st.lists(st.integers(0, len(cells) - 1), unique=True, min_size=1)))
    codes, size = texts.numbered(train, rare)
    counts = Counter(cells[n] for n in train)
    number = dict(zip(cells, codes.tolist(), strict=True))
    kept = [cell for cell in number if counts[cell] >= rare]
    assert sorted(number[cell] for cell in kept) == list(range(1, size))
    assert all(number[cell] == 0 for cell in number if counts[cell] < rare)
    assert all(counts[a] >= counts[b] for a in kept for b in kept if number[a] < number[b])


def table(num_rows: int) -> str:
    """A table whose label tells every other cell of its row."""
    written = io.StringIO()
    csv.writer(written).writerows([("n", "kind", "same"), *((n, f"k{n % 7}", 3) for n in range(num_rows))])
    return written.getvalue()


def test_numbers_are_standardised_by_the_training_rows(tmp_path):
    path = write(tmp_path / "t.csv", table(1000))
    d = data.load(f"csv:file={path},label=n,numbers=n+same,held_out=0.2", 5)
    train, held_out = everything(d.train), everything(d.held_out)
    assert (d.num_samples, d.num_held_out) == (800, 200)
    mean, deviation = train["label"].mean(dtype=np.float64), train["label"].std(dtype=np.float64)
    for part in (train, held_out):
        np.testing.assert_allclose(part["numbers"][:, 0], (part["label"][:, 0] - mean) / deviation, atol=1e-5)
        assert not part["numbers"][:, 1].any()
    assert abs(np.corrcoef(np.arange(800), train["label"][:, 0])[0, 1]) < 0.15


def test_samples_are_known_by_their_rows_in_the_file(planes):
    d = data.load(f"csv:file={planes},label=delay,categories=carrier,numbers=seats", 3)
    assert data.rows_of(d.in_order("all")).tolist() == [0, 2, 3, 5]
    for part in (d.train, d.held_out):
        delays = dict(zip([0, 2, 3, 5], [20, -5, 15, 16], strict=True))
        assert [delays[n] for n in data.rows_of(part)] == everything(part)["label"][:, 0].tolist()


NEW = {7: "7,k0", 50: "50,k1", 2: "NA,k2", 199: "199,k3", -1: "50,none like it"}


@pytest.mark.parametrize("is_judged", [False, True])
def test_new_rows_are_what_they_would_be_beside_those_to_train_on(is_judged, tmp_path):
    known = write(tmp_path / "t.csv", table(200).replace("same", "label"))
    lines = [f"n,kind{',label' * is_judged}", *(f"{row}{',3' * is_judged}" for row in NEW.values())]
    new = write(tmp_path / "new.csv", "\n".join(lines))
    words = f"csv:file={known},label=label,categories=kind,numbers=n"
    before, d = data.load(words, 5), data.load(f"{words},new={new}", 5)
    every, found = everything(before.in_order("all")), everything(d.held_out)
    assert set(found) == {"categories", "numbers", *(["label"] if is_judged else [])}
    assert data.rows_of(d.held_out).tolist() == [0, 1, 3, 4] and d.num_dropped == 1
    for name, rows in found.items():
        assert np.array_equal(rows[:3], every[name][[7, 50, 199]]), name
    assert found["categories"][3] == 0 and found["numbers"][3] == every["numbers"][50]
    assert d.sizes == before.sizes
    assert all(np.array_equal(rows, everything(before.train)[name]) for name, rows in everything(d.train).items())
    both = d.in_order("all")
    assert set(both.shapes) == set(found) and len(set(data.rows_of(both).tolist())) == len(both) == 184
    assert sorted(data.rows_of(both)) == data.rows_of(both).tolist()
    kept = [np.flatnonzero(data.rows_of(before.in_order("all")) == row)[0] for row in sorted(data.rows_of(d.train))]
    for name, rows in everything(both).items():
        assert np.array_equal(rows, np.concatenate([every[name][kept], found[name]])), name


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("n,kind,label\n1,k0,\n", "0 of 1 rows have nothing missing .* leave out the column 'label'"),
        ("n,kind,label\n1,k0,8\n", "column 'label' has '8', a class that `file` lacks"),
        ("n,label\n1,3\n", "no column is named 'kind'"),
    ],
)
def test_new_rows_that_cannot_be_told_are_refused(text, words, tmp_path):
    known, new = write(tmp_path / "t.csv", table(200).replace("same", "label")), write(tmp_path / "new.csv", text)
    with pytest.raises(ValueError, match=rf"^data set csv: .*new\.csv: {words}"):
        data.load(f"csv:file={known},label=label,classes=true,categories=kind,numbers=n,new={new}", 5)


def test_who_needs_columns_that_are_not_named_is_told_how(planes):
    d = data.load(f"csv:file={planes},label=delay,categories=carrier", 0)
    model = models.parse("dlrm:sizes=4")
    with pytest.raises(UserError, match=r": say what its numbers are, as in --data csv:\.\.\.,numbers=A\+B$"):
        input_matching.check(model, model.graph(2), d, None)


def test_rows_stay_whole_across_blocks(tmp_path, monkeypatch):
    path = write(tmp_path / "t.csv", "n,kind,same\n,k0,3\n" + table(300).partition("\n")[2] + "NA,k1,3\n")
    loaded = [data.load(f"csv:file={path},label=n,categories=kind", 0)]
    monkeypatch.setattr("castile.launch.typed.tables.ROWS_AT_ONCE", 7)
    loaded.append(data.load(f"csv:file={path},label=n,categories=kind", 0))
    assert [d.num_dropped for d in loaded] == [2, 2]
    plain, again = map(both, loaded)
    for name, array in plain.items():
        np.testing.assert_array_equal(array, again[name])
    number = dict(zip((plain["label"][:, 0] % 7).tolist(), plain["categories"][:, 0].tolist(), strict=True))
    assert sorted(number.values()) == list(range(1, 8))
    assert all(number[n % 7] == c for n, c in zip(plain["label"][:, 0], plain["categories"][:, 0], strict=True))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("", "give file=PATH, label=COLUMN, and categories"),
        (",label=dely,numbers=seats", r"no column is named 'dely' \(did you mean 'delay'"),
        (",label=delay,numbers=seats+seats", "numbers names column 'seats' twice"),
        (",label=delay,numbers=carrier", r"planes\.csv, line 2: column 'carrier' has 'UA', not a number: name"),
        (",label=delay,numbers=seats,positive=>high", "positive=>high: 'high' is not a number"),
        (",label=delay,numbers=seats,positive=>1,classes=true", "leave out classes"),
        (",label=delay,numbers=seats,rare=0", "rare counts the rows"),
        (",label=delay,numbers=seats,held_out=1", "between 0 and 1, got 1"),
    ],
)
def test_wrong_settings_are_refused(planes, given, words):
    with pytest.raises(ValueError, match=rf"^data set csv: .*{words}") as caught:
        data.load(f"csv:file={planes}{given}", 0)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("carrier,categories=delay,positive=ua", r"positive=ua: in column 'carrier' no cell is 'ua' .*'UA'"),
        ("carrier,categories=delay,positive=x", "no cell is 'x': there are 'UA', 'DL', 'AA'"),
        ("delay,categories=carrier,positive=>20", "positive=>20: in column 'delay' no cell is: .* from -5 to 20"),
    ],
)
def test_labels_that_are_all_0_are_predicted_and_not_trained_on(planes, given, words, capsys):
    """Of rows to predict none may be positive; trained on these, any model would be right."""
    named = f"csv:file={planes},numbers=seats,label={given}"
    found = data.load(named, 0)
    assert re.match(f"data set csv: .*{words}", found.fault)
    assert not found.train.take({"label": np.arange(3)})["label"].any()
    said = sentence(capsys, "train", "dlrm", "--data", named, "--batch", "2", "--steps", "1")
    assert said == f"castile: {found.fault}\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a,b\n1,2\n\n1,2,3\n", "line 4: 3 cells in a table of 2 columns"),
        ('a,b\n1,2\n"1\n\n2",3\n1\n', "line 6: 1 cells in a table of 2 columns"),
        ("a,b\nNA,2\n1,2\n1,x\n", "line 4: column 'b' has 'x'"),
        ("a,b\n1,2\n1,inf\n", "line 3: column 'b' has 'inf'"),
        ("a,b\n1,2\n1,NAN\n", "line 3: column 'b' has 'NAN'"),
        ('a,b\n1,2\n1,"2\n', "line 3: unexpected end of data"),
        ("a,b\n1,2\n", "1 of 1 rows have nothing missing in the columns that are used: fill at least 2"),
        ("a,b\nNA,2\n1,\n", "0 of 2 rows have nothing missing"),
        ("a,b,b\n1,2,3\n", "2 columns are named 'b'"),
        ("", "its first line should be the names of its columns, and is empty"),
        ("\n1,2\n", "its first line should be the names of its columns, and is empty"),
    ],
)
def test_damaged_tables_are_refused_with_the_line(tmp_path, text, words):
    path = write(tmp_path / "t.csv", text)
    with pytest.raises(ValueError, match=rf"^data set csv: .*t\.csv.*{words}") as caught:
        data.load(f"csv:file={path},label=a,numbers=b", 0)
    assert "\n" not in str(caught.value)


def damaged(folder: Path, how: str) -> Path:
    end = ".csv.zip" if "zip" in how else ".csv" if how in ("missing", "latin") else ".csv.gz"
    path = write(folder / f"t{end}", table(2000))
    content = path.read_bytes()
    if how == "missing":
        path.unlink()
    elif how == "latin":
        path.write_bytes(b"n,kind,same\n1,\xe9\xe8,2\n")
    elif how == "no zip":
        path.write_bytes(b"n,kind\n")
    elif how == "garbled zip":
        at = content.index(b"planes.csv") + 600
        path.write_bytes(content[:at] + bytes(8) + content[at + 8 :])
    elif how == "empty zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("a.txt", "")
    elif how == "cut":
        path.write_bytes(content[: len(content) // 2])
    elif how == "no gzip":
        path.write_text(table(3))
    return path


@pytest.mark.parametrize("how", ["missing", "latin", "no zip", "garbled zip", "empty zip", "cut", "no gzip"])
def test_damaged_files_are_refused(tmp_path, how):
    path = damaged(tmp_path, how)
    with pytest.raises(ValueError, match=r"^data set csv: .*t\.csv") as caught:
        data.load(f"csv:file={path},label=n,categories=kind", 0)
    assert "\n" not in str(caught.value)


@given(
    st.dictionaries(
        st.sampled_from(["a", "b", "c+d", "e f"]),
        st.lists(st.sampled_from(["1", "-2.5", "x", "NA", "", "3e2", "inf"]), min_size=9, max_size=9),
        min_size=1,
    )
)
@settings(max_examples=30)
def test_without_columns_that_are_named_all_are_taken_for_what_they_hold(cells):
    """Numbers where each cell is one or missing: what a user types who knows a file's name and its label."""
    columns = {**cells, "label": ["0", "1", "1"] * 3, "full": ["7"] * 9}
    rows = [",".join(row) for row in zip(*columns.values(), strict=True)]
    is_number = {name: all(c in ("1", "-2.5", "3e2", "NA", "") for c in column) for name, column in cells.items()}
    missing = [any(column[n] in ("NA", "") for column in cells.values()) for n in range(9)]
    assume(missing.count(False) > 1)
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder) / "any.csv", "\n".join([",".join(columns), *rows]))
        found = data.load(f"csv:file={path},label=label", 0)
    assert found.num_dropped == sum(missing) and list(found.sizes) == [name for name in cells if not is_number[name]]
    assert found.shapes["numbers"] == (1 + sum(is_number.values()),)


def test_what_is_missing_is_filled_where_the_user_says_so(planes: Path) -> None:
    """A number by the mean of those that are trained on, a category by 0; without a label a row is left out still."""
    text = f"csv:file={planes},label=delay,categories=carrier,numbers=seats,rare=1,held_out=0.2"
    plain, filled = (data.load(f"{text},filled={yes}", 0) for yes in ("false", "true"))
    assert (plain.num_dropped, filled.num_dropped) == (2, 1)
    assert plain.num_samples + plain.num_held_out == 4 and filled.num_samples + filled.num_held_out == 5
    seats = np.array([10, 20, 30, 40, np.nan, 50])
    known = seats[data.rows_of(filled.train)]
    scaled = np.nan_to_num((seats - np.nanmean(known)) / np.nanstd(known))
    every = filled.in_order("all")
    np.testing.assert_allclose(everything(every)["numbers"][:, 0], scaled[data.rows_of(every)], rtol=1e-6)


@given(
    cells=st.lists(st.sampled_from(["a", "b", "", "NA", "nan"]), min_size=4, max_size=12),
    numbers=st.lists(st.sampled_from(["1", "2", "-3.5", "", "null"]), min_size=12, max_size=12),
    seed=st.integers(0, 9),
)
def test_filled_rows_are_those_of_a_table_with_means(cells: list[str], numbers: list[str], seed: int) -> None:
    lines = [f"{c},{n},{k % 2}" for k, (c, n) in enumerate(zip(cells, numbers, strict=False))]
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder) / "t.csv", "\n".join(["c,n,y", *lines]) + "\n")
        text = f"csv:file={path},label=y,categories=c,numbers=n,rare=1,held_out=0.3,filled=true"
        found = data.load(text, seed)
        again = data.load(f"{text},new={path}", seed)
    arrays = everything(found.in_order("all"))
    assert len(arrays["label"]) == len(cells) and found.num_dropped == 0
    is_none = np.array([cell in ("", "NA", "nan") for cell in cells])
    assert (arrays["categories"][is_none, 0] == 0).all() and found.sizes["c"] <= 3
    lacks = np.array([cell in ("", "null") for cell in numbers[: len(cells)]])
    assert (arrays["numbers"][lacks, 0] == 0).all() and np.isfinite(arrays["numbers"]).all()
    # as new rows they are the same samples
    for name, rows in everything(again.held_out).items():
        np.testing.assert_array_equal(rows, arrays[name])
