"""What is said of machines that are not here, beside what others measured on them.

It does not know how it is said.
"""

from __future__ import annotations

from benchmarks.figures import Figure
from benchmarks.place import Place


def published(place: Place) -> list[Figure]:
    """Steps of language models on 8 to 512 A100 and H100 by data sheets, beside what was published of them."""
    return place.benchmark("published", timeout=1800)
