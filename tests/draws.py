"""Draws that are asked for again and again, each made once: to make one and look through it takes longer than to draw.

They know nothing of what is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from hypothesis import strategies as st


@cache
def among(values: tuple[Any, ...]) -> st.SearchStrategy[Any]:
    """One of the values."""
    return st.sampled_from(values)


@cache
def some(values: tuple[Any, ...], most: int | None = None) -> st.SearchStrategy[list[Any]]:
    """Different ones of the values, at most so many, in any order."""
    return st.lists(among(values), max_size=most, unique=True)


@cache
def ordered(values: Sequence[Any]) -> st.SearchStrategy[list[Any]]:
    """All of the values in any order."""
    return st.permutations(values)
