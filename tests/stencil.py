"""The heat example for tests, and what it should compute, in plain NumPy."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np

_SPEC = importlib.util.spec_from_file_location("heat", Path(__file__).parents[1] / "docs" / "examples" / "heat.py")
assert _SPEC is not None and _SPEC.loader is not None
heat = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(heat)


def jacobi(plate: np.ndarray, sweeps: int) -> np.ndarray:
    """That many sweeps, the rim as it was; sums in the order in which the example adds."""
    for _ in range(sweeps):
        after = plate.copy()
        after[1:-1, 1:-1] = (plate[:-2, 1:-1] + plate[2:, 1:-1] + plate[1:-1, :-2] + plate[1:-1, 2:]) * 0.25
        plate = after
    return plate


def random_plate(height: int, width: int) -> np.ndarray:
    return np.random.default_rng(height).normal(size=(height, width))
