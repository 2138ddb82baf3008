"""What is left out of the search for garbage: by whoever sets it aside first, and no longer than that.

Each in a process of its own: to count what thousands of tests left takes seconds.
"""

import subprocess
import sys

import pytest

from tests.effort import rare

BEGIN = """
import gc
from castile.runtime.garbage import is_frozen, set_aside, uncollected
there = [[n] for n in range(5000)]
"""
# What one may do while others have set objects aside, after which these are as they were.
USES = {
    "set_aside": "with set_aside():\n    assert is_frozen()",
    "uncollected": "with uncollected():\n    assert not gc.isenabled()",
}
HOW = {
    "by nobody": "",
    "by others": "gc.freeze()",
    "here": "aside = set_aside(); aside.__enter__()",
}


@pytest.mark.parametrize("collects", [True, *rare(False)])
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("use", USES)
def test_the_search_for_garbage_is_left_as_it_was(use: str, how: str, collects: bool) -> None:
    program = [
        BEGIN, "" if collects else "gc.disable()", HOW[how], "was = gc.get_freeze_count() > 2000", USES[use],
        f"assert (gc.get_freeze_count() > 2000) == was == is_frozen() == {how != 'by nobody'}",
        f"assert gc.isenabled() == {collects}",
    ]  # fmt: skip
    if how == "here":
        program.append("aside.__exit__(None, None, None); assert not is_frozen() and gc.get_freeze_count() < 2000")
    ran = subprocess.run([sys.executable, "-c", "\n".join(program)], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
