"""Learning-rate schedules: the laws that each must keep, whatever its settings, and how they are written."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import settings as tried
from hypothesis import strategies as st

from castile.launch.typed import rates, settings
from tests.effort import examples

names = st.sampled_from(rates.available())
lengths = st.one_of(st.integers(0, 40), st.floats(0, 0.99, allow_subnormal=False))


@st.composite
def schedules(draw):
    """Text of a schedule with any of its settings, and what they are."""
    name = draw(names)
    taken = settings.names(rates._functions()[name], ("step", "num_steps"))
    given = {k: draw(st.floats(0, 1)) if k == "floor" else draw(lengths) for k in taken if draw(st.booleans())}
    return name + (":" + ",".join(f"{k}={v!r}" for k, v in given.items()) if given else ""), given


def shares(text, num_steps):
    rate = rates.parse(text).rates(1.0, num_steps)
    return [rate(step) for step in range(num_steps)]


def steps_of(length, num_steps):
    """A length as it is written: in steps, or below 1 as a share of the run."""
    return length if length >= 1 else round(length * num_steps)


def warm_up(given, num_steps):
    return steps_of(given.get("warmup", 0), num_steps)


def test_each_is_found_by_its_name():
    assert {"constant", "linear", "cosine", "wsd"} <= set(rates.available())


@given(schedules(), st.integers(1, 200))
def test_rates_are_between_nothing_and_the_peak(drawn, num_steps):
    assert all(0 <= share <= 1 for share in shares(drawn[0], num_steps))


@given(schedules(), st.integers(1, 200))
def test_the_warm_up_climbs_in_equal_steps_to_the_peak(drawn, num_steps):
    text, given = drawn
    warm = warm_up(given, num_steps)
    found = shares(text, num_steps)
    # Where the run ends within its warm-up there is nothing but the climb.
    assert found[0] == pytest.approx(1 / max(warm, 1))
    assert found[: min(warm, num_steps)] == pytest.approx([(n + 1) / warm for n in range(min(warm, num_steps))])
    if warm <= num_steps:
        assert max(found) == 1


@given(schedules(), st.integers(2, 200))
def test_after_the_warm_up_rates_only_fall_and_end_at_the_floor(drawn, num_steps):
    text, given = drawn
    found = shares(text, num_steps)
    after = found[max(warm_up(given, num_steps) - 1, 0) :]
    assert all(later <= earlier for earlier, later in pairwise(after))
    lasting = text.startswith("constant") or (
        text.startswith("wsd") and steps_of(given.get("decay", 0.2), num_steps) == 0
    )
    if len(after) > 1 and not lasting:
        assert found[-1] == pytest.approx(given.get("floor", 0), abs=1e-15)
    elif len(after) > 1:
        assert found[-1] == 1


@tried(max_examples=examples(100))
@given(schedules(), st.integers(2, 200))
def test_rates_are_continuous(drawn, num_steps):
    # In a run of many times the steps, with lengths many times as long, one step changes as many times less.
    text, given = drawn
    fine, name = 400, text.partition(":")[0]
    longer = {k: v * fine if k != "floor" and v >= 1 else v for k, v in given.items()}
    rate = rates.Schedule(name, rates._functions()[name], longer).rates(1.0, num_steps * fine)
    jumps = [abs(rate(step + 1) - rate(step)) for step in range(0, num_steps * fine - 1, 7)]
    lengths = [longer.get("warmup", 0), longer.get("decay", 0.2) if name == "wsd" else 0]
    if all(length == 0 or steps_of(length, num_steps * fine) >= fine for length in lengths):
        assert max(jumps) <= math.sqrt(1 / fine) + 1e-9


@given(schedules(), st.integers(1, 200), st.data())
def test_a_resumed_run_goes_on_as_the_unbroken_one(drawn, num_steps, data):
    text = drawn[0]
    start = data.draw(st.integers(0, num_steps - 1))
    again = rates.parse(text).rates(0.3, num_steps)
    assert [again(step) for step in range(start, num_steps)] == [0.3 * share for share in shares(text, num_steps)][
        start:
    ]


def test_a_share_is_as_many_steps():
    assert shares("cosine:warmup=0.1,floor=0.2", 200) == shares("cosine:warmup=20,floor=0.2", 200)
    assert shares("wsd:decay=0.25", 40) == shares("wsd:decay=10", 40)


def test_wsd_keeps_the_peak_until_its_last_steps():
    found = shares("wsd:warmup=5,decay=10", 50)
    assert found[4:40] == [1.0] * 36 and found[40] < 1 and found[-1] == 0


@pytest.mark.parametrize(
    "text, told",
    [
        ("cosin", r"no schedule 'cosin' \(did you mean 'cosine'"),
        ("parse", r"no schedule 'parse'"),
        ("cosine:warm=3", r"schedule cosine has no setting 'warm' \(did you mean 'warmup'"),
        ("constant:floor=0.1", r"schedule constant has no setting 'floor'"),
        ("cosine:warmup=-1", r"schedule cosine: warmup should be a number of at least 0, got -1"),
        ("cosine:floor=1.5", r"floor is a share of the peak and should be at most 1, got 1.5"),
        ("linear:warmup=nan", r"setting 'warmup' should be a finite number, got 'nan'"),
        ("linear:warmup=2.5", r"warmup should be whole steps or a share below 1, got 2.5"),
        ("wsd:decay=much", r"setting 'decay' should be a number, got 'much'"),
        ("wsd:step=3", r"no setting 'step'"),
    ],
)
def test_what_makes_no_sense_is_told(text, told):
    with pytest.raises(ValueError, match=told):
        rates.parse(text)


def test_a_function_of_the_users_own_says_the_shares(tmp_path):
    path = tmp_path / "drop it.py"
    path.write_text("def share(step, num_steps, late: float = 0.5): return 1 if step < late * num_steps else 0.25")
    assert [rates.parse(str(path)).rates(2.0, 4)(step) for step in range(4)] == [2.0, 2.0, 0.5, 0.5]
    assert [rates.parse(f"{path}:late=0.25").rates(2.0, 4)(step) for step in range(4)] == [2.0, 0.5, 0.5, 0.5]
    with pytest.raises(ValueError, match=r"has no setting 'lat' \(did you mean 'late'"):
        rates.parse(f"{path}:lat=1")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", r"schedule file .*mine\.py has no function share\(step, num_steps\)"),
        ("def share(step, num_steps): return -1", r"share\(2, 9\) gives -1: a share of the peak is a finite number"),
        ("def share(step, num_steps): return float('nan')", r"share\(2, 9\) gives nan: a share of the peak"),
        ("def share(step, num_steps): return float('inf')", r"share\(2, 9\) gives inf: a share of the peak"),
        ("def share(step, num_steps): return 1 / (step - 2)", r"share\(2, 9\) failed: ZeroDivisionError.*\(line 1\)"),
        ("def share(step, num_steps): return 'much'", r"share\(2, 9\) failed: ValueError"),
        ("def share(step", r"schedule file .*mine\.py: SyntaxError"),
    ],
)
def test_faults_of_the_users_own_are_told(text, words, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(text)
    with pytest.raises(ValueError, match=words) as caught:
        rates.parse(str(path)).rates(1.0, 9)(2)
    assert "\n" not in str(caught.value)
