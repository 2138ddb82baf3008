"""Feeding: ranks get their own samples and together the batch, ahead of time, and no thread outlives its feeder."""

import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from castile.launch import data
from castile.launch.data import Arrays, Dataset
from castile.launch.processes.ranks import UserError
from castile.launch.training import feeding
from castile.launch.training.feeding import Feeder, places
from castile.runtime.region import Box, blocks, slices

COLUMNS = {
    "x": np.arange(37 * 4 * 3, dtype=np.float32).reshape(37, 4, 3),
    "label": np.arange(37),
}
DATASET = Dataset("x", 1, Arrays(COLUMNS), Arrays({}))


def threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.startswith("castile samples")]


@pytest.fixture(autouse=True)
def no_thread_stays():
    yield
    assert threads() == []


class Watched:
    """Samples that tell what is asked of them, wait for leave, and fail at a number."""

    shapes = {"x": ()}  # noqa: RUF012

    def __init__(self, failing: int | None = None, error: Exception | None = None) -> None:
        self.asked: list[list[int]] = []
        self.leave = threading.Event()
        self.leave.set()
        self.failing, self.error = failing, error

    def __len__(self) -> int:
        return 100

    def take(self, wanted):
        assert self.leave.wait(10)
        numbers = wanted["x"].tolist()
        self.asked.append(numbers)
        if self.failing in numbers:
            raise self.error or AssertionError
        return {"x": np.array(numbers)}


def watched(samples: Watched) -> Dataset:
    return Dataset("watched", 0, samples, Arrays({}), shuffled=False)


@st.composite
def boxes(draw, shape: tuple[int, ...]) -> Box:
    ranges = [sorted(draw(st.tuples(st.integers(0, n), st.integers(0, n)))) for n in shape]
    return Box(tuple(lo for lo, _ in ranges), tuple(hi for _, hi in ranges))


@settings(max_examples=60)
@given(st.integers(1, 20), st.integers(0, 30), st.data())
def test_any_boxes_are_cut_from_the_batch(size, step, draws):
    shapes = {"x": (size, 4, 3), "label": (size,)}
    inputs = [(name, box) for name, shape in shapes.items() for box in draws.draw(st.lists(boxes(shape), max_size=4))]
    whole = DATASET.batch(step, size)
    with Feeder(DATASET, inputs, size, step, 1) as feeder:
        feed = next(feeder)
        for name, box in inputs:
            np.testing.assert_array_equal(feed(name, box), whole[name][slices(box)])


@given(st.integers(1, 37), st.lists(st.integers(1, 5), min_size=1, max_size=3), st.integers(0, 20))
def test_the_ranks_together_take_the_batch_at_any_world_size(size, worlds, first):
    for num_ranks in worlds:
        for step in (first, first + 1):
            whole = DATASET.batch(step, size)
            parts = []
            for lo, hi in blocks(size, num_ranks):
                box = Box((lo, 0, 0), (hi, 4, 3))
                wanted = places([("x", box), ("label", Box((lo,), (hi,)))])
                assert all(len(numbers) == hi - lo for numbers in wanted.values())
                parts.append(DATASET.take(step, size, wanted))
            for name, array in whole.items():
                np.testing.assert_array_equal(np.concatenate([part[name] for part in parts]), array)


def test_only_samples_that_are_needed_are_taken():
    samples = Watched()
    inputs = [("x", Box((2,), (5,))), ("x", Box((4,), (6,))), ("x", Box((9,), (10,)))]
    with Feeder(watched(samples), inputs, 10, 3, 2) as feeder:
        feeds = list(feeder)
    assert samples.asked == [[32, 33, 34, 35, 39], [42, 43, 44, 45, 49]]
    assert feeds[1]("x", Box((4,), (6,))).tolist() == [44, 45]


@pytest.mark.parametrize("resumed", [0, 1, 7, 12])
def test_resumed_is_unbroken(resumed):
    inputs = [("x", Box((1, 0, 0), (5, 4, 3))), ("label", Box((0,), (9,)))]
    with Feeder(DATASET, inputs, 9, 0, 13) as feeder:
        unbroken = [[feed(*asked) for asked in inputs] for feed in feeder]
    assert len(unbroken) == 13
    with Feeder(DATASET, inputs, 9, resumed, 13 - resumed) as feeder:
        for feed, expected in zip(feeder, unbroken[resumed:], strict=True):
            for asked, array in zip(inputs, expected, strict=True):
                np.testing.assert_array_equal(feed(*asked), array)


