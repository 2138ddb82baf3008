"""On what laws are tried that take long: a part of the examples and cases by default, all where LAWS is "whole"."""

import os
from collections.abc import Sequence
from math import ceil
from typing import TypeVar

T = TypeVar("T")

_WHOLE = os.environ.get("LAWS", "") == "whole"
_SHARE = 0.25
# Where there are few anyway, or none may be left of which the law has something to say.
_LEAST = 10


def examples(whole: int, share: float = _SHARE) -> int:
    """So many of the examples that are the whole proof of a law."""
    return whole if _WHOLE else min(whole, max(ceil(share * whole), _LEAST))


def some(whole: Sequence[T]) -> list[T]:
    """So many of those on which a law is proved, from the first on as far from each other as they can be."""
    count = examples(len(whole))
    return [whole[n * len(whole) // count] for n in range(count)]


def rare(*values: T) -> tuple[T, ...]:
    """Those on which a law is proved too where it is tried on all; else none, as others stand for them."""
    return values if _WHOLE else ()
