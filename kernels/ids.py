"""Integers that number rows or classes: those that are out of range are refused.

They do not know what they stand for.
"""

import numpy as np


class OutOfRange(IndexError):
    """An integer among the data lies outside what it numbers."""


def check_ids(what: str, ids: np.ndarray, length: int) -> None:
    if ids.size and not (0 <= ids.min() and ids.max() < length):
        raise OutOfRange(f"{what}: an integer lies outside 0 to {length - 1}")
