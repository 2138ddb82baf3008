"""A made task in the form of drug screens: how a cell line grows under the doses of two drugs, described by features.

It does not know what is learned from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from scipy.special import expit

from castile.launch.data import Arrays, Dataset, Shown, split
from castile.runtime import rng

SHOWN: Shown = {
    "cell": ("cell.rnaseq", 0), "descriptors": ("drug1.descriptors", 0), "fingerprints": ("drug1.fingerprints", 0),
}  # fmt: skip

NUM_CELLS, NUM_DRUGS = 60, 100
# Of the hidden vectors whose products say how a cell takes a drug.
WIDTH = 4


@dataclass(frozen=True, eq=False)
class Described(Arrays):
    """Samples of which some columns hold numbers of rows of a table: the rows are looked up when they are taken."""

    tables: Mapping[str, np.ndarray] = field(default_factory=dict)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of one sample of each input."""
        return super().shapes | {name: table.shape[1:] for name, table in self.tables.items()}

    def take(self, wanted: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Rows of the samples of these numbers, looked up."""
        found = super().take(wanted)
        return {name: self.tables[name][rows] if name in self.tables else rows for name, rows in found.items()}


def load(
    seed: int,
    *,
    cell: int = 942,
    descriptors: int = 5270,
    fingerprints: int = 2048,
    samples: int = 20_000,
    held_out: float = 0.05,
) -> Dataset:
    """cell.rnaseq [cell], drug1 and drug2 .descriptors and .fingerprints, dose1 and dose2 [1] from 0 to 1; growth [1].

    60 cells and 100 drugs are drawn by the seed: normal numbers, fingerprints 0 or 1. Hidden vectors made of their
    features say how much of a cell's growth, 1 without drugs, a dose takes away.
    held_out   the share of the samples, at least one
    """
    if min(cell, descriptors, fingerprints) < 1:
        raise ValueError(
            f"data set growth: cell {cell}, descriptors {descriptors} and fingerprints {fingerprints} "
            "should be at least 1"
        )
    train, rest = split(seed, "growth", samples, held_out)
    cells = rng.normal(seed, "growth cells", (NUM_CELLS, cell)).astype(np.float32)
    described = rng.normal(seed, "growth drugs", (NUM_DRUGS, descriptors)).astype(np.float32)
    printed = (rng.uniform(seed, "growth prints", (NUM_DRUGS, fingerprints)) < 0.5).astype(np.float32)
    takes = expit(_hidden(seed, "cells", cells) @ _hidden(seed, "drugs", described).T)
    which = np.floor(rng.uniform(seed, "growth pairs", (samples, 3)) * (NUM_CELLS, NUM_DRUGS, NUM_DRUGS)).astype(int)
    doses = rng.uniform(seed, "growth doses", (samples, 2))
    growth = 1 - (doses * takes[which[:, :1], which[:, 1:]]).sum(axis=1)
    tables = {"cell.rnaseq": cells}
    columns = {"growth": growth.astype(np.float32)[:, None], "cell.rnaseq": which[:, 0]}
    for n in (1, 2):
        drug = {f"drug{n}.descriptors": described, f"drug{n}.fingerprints": printed}
        columns |= {f"dose{n}": doses[:, n - 1 : n].astype(np.float32), **dict.fromkeys(drug, which[:, n])}
        tables |= drug
    return Dataset("growth", seed, Described(columns, train, tables=tables), Described(columns, rest, tables=tables))


def _hidden(seed: int, name: str, features: np.ndarray) -> np.ndarray:
    """Vectors [n, 4] of normal size made of features [n, m]."""
    directions = rng.normal(seed, f"growth {name} directions", (features.shape[1], WIDTH))
    return np.asarray(features @ directions / np.sqrt(features.shape[1]))
