"""Integers that stand for rows or classes: what is out of range is refused.

They do not know what they stand for.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

Definition = TypeVar("Definition", bound=Callable[..., Any])


class OutOfRange(IndexError):
    """An integer among the data lies outside what it numbers."""


def check_ids(what: str, ids: np.ndarray, length: int) -> None:
    if ids.size and not (0 <= ids.min() and ids.max() < length):
        raise OutOfRange(f"{what}: an integer lies outside 0 to {length - 1}")


def numbers(word: str) -> Callable[[Definition], Definition]:
    """Mark a definition whose integers number as many things as that parameter says."""

    def mark(definition: Definition) -> Definition:
        setattr(definition, "numbers", word)
        return definition

    return mark
