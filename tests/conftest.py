"""What all tests share: hypothesis profiles, what tests tell at the end, a reason for each that misses a GPU."""

import os
from collections.abc import Callable

import hypothesis
import pytest

hypothesis.settings.register_profile("castile", deadline=None, print_blob=True, derandomize=True)
hypothesis.settings.register_profile("wide", deadline=None, print_blob=True, max_examples=1000)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "castile"))


def has_gpu() -> bool:
    """Whether CuPy is installed and sees a device."""
    try:
        import cupy

        return cupy.cuda.runtime.getDeviceCount() > 0
    except Exception:
        return False


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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    wanting = [item for item in items if item.get_closest_marker("gpu")]
    if wanting and not has_gpu():
        for item in wanting:
            item.add_marker(pytest.mark.skip(reason="needs a GPU that CuPy sees"))
