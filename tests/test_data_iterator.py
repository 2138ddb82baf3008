"""Samples from the user's own code: order, length, resumption, and faults of that code told in one sentence."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from castile.launch import data
from castile.launch.data.iterator import Stream

SHUFFLED = """
import numpy as np
begun = []
def samples(seed, epoch{start}):
    begun.append(epoch)
    for n in np.random.default_rng((seed, epoch)).permutation(30)[{skip}:]:
        yield {{"x": np.full((2,), n, np.float32), "id": int(n) + 100 * epoch}}
"""
FORMS = {
    "plain": SHUFFLED.format(start="", skip="0"),
    "seeking": SHUFFLED.format(start=", start=0", skip="start"),
    "of its own": SHUFFLED.format(start=", most=0", skip="most and 30"),
    "seeking, of its own": SHUFFLED.format(start=", more=0, *, start", skip="start"),
}


def load(folder: Path, text: str, given: str = "") -> data.Dataset:
    (folder / "mine.py").write_text(text)
    return data.load(f"iterator:file={folder / 'mine.py'}{given}", 7)


@pytest.fixture(scope="module", params=FORMS)
def shuffled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> data.Dataset:
    return load(tmp_path_factory.mktemp("it"), FORMS[request.param])


def expected(lo: int, hi: int) -> list[int]:
    """Samples lo to hi of what the function above yields with seed 7."""
    epochs = [np.random.default_rng((7, epoch)).permutation(30) + 100 * epoch for epoch in range(hi // 30 + 1)]
    return np.concatenate(epochs)[lo:hi].tolist()


@settings(max_examples=60)
@given(step=st.integers(0, 12), size=st.integers(1, 30), cut=st.data())
def test_a_position_is_a_sample_however_it_is_reached(shuffled, step, size, cut):
    lo, hi = sorted(cut.draw(st.tuples(st.integers(0, size), st.integers(0, size))))
    found = shuffled.batch(step, size, (lo, hi))
    assert found["id"].tolist() == expected(step * size + lo, step * size + hi)
    assert found["x"].dtype == np.float32 and found["id"].size == hi - lo


def test_an_epoch_is_gone_through_once(tmp_path):
    begun = []

    def samples(seed, epoch):
        begun.append(epoch)
        return ({"x": n} for n in range(30))

    stream = Stream("mine.py", samples, 0, 30)
    begun.clear()
    taken = [stream.take({"x": np.arange(n, n + 7)})["x"] for n in range(0, 84, 7)]
    assert np.concatenate(taken).tolist() == [n % 30 for n in range(84)] and begun == [0, 1, 2]


@given(st.lists(st.integers(0, 89), min_size=1, max_size=20, unique=True))
def test_a_function_that_begins_anywhere_makes_no_sample_that_nobody_asked_for(numbers):
    made = []

    def samples(seed, epoch, start):
        for n in range(start, 30):
            made.append(30 * epoch + n)
            yield {"x": 30 * epoch + n}

    stream = Stream("mine.py", samples, 0, 30)
    made.clear()
    for number in sorted(numbers):
        assert stream.take({"x": np.array([number])})["x"].tolist() == [number]
    assert made == sorted(numbers)


def test_inputs_may_want_different_samples(shuffled):
    found = shuffled.take(1, 10, {"x": np.array([0, 1]), "id": np.array([4, 9])})
    ids = expected(10, 20)
    assert found["x"][:, 0].tolist() == ids[:2] and found["id"].tolist() == [ids[4], ids[9]]


def test_a_length_makes_an_epoch_of_what_never_ends(tmp_path):
    endless = (
        "import itertools\ndef samples(seed, epoch):\n    return ({'x': n} for n in itertools.count(1000 * epoch))\n"
    )
    d = load(tmp_path, endless, ",length=5")
    assert d.num_samples == 5 and d.num_held_out == 0 and d.shapes == {"x": ()}
    assert d.batch(1, 4)["x"].tolist() == [4, 1000, 1001, 1002]
    with pytest.raises(ValueError, match="yields more than 1048576 samples an epoch; say how many"):
        load(tmp_path, endless)


YIELDS = "def samples(seed, epoch):\n    yield {'x': [1.0, 2.0], 'id': 3}\n    yield "


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = = 1\n", "SyntaxError"),
        ("import nothing_of_that_name\n", "ModuleNotFoundError"),
        ("def sample(seed, epoch):\n    yield {}\n", r"has no function samples\(seed, epoch\)"),
        ("def samples(seed, epoch):\n    return []\n", "yields no samples"),
        ("def samples(seed, epoch):\n    raise KeyError('gone')\n", r"samples\(7, 0\) failed: KeyError: 'gone'"),
        ("def samples(seed):\n    yield {}\n", r"samples\(7, 0\) failed: TypeError"),
        ("def samples(seed, epoch):\n    yield 3\n", "sample 0 of epoch 0 is of type int; a sample is a dict"),
        ("def samples(seed, epoch):\n    yield {'x': 'a'}\n", "sample 0 of epoch 0: 'x' holds <U1"),
        (YIELDS + "{'x': 1.0, 'id': 3}\n", r"sample 1 of epoch 0 has id \[\], x \[\], the first has id \[\], x \[2\]"),
        (YIELDS + "{'x': [1.0, 2.0]}\n", r"sample 1 of epoch 0 has x \[2\]"),
        (YIELDS + "{'x': [[1.0], [2.0, 3.0]], 'id': 3}\n", "sample 1 of epoch 0 failed: ValueError"),
        (
            "def samples(seed, epoch):\n    yield {'x': 1}\n    if epoch == 0: yield {'x': 2}\n",
            r"samples\(7, 1\) ended after 1 samples; an epoch has 2",
        ),
        (
            "def samples(seed, epoch):\n    yield {'x': 1}\n    yield {'x': 1 // (1 - epoch)}\n",
            r"samples\(7, 1\) at sample 1 failed: ZeroDivisionError",
        ),
        (
            YIELDS + "{'x': [1.0, 2.0], 'id': 3}\ndef held_out(seed):\n    return [{'x': 1}]\n",
            r"held_out\(7\) sample 0 has x",
        ),
        (
            YIELDS + "{'x': [1.0, 2.0], 'id': 3}\ndef held_out(seed):\n    yield 1 / 0\n",
            r"held_out\(7\) failed: ZeroDiv",
        ),
        (
            YIELDS + "{'x': [1.0, 2.0], 'id': 3}\ndef held_out(seed):\n    return []\n",
            r"held_out\(7\) yields no samples",
        ),
    ],
)
def test_faults_of_the_users_code_are_told(tmp_path, text, words):
    with pytest.raises(ValueError, match=rf"^data set iterator: .*mine\.py.*{words}") as caught:
        d = load(tmp_path, text)
        for step in range(2):
            d.batch(step, 2)
    assert "\n" not in str(caught.value)


def test_after_a_failure_the_epoch_begins_anew():
    failing = [True]

    def samples(seed, epoch):
        for n in range(4):
            if n == 2 and failing:
                raise OSError(failing.pop())
            yield {"x": n}

    stream = Stream("mine.py", samples, 0, 4)
    with pytest.raises(ValueError, match="OSError"):
        stream.take({"x": np.arange(4)})
    assert stream.take({"x": np.arange(2, 4)})["x"].tolist() == [2, 3]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("iterator", "give file=PATH.py"),
        ("iterator:file=/nowhere/x.py", "/nowhere/x.py: No such file"),
        ("iterator:file=/nowhere/x.txt", "is no Python file"),
        ("iterator:file=/nowhere/x.py,length=-1", "length"),
    ],
)
def test_a_file_that_is_none_is_refused(text, words):
    with pytest.raises(ValueError, match=f"^data set iterator: .*{words}"):
        data.load(text, 0)
