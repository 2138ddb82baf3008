"""A part of pytest (`-p benchmarks.gpu.verdicts`): what is known is not tested again, and all ends when time is up.

How each test ends is kept in the record, and that it began, as one that hangs has no end. A process whose device has
failed ends with the test in which it did, so that others do not fail for that; xdist begins another. It does not know
what is tested.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import record, sources
from benchmarks.gpu.record import Finding

ERRAND = "check"
OUT_OF_TIME = "no time was left"
# A process ends with this status where its device has failed; pytest's own are below.
LOST = 77
_DIGEST, _KERNEL = pytest.StashKey[str](), pytest.StashKey[str]()
_FAILED, _SKIPPED = pytest.StashKey[str](), pytest.StashKey[str]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record", type=Path, help="the file of findings")
    parser.addoption("--lines", type=int, help="its length at the beginning: all processes are to see the same tests")
    parser.addoption("--until", type=float, help="seconds since 1970 from which on no test begins")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what is known, whether it passed or failed: it would end as it did."""
    known = record.known(config.getoption("--record"), config.getoption("--lines"))
    kept, done = list[pytest.Item](), list[pytest.Item]()
    for item in items:
        kernel = _params(item).get("name", "")
        digest = sources.of_test(item.nodeid.split("::")[0], kernel)
        item.stash[_DIGEST], item.stash[_KERNEL] = digest, kernel
        found = known.get((ERRAND, item.nodeid, digest), {})
        (done if "failed" in found and not found["skipped"] else kept).append(item)
    items[:] = kept
    config.hook.pytest_deselected(items=done)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if _is_late(item):
        pytest.skip(OUT_OF_TIME)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    said = report.longrepr[-1] if isinstance(report.longrepr, tuple) else report.longreprtext.strip()
    if report.failed or report.skipped:
        item.stash[_FAILED if report.failed else _SKIPPED] = (said.splitlines() or [report.outcome])[-1][:300]
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    late = _is_late(item)
    _keep(item, {"kernel": item.stash[_KERNEL]} | ({} if late else {"begun": time.time()}))
    result = yield
    if not late:
        failed = item.stash.get(_FAILED, "")
        ended = {"failed": failed, "skipped": item.stash.get(_SKIPPED, "")}
        _keep(item, {"kernel": item.stash[_KERNEL]} | ended)
        if failed and _is_lost():
            # Without being asked for anything more: what is left of the test would fail, too.
            os._exit(LOST)
    return result


def _params(item: pytest.Item) -> dict[str, Any]:
    """Of what it is one of several."""
    return dict(item.callspec.params) if hasattr(item, "callspec") else {}


def _keep(item: pytest.Item, found: dict[str, Any]) -> None:
    finding = Finding(ERRAND, item.nodeid, item.stash[_DIGEST], found)
    record.add(item.config.getoption("--record"), finding)


def _is_late(item: pytest.Item) -> bool:
    return bool(time.time() > item.config.getoption("--until"))


def _is_lost() -> bool:
    """Whether the device takes nothing more from this process."""
    cupy = sys.modules.get("cupy")
    try:
        if cupy is not None:
            cupy.cuda.runtime.deviceSynchronize()
    except Exception:
        return True
    return False