def test_two_steps_are_made_ahead_and_no_more():
    samples = Watched()
    with Feeder(watched(samples), [("x", Box((0,), (1,)))], 1, 0, 50) as feeder:
        for step in range(10):
            assert next(feeder)("x", Box((0,), (1,))).tolist() == [step]
            until = time.monotonic() + 10
            while len(samples.asked) < step + 3 and time.monotonic() < until:
                time.sleep(0.001)
            assert len(samples.asked) == step + 3
    assert threads() == []


def test_what_is_had_quickly_is_made_by_who_asks(monkeypatch: pytest.MonkeyPatch):
    """In the order of the steps, whoever makes them; what was slow is left to the thread until it is quick again."""
    makers: list[str] = []
    slow = {4, 5}

    class Told(Watched):
        def take(self, wanted):
            makers.append(threading.current_thread().name)
            if wanted["x"][0] in slow:
                time.sleep(0.3)
            return super().take(wanted)

    monkeypatch.setattr(feeding, "QUICK_SECONDS", 0.2)
    samples = Told()
    with Feeder(watched(samples), [("x", Box((0,), (1,)))], 1, 0, 12) as feeder:
        fed = []
        for feed in feeder:
            fed.append(feed("x", Box((0,), (1,))).item())
            while feeder.is_busy:
                time.sleep(0.001)
    assert fed == list(range(12)) and samples.asked == [[n] for n in range(12)]
    # the first may be done before there is a second
    assert [name.startswith("castile samples") for name in makers[2:]] == [n in (5, 6) for n in range(2, 12)]


def test_waiting_is_counted():
    samples = Watched()
    samples.leave.clear()
    with Feeder(watched(samples), [("x", Box((0,), (1,)))], 1, 0, 3) as feeder:
        assert feeder.waited_seconds == 0
        timer = threading.Timer(0.05, samples.leave.set)
        timer.start()
        next(feeder)
        timer.join()
        first = feeder.waited_seconds
        assert first > 0
        list(feeder)
        assert feeder.waited_seconds >= first


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (ValueError("file x is cut short"), ValueError, "^samples of step 4: file x is cut short$"),
        (MemoryError("no room"), MemoryError, "^samples of step 4: no room$"),
        (FileNotFoundError(2, "No such file", "a.bin"), UserError, "^samples of step 4: a.bin: No such file$"),
        (KeyError("x"), RuntimeError, "^samples of step 4: KeyError: 'x'$"),
    ],
)
def test_errors_come_to_the_caller_with_their_cause(error, kind, words):
    with Feeder(watched(Watched(3, error)), [("x", Box((0,), (1,)))], 1, 0, 9) as feeder:
        assert [next(feeder)("x", Box((0,), (1,))).tolist() for _ in range(3)] == [[0], [1], [2]]
        with pytest.raises(kind, match=words) as caught:
            next(feeder)
        assert caught.value.__cause__ is error
        assert threads() == []
        with pytest.raises(StopIteration):
            next(feeder)


def test_the_thread_ends_with_an_error_of_the_step():
    with (
        pytest.raises(KeyError, match="step"),
        Feeder(watched(Watched()), [("x", Box((0,), (1,)))], 1, 0, 9) as feeder,
    ):
        next(feeder)
        raise KeyError("step")
    assert threads() == []


def test_a_feeder_that_is_closed_early_has_no_more_feeds():
    feeder = Feeder(watched(Watched()), [("x", Box((0,), (1,)))], 1, 0, 9)
    next(feeder)
    feeder.close()
    feeder.close()
    assert threads() == [] and list(feeder) == []


def test_a_box_that_was_not_asked_for_is_our_fault():
    with Feeder(DATASET, [("label", Box((3,), (5,)))], 9, 0, 1) as feeder, pytest.raises(AssertionError):
        next(feeder)("label", Box((2,), (5,)))


def test_an_iterator_is_read_ahead_while_it_is_asked(tmp_path):
    (tmp_path / "mine.py").write_text("def samples(seed, epoch):\n    yield from ({'x': n} for n in range(20))\n")
    d = data.load(f"iterator:file={tmp_path / 'mine.py'}", 0)
    with Feeder(d, [("x", Box((2,), (6,)))], 8, 0, 10) as feeder:
        for step, feed in enumerate(feeder):
            assert d.batch(0, 8)["x"].tolist() == list(range(8))
            assert feed("x", Box((2,), (6,))).tolist() == [n % 20 for n in range(step * 8 + 2, step * 8 + 6)]
