"""The cost model: seconds for a cost key, from measurements where there are any, and the word which it was.

It does not know tasks, operators or kernels; a transfer is a cost key with a link, all else runs on one processor.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
from scipy.optimize import nnls

from castile.planner.snapshot import Measured, Snapshot
from castile.runtime import collectives
from castile.runtime.machine import Machine, Processor
from castile.runtime.task import CostKey
from castile.runtime.timeline import PICOSECONDS

# Measured neighbours stand at most this far apart in work; between farther ones a chord on log-log paper misleads.
NEIGHBOUR_RATIO = 4.0
# Neighbours do alike work: their flops a byte differ from the key's by at most this factor.
INTENSITY_RATIO = 1.5
# A learned cost may beat the roofline (caches), but not beyond belief.
FLOOR = 0.1
# The weight of what the class of a family says beside one measurement of the family itself.
PRIOR_WEIGHT = 1e-3
# Stands for an overhead or a latency of zero, which no factor could correct.
SMALL_SECONDS = 1e-6

G = TypeVar("G", bound=Hashable)
Terms = tuple[float, float, float]
Family = tuple[str, str, str, int]


class Priced(NamedTuple):
    """Seconds, and their source: "measured", "interpolated", "learned" or "roofline"."""

    seconds: float
    source: str


class CostModel:
    """Prices cost keys on a machine with what a snapshot holds; a pure function of the two.

    In this order: the key's own measurement; measured neighbours of its family (name, dtype, link, members), between
    which seconds never fall as the work grows; corrections of the roofline's terms (overhead or latency, flops, bytes)
    learned for the family, else for its class (a pass, or a transfer form on a link), else for all kernels or all
    transfers of the link; the roofline itself (Williams et al. 2009), on the slowest kind of processor. A kernel that
    reads in strides and was not measured costs as much as on unbroken arrays, times what strides cost its family.
    Kernels' prices include the snapshot's overhead a task, which measured spans leave out.
    """

    def __init__(self, machine: Machine, snapshot: Snapshot | None = None) -> None:
        self.machine = machine
        self._processors = tuple(dict.fromkeys(machine.processors))
        self._overhead = snapshot.overhead_seconds if snapshot else 0.0
        rows = snapshot.rows if snapshot else ()
        self._measured = {row.key: row.seconds for row in rows}
        self._terms = {row.key: self._basis(row.key) for row in rows if self._is_here(row.key)}
        here = [row for row in rows if row.key in self._terms]
        self._general = {group: self._factor(of) for group, of in _grouped(here, lambda key: key.link).items()}
        self._classes = {group: self._factor(of) for group, of in _grouped(here, class_of).items()}
        families = _grouped(here, family_of)
        self._families = {family: self._fit(of) for family, of in families.items()}
        self._curves = {family: self._curve(of) for family, of in families.items()}
        self._memo: dict[CostKey, Priced] = {}
        self._slower = {family: self._stride_factor(of) for family, of in families.items() if of[0].key.dense}

    def seconds(self, key: CostKey) -> Priced:
        """What a task of that key takes. Raises ValueError where the machine has no such link."""
        if key not in self._memo:
            self._memo[key] = self._price(key)
        return self._memo[key]

    def picoseconds(self, keys: Sequence[CostKey]) -> np.ndarray:
        """int64[K], at least 1 each: the durations that the simulator takes."""
        seconds = np.fromiter((self.seconds(key).seconds for key in keys), np.float64, len(keys))
        return np.maximum(1, np.rint(seconds * PICOSECONDS)).astype(np.int64)

    def sources(self, keys: Iterable[CostKey]) -> dict[str, int]:
        """How many of the keys each source prices."""
        return dict(Counter(self.seconds(key).source for key in keys))

    def roofline(self, key: CostKey) -> float:
        """Seconds by the machine's figures alone: max(flops/rate, bytes/bandwidth) + overhead, or alpha + n/beta."""
        fixed, flops, nbytes = self.terms(key)
        return fixed + (flops + nbytes if key.link else max(flops, nbytes))

    def terms(self, key: CostKey) -> Terms:
        """The roofline's terms, seconds: (overhead or latencies, flops over their rate, bytes over bandwidth)."""
        if key.link:
            return transfer_terms(self.machine, key)
        return max((_kernel_terms(p, key) for p in self._processors), key=lambda t: t[0] + max(t[1], t[2]))

    def _basis(self, key: CostKey) -> Terms:
        """The terms that corrections scale; a machine that states no overhead or latency may well have one."""
        fixed, flops, nbytes = self.terms(key)
        return (fixed or SMALL_SECONDS, flops, nbytes)

    def _price(self, key: CostKey) -> Priced:
        overhead = 0.0 if key.link else self._overhead
        if key in self._measured:
            return Priced(self._measured[key] + overhead, "measured")
        if dense := key.dense:
            price = self.seconds(dense)
            slower = self._slower.get(family_of(key), 1.0)
            return Priced(price.seconds * slower, price.source if price.source == "roofline" else "learned")
        if between := self._interpolate(key):
            return Priced(between + overhead, "interpolated")
        roofline = self.roofline(key)
        scales = self._scales(key)
        if scales is None:
            return Priced(roofline, "roofline")
        learned = sum(scale * term for scale, term in zip(scales, self._basis(key), strict=True))
        return Priced(max(learned, FLOOR * roofline) + overhead, "learned")

    def _stride_factor(self, rows: list[Measured]) -> float:
        """By how much reading in strides makes a kernel slower: the geometric mean over what was measured."""
        ratios = [row.seconds / self.seconds(dense).seconds for row in rows if (dense := row.key.dense)]
        return math.exp(sum(map(math.log, ratios)) / len(ratios))

    def _is_here(self, key: CostKey) -> bool:
        """Whether the machine has the links that were measured; a smaller one may not."""
        return not key.link or any(level.name == key.link for level in self.machine.levels)

    def _scales(self, key: CostKey) -> Terms | None:
        if family := self._families.get(family_of(key)):
            return family
        factor = self._classes.get(class_of(key)) or self._general.get(key.link)
        return (factor, factor, factor) if factor else None

    def _factor(self, rows: list[Measured]) -> float:
        """The geometric mean of measured over modelled seconds."""
        return math.exp(sum(math.log(row.seconds / sum(self._terms[row.key])) for row in rows) / len(rows))

    def _fit(self, rows: list[Measured]) -> Terms:
        """Scales of the three terms: non-negative least squares of relative errors, drawn to the class's factor.

        Seconds = a + b flops + c bytes in other words; the pull decides what the sizes at hand leave open.
        """
        prior = self._classes[class_of(rows[0].key)]
        terms = np.array([self._terms[row.key] for row in rows]) / np.array([[row.seconds] for row in rows])
        pull = np.eye(3) * math.sqrt(PRIOR_WEIGHT) / prior
        target = np.concatenate([np.ones(len(rows)), np.full(3, math.sqrt(PRIOR_WEIGHT))])
        scales, _ = nnls(np.concatenate([terms, pull]), target)
        return (float(scales[0]), float(scales[1]), float(scales[2]))

    def _curve(self, rows: list[Measured]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """A family's (log work, log seconds, log intensity), ascending in work, seconds made monotone in it."""
        points: dict[float, list[tuple[float, float]]] = defaultdict(list)
        for row in rows:
            if (size := sum(self._terms[row.key][1:])) > 0:
                points[math.log(size)].append((math.log(row.seconds), _intensity(row.key)))
        work = np.array(sorted(points))
        means = np.array([np.mean(points[w], axis=0) for w in work]).reshape(-1, 2)
        weights = np.array([len(points[w]) for w in work], dtype=float)
        return work, isotonic(means[:, 0], weights), means[:, 1]

    def _interpolate(self, key: CostKey) -> float | None:
        """Seconds by the measured neighbours in work, or None where the key does not stand between two."""
        work, seconds, intensity = self._curves.get(family_of(key), (np.zeros(0),) * 3)
        size = sum(self.terms(key)[1:])
        if len(work) == 0 or size <= 0 or not work[0] <= (x := math.log(size)) <= work[-1]:
            return None
        upper = int(np.searchsorted(work, x))
        lower = upper if work[upper] == x else upper - 1
        apart = np.abs(intensity[[lower, upper]] - _intensity(key)).max()
        if work[upper] - work[lower] > math.log(NEIGHBOUR_RATIO) or apart > math.log(INTENSITY_RATIO):
            return None
        return math.exp(float(np.interp(x, work[lower : upper + 1], seconds[lower : upper + 1])))


def transfer_terms(machine: Machine, key: CostKey) -> Terms:
    """(latencies, 0, bytes over bandwidth) of a transfer over its link, seconds: the two parts of its alpha-beta time.

    The formulas of the forms are those by which transfers were chosen (`castile.runtime.collectives.seconds`). A link
    that a node shares is divided among the groups that cross it at once, if the members lie evenly on the nodes.
    """
    level = machine.level(key.link)
    form = key.name.partition(".")[0]
    latencies = collectives.seconds(form, 0, key.members, level)
    below = [other.group for other in machine.levels if other.group < level.group]
    nodes = machine.num_procs / (below[-1] if below else 1)
    crossing = max(1.0, level.shared_by / math.ceil(key.members / nodes))
    return (latencies, 0.0, (collectives.seconds(form, key.nbytes, key.members, level) - latencies) * crossing)


def family_of(key: CostKey) -> Family:
    """Keys that differ only in size."""
    return (key.name, key.dtype, key.link, key.members)


def class_of(key: CostKey) -> tuple[str, str]:
    """The pass of a kernel (what follows the last dot of its name), or a transfer's form and link."""
    return (key.name.partition(".")[0] if key.link else key.name.rpartition(".")[2], key.link)


def isotonic(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The nearest never-falling sequence in weighted least squares (pool adjacent violators: Ayer et al. 1955)."""
    pools: list[list[float]] = []
    for value, weight in zip(values.tolist(), weights.tolist(), strict=True):
        pools.append([value, weight, 1])
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (v, w, n), (v0, w0, n0) = pools.pop(), pools.pop()
            pools.append([(v * w + v0 * w0) / (w + w0), w + w0, n + n0])
    return np.repeat([pool[0] for pool in pools], [int(pool[2]) for pool in pools])


def _kernel_terms(processor: Processor, key: CostKey) -> Terms:
    return (processor.task_overhead_seconds, key.flops / processor.flops_rate(key.dtype),
            key.nbytes / processor.bytes_per_second)  # fmt: skip


def _intensity(key: CostKey) -> float:
    return math.log((key.flops + 1) / (key.nbytes + 1))


def _grouped(rows: Iterable[Measured], group_of: Callable[[CostKey], G]) -> dict[G, list[Measured]]:
    groups: dict[G, list[Measured]] = defaultdict(list)
    for row in rows:
        groups[group_of(row.key)].append(row)
    return dict(groups)
