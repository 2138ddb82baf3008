"""The test suite in a fresh clone, set-up included, without PyTorch.

It does not know the tests.
"""

from __future__ import annotations

import re

from benchmarks.figures import Figure
from benchmarks.place import Place

SECONDS = 15 * 60
# The exit status of pytest where whole files were skipped and no test is left.
ALL_SKIPPED = 5


def suite(place: Place) -> list[Figure]:
    """`make test`: all of it."""
    if not place.with_tests:
        return [Figure("suite_seconds", None, most=SECONDS, note="it takes minutes: give --with-tests")]
    clone = place.clone
    ran = place.run("make", "test", f"PYTHON={clone.python}", user="suite", timeout=2 * SECONDS, cwd=clone.folder)
    counts = {what: sum(map(int, re.findall(rf"(\d+) {what}", ran.out))) for what in ("passed", "failed", "error")}
    note = ", ".join(f"{count} {what}" for what, count in counts.items())
    return [
        Figure("suite_seconds", clone.installation_seconds + ran.seconds, most=SECONDS, note=note),
        Figure("suite_status", ran.status, most=0, note="" if ran.status == 0 else ran.tail),
    ]


def torch_free(place: Place) -> list[Figure]:
    """Without PyTorch the tests that compare with it skip with a reason, and nothing fails."""
    clone = place.clone
    python = str(clone.folder / ".venv" / "bin" / "python")
    has_torch = place.run(python, "-c", "import torch", cwd=clone.folder).status == 0
    place.run("make", ".venv/.castile-test", f"PYTHON={clone.python}", cwd=clone.folder).ok()
    files = [path.name for path in sorted((clone.folder / "tests").glob("test_*.py")) if "torch" in path.read_text()]
    words = ("-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", *(f"tests/{name}" for name in files))
    ran = place.run(python, *words, user="suite", cwd=clone.folder)
    if ran.status not in (0, ALL_SKIPPED):
        ran.ok()
    reasons = re.findall(r"(?m)^SKIPPED \[\d+\] [^:]+(?::\d+)?: .*torch.*$", ran.out, re.IGNORECASE)
    return [
        Figure("torch_free_environment_has_torch", float(has_torch), most=0),
        Figure("torch_free_num_skips_with_reason", len(reasons), least=1, note=", ".join(files)),
    ]
