"""Measuring plans leaves a process as it was: what was made for it is gone, nobody else's garbage is looked for."""

import gc
import weakref
from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from castile.launch.measuring import measure
from castile.runtime.garbage import is_frozen, set_aside


class Ring:
    """Refers to itself."""

    def __init__(self) -> None:
        self.own = self


@pytest.fixture(autouse=True)
def collected_by_nobody_else() -> Iterator[None]:
    was = gc.isenabled()
    gc.disable()
    yield
    if was:
        gc.enable()


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("fails", [False, True])
def test_what_was_measured_is_free_and_what_was_there_is_left_alone(fails, frozen, monkeypatch):
    made: list[weakref.ref] = []

    def take_turns(*_) -> None:
        made.append(weakref.ref(Ring()))
        if fails:
            raise ValueError("too little memory")

    monkeypatch.setattr(measure, "_take_turns", take_turns)
    before = weakref.ref(Ring())
    with set_aside() if frozen else nullcontext():
        try:
            measure.measure(SimpleNamespace(backend="numpy"), [], lambda *_: None, 0.0, 1)
        except ValueError:
            assert fails
        assert [one() for one in made] == [None]
        assert before() is not None and is_frozen() == frozen
    assert not is_frozen()
    # Nobody but itself refers to it. (To look for garbage once more takes seconds after thousands of tests.)
    before().own = None
    assert before() is None
