"""Installing: the line that brings a missing package into the environment that castile runs in.

It does not know what is missing.
"""

import shlex
import sys


def line(what: str) -> str:
    """What to type; it names this environment's Python, as the shell's own `pip` may belong to another."""
    return f"{shlex.quote(sys.executable)} -m pip install {shlex.quote(what)}"
