"""How evaluating a plan grows with the machine, on up to 1,024 processors.

It does not know what is measured.
"""

from __future__ import annotations

import sys

from benchmarks.figures import Figure, read
from benchmarks.place import CHECKOUT, Place


def scale(place: Place) -> list[Figure]:
    """Lowering, folding and simulating a plan of GPT-3."""
    nodes = ("--nodes", "8", "32", "128")
    path = str(CHECKOUT / "benchmarks" / "scale.py")
    return read(place.run(sys.executable, path, *nodes, user="benchmarks", timeout=900).ok().out)
