"""On how many examples laws are tried that take long: a quarter by default, on all where LAWS is "whole"."""

import os
from collections.abc import Sequence
from math import ceil
from typing import TypeVar

T = TypeVar("T")

_WHOLE = os.environ.get("LAWS", "") == "whole"
_SHARE = 0.25
# Where there are few anyway, or none may be left of which the law has something to say.
_LEAST = 10


def examples(whole: int) -> int:
    """So many of the examples that are the whole proof of a law."""
    return whole if _WHOLE else min(whole, max(ceil(_SHARE * whole), _LEAST))


def some(whole: Sequence[T]) -> list[T]:
    """So many of those on which a law is proved, from the first on as far from each other as they can be."""
    count = examples(len(whole))
    return [whole[n * len(whole) // count] for n in range(count)]


def rare(*values: T) -> list[T]:
    """Those on which a law is tried where it is proved on all, beside others on which it always is."""
    return list(values) if _WHOLE else []
