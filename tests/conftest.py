"""What all tests share: hypothesis profiles, an environment that each leaves as it was, what tests tell at the end."""

import gc
import os
import signal
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import hypothesis
import pytest

from castile.launch.processes.mpi_settings import THREAD_VARIABLES
from castile.runtime import garbage
from tests.effort import examples

# As a command does it before NumPy is imported: sums are those of one thread, whichever tests run.
for name in THREAD_VARIABLES:
    os.environ.setdefault(name, "1")
# What a script starts in the background is to ignore Ctrl-C, what `nohup` starts that a terminal closes, and so are
# their children; tests send both.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

# What does not say on how many examples it is tried.
DRAWN = examples(100, 1 / 2)
hypothesis.settings.register_profile("castile", deadline=None, print_blob=True, derandomize=True, max_examples=DRAWN)
hypothesis.settings.register_profile("wide", deadline=None, print_blob=True, max_examples=1000)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "castile"))


# Machines of this host have up to so many processors in tests.
MOST_RANKS = 8


def has_gpu() -> bool:
    """Whether CuPy is installed and sees a device."""
    try:
        import cupy

        return cupy.cuda.runtime.getDeviceCount() > 0
    except Exception:
        return False


@pytest.fixture(autouse=True)
def environment_as_it_was() -> Iterator[None]:
    """Commands and libraries set variables of their process, which is that of all tests: none sees another's."""
    before = dict(os.environ)
    yield
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)


@pytest.fixture(autouse=True, scope="session")
def nobodys_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test finds or leaves anything in the folders of whoever runs them; figures of this host lie in these."""
    # NumPy, which comes with it, is to find the variables above.
    from tests import homes

    with pytest.MonkeyPatch.context() as patch:
        for name, value in homes.make(tmp_path_factory.mktemp("home"), MOST_RANKS).items():
            patch.setenv(name, value)
        yield


@pytest.fixture(autouse=True, scope="session")
def no_word_of_compiling() -> Iterator[None]:
    """Whether a command in this process has loops to compile depends on the tests before: it says nothing of them."""
    from castile.launch.here import compiling

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiling, "PATIENCE_SECONDS", 3600.0)
        yield


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    """The variables of a user's folder of this test's own, in which this host is measured."""
    from tests import homes

    return homes.make(tmp_path / "home")


@pytest.fixture
def alone(home: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """This process as a user of its own, in a folder of its own."""
    for name, value in home.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def set_aside() -> Iterator[None]:
    """What other tests left, millions of objects, is not looked through where this one looks for garbage."""
    with garbage.set_aside():
        yield


@pytest.fixture
def tell(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """Says a line at the end of the run, whatever process the test runs in."""
    return lambda text: record_property("told", text)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [r for group in terminalreporter.stats.values() for r in group if getattr(r, "when", "") == "call"]
    told = sorted(str(text) for r in reports for name, text in r.user_properties if name == "told")
    if told:
        terminalreporter.section("told by tests")
    for line in told:
        terminalreporter.write_line(line)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is collected stays to the end: meanwhile no rings are looked for in half a million objects.

    Nor later as often as by default: to look through all of them took a fifth of the tests' time, and where all were
    looked through seven times as often as now, one worker still spent 69 of 980 seconds on it.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.set_threshold(20_000, 10, 50)
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    wanting = [item for item in items if item.get_closest_marker("gpu")]
    if wanting and not has_gpu():
        for item in wanting:
            item.add_marker(pytest.mark.skip(reason="needs a GPU that CuPy sees"))
