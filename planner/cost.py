"""The cost model: predicts the seconds of a cost key from measurements, where there are any, and names its source.

A transfer is a cost key with a link; all other keys run on one processor. It does not know tasks, operators or kernels.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

import numpy as np

from castile.planner.costs import algorithms
from castile.planner.costs.algorithms import Way
from castile.planner.costs.snapshot import Measured, Snapshot
from castile.runtime.levels import level_name
from castile.runtime.machine import Machine, Processor
from castile.runtime.task import NUM_LANES, CostKey, TaskGraph
from castile.runtime.timeline import PICOSECONDS

# Interpolation is between measurements whose work differs by at most this factor: beyond it a straight line in log-log
# space misleads.
NEIGHBOUR_RATIO = 4.0
# And whose arithmetic intensity (flops a byte) differs from the key's by at most this factor.
INTENSITY_RATIO = 1.5
# A learned cost may be below the roofline (caches), but not below this share of it.
FLOOR = 0.1
# The weight of the class's factor beside one measurement, in the fit of a family's terms: times scatter by a third
# about a family's fit, and the families' factors by a factor of e about that of their class.
PRIOR_WEIGHT = 0.1
# Stands for an overhead or a latency of zero, which no factor could correct.
SMALL_SECONDS = 1e-6
# The longest task: a step of longer ones might overflow 63 bits of picoseconds.
LONGEST_SECONDS = 1e5

G = TypeVar("G", bound=Hashable)
Terms = tuple[float, float, float, float]
Family = tuple[str, str, str, int]
# The measurements of a family: (log work, log seconds, log intensity), ascending in work.
Curve = tuple[np.ndarray, np.ndarray, np.ndarray]


class Priced(NamedTuple):
    """Seconds, and their source: "measured", "compiled", "interpolated", "learned" or "roofline"."""

    seconds: float
    source: str


class CostModel:
    """Prices cost keys on a machine with the measurements of a snapshot: a pure function of the two.

    The first of these that there is:
    1. the key's own measurement, or the estimate from its compiled kernels where the snapshot's device never ran them;
    2. interpolation between measurements of its family (name, dtype, link, members), whose seconds are made monotone
       in work;
    3. the roofline's terms (overhead or latency, flops, rows and looks, bytes), each scaled by a factor learned for the
       family, else for its class (a pass, or a transfer form on a level), else for all kernels or all transfers of the
       level;
    4. the roofline itself (Williams et al. 2009): for a transfer that of the cheapest of the machine's algorithms,
       times the level's `step_factor`, by which transfers are slower in a step than alone.

    Transfers that begin together cost as much as one of all their bytes, plus seconds for each further one: the
    machine's figure until the family was measured. A kernel on strided arrays that was not measured costs as much as on
    contiguous ones, times the family's stride factor. The snapshot's overhead a task is added to kernels, as measured
    spans leave it out, and what was learned of meetings to transfers.

    Where processors are of several kinds, a kernel's price without a kind is that of the slowest. Measurements hold for
    the kind that the snapshot names as its device, or else for the slowest; prices of other kinds are in proportion to
    their rooflines.
    """

    def __init__(self, machine: Machine, snapshot: Snapshot | None = None) -> None:
        self.machine, self.snapshot = machine, snapshot
        measured_on = tuple(p for p in machine.kinds if snapshot and p.kind == snapshot.environment.device)
        self._processors = measured_on or machine.kinds
        self._overhead = snapshot.overhead_seconds if snapshot else 0.0
        self._meeting = snapshot.meeting_seconds if snapshot else 0.0
        self._own_source = "measured" if snapshot is None or snapshot.environment.was_run else "compiled"
        rows = snapshot.rows if snapshot else ()
        self._measured = {row.key: row.seconds for row in rows}
        self._terms = {row.key: self._basis(row.key) for row in rows if self._is_here(row.key)}
        here = [row for row in rows if row.key in self._terms]
        self._general = {
            group: self._factor(members) for group, members in _grouped(here, lambda key: level_name(key.link)).items()
        }
        self._classes = {group: self._factor(members) for group, members in _grouped(here, class_of).items()}
        families = _grouped(here, family_of)
        fits = {family: self._fit(members) for family, members in families.items()}
        self._families = {family: scales for family, (scales, _) in fits.items()}
        # seconds of each further transfer of several that begin together
        self._more_seconds = {family: more for family, (_, more) in fits.items()}
        # A curve is computed when a size is first interpolated: most families of a long history never are.
        self._rows, self._curves = families, dict[Family, Curve]()
        self._memo: dict[CostKey, Priced] = {}
        self._by_kind: dict[int | None, dict[CostKey, Priced]] = defaultdict(dict)
        self._stride_factors = {
            family: self._stride_factor(members) for family, members in families.items() if members[0].key.dense
        }

    def on(self, machine: Machine) -> CostModel:
        """The cost model of another machine with the same snapshot."""
        return CostModel(machine, self.snapshot)

    def seconds(self, key: CostKey, kind: int | None = None) -> Priced:
        """The price of a task.

        kind   the number of the kind of processor; None for the slowest
        Raises ValueError where the machine does not have the key's link.
        """
        if key.link or len(self.machine.kinds) == 1:
            return self._reference(key)
        known = self._by_kind[kind]
        if key not in known:
            known[key] = self._on(key, kind)
        return known[key]

    def picoseconds(self, keys: Sequence[CostKey], kind: int | None = None) -> np.ndarray:
        """int64[K], at least 1 each: the durations for the simulator.

        Raises ValueError where one is so long that sums could overflow.
        """
        seconds = np.fromiter((self.seconds(key, kind).seconds for key in keys), np.float64, len(keys))
        if seconds.max(initial=0.0) > LONGEST_SECONDS:
            longest = int(seconds.argmax())
            raise ValueError(
                f"{keys[longest].name} would take {seconds[longest]:.3g} s on machine {self.machine.name!r}, and what "
                f"takes more than {LONGEST_SECONDS:.0f} s is not simulated: take a smaller batch, or look at its "
                "figures, which are of a second"
            )
        return np.maximum(1, np.rint(seconds * PICOSECONDS)).astype(np.int64)

    def by_kind(self, graph: TaskGraph) -> tuple[TaskGraph, np.ndarray]:
        """A graph and its durations int64[K], each kernel on its own kind of processor; for simulation only.

        Where kinds differ, the graph has every cost key once a kind. It must not be collapsed.
        """
        num_kinds, keys = len(self.machine.kinds), graph.cost_keys
        if num_kinds == 1:
            return graph, self.picoseconds(keys)
        kind = self.machine.kind_of[graph.lanes[graph.lane_ptr[:-1]] // NUM_LANES]
        cost = (kind * len(keys) + graph.cost).astype(graph.cost.dtype)
        durations = np.concatenate([self.picoseconds(keys, n) for n in range(num_kinds)])
        return replace(graph, cost=cost, cost_keys=keys * num_kinds), durations

    def speeds(self, key: CostKey) -> np.ndarray:
        """float64[P]: each processor's speed at a kernel relative to the fastest, in which shares should be."""
        seconds = np.array([self.seconds(key, kind).seconds for kind in range(len(self.machine.kinds))])
        return (seconds.min() / seconds)[self.machine.kind_of]

    def way(self, key: CostKey) -> Way:
        """The cheapest algorithm of a transfer after corrections, with each level's times by the machine's figures.

        Raises ValueError where the machine does not have the key's link.
        """
        scales = self._scales(key) or (1.0,) * 4
        return min(algorithms.ways(self.machine, key), key=lambda way: _scaled(scales, _raised(_way_terms(way))))

    def sources(self, keys: Iterable[CostKey]) -> dict[str, int]:
        """The number of keys by the source of their price."""
        return dict(Counter(self.seconds(key).source for key in keys))

    def roofline(self, key: CostKey) -> float:
        """Seconds by the machine's figures alone: overhead plus the longer of flops/rate and bytes/bandwidth, or plus
        both where a processor does not overlap them; for a transfer those of the cheapest algorithm.
        """
        return algorithms.cheapest(self.machine, key).seconds if key.link else _slowest(self._processors, key)[0]

    def besides(self, key: CostKey) -> float:
        """Seconds that a task adds to a step beyond its measured span."""
        return self._meeting if key.link else self._overhead

    def terms(self, key: CostKey) -> Terms:
        """The roofline's terms in seconds: (overhead or latencies, flops over rate, rows and looks, bytes over
        bandwidth); several transfers count as one of all their bytes.
        """
        if key.link:
            return _way_terms(algorithms.cheapest(self.machine, key))
        return _slowest(self._processors, key)[1]

    def _reference(self, key: CostKey) -> Priced:
        """The price on the kind of processor that was measured."""
        if key not in self._memo:
            span = self._span(key)
            self._memo[key] = Priced(self._in_step(key, span), span.source)
        return self._memo[key]

    def _in_step(self, key: CostKey, span: Priced) -> float:
        """The seconds that a task adds to a step, from its span."""
        if span.source != "roofline":
            return span.seconds + self.besides(key)
        return span.seconds * (self.machine.level(key.link).step_factor if key.link else 1.0)

    def _on(self, key: CostKey, kind: int | None) -> Priced:
        """A kernel's price on a kind of processor, from that on the kind that was measured."""
        price, kinds = self._reference(key), self.machine.kinds
        there, _ = _slowest(kinds if kind is None else (kinds[kind],), key)
        here = self.roofline(key)
        ratio = there / here if here else 1.0
        source = price.source if ratio == 1 or price.source == "roofline" else "learned"
        return Priced(price.seconds * ratio, source)

    def _basis(self, key: CostKey) -> Terms:
        """The terms that corrections scale, with an overhead or latency above 0."""
        return _raised(self.terms(key))

    def _span(self, key: CostKey) -> Priced:
        """The span that measuring a task would show."""
        if key in self._measured:
            return Priced(self._measured[key], self._own_source)
        if dense := key.dense:
            seconds, source = self._span(dense)
            factor = self._stride_factors.get(family_of(key), 1.0)
            return Priced(seconds * factor, source if source == "roofline" else "learned")
        if between := self._interpolate(key):
            return Priced(between + self._more(key), "interpolated")
        roofline = self.roofline(key)
        scales = self._scales(key)
        if scales is None:
            return Priced(roofline, "roofline")
        basis = _raised(_way_terms(self.way(key))) if key.link else self._basis(key)
        learned = _scaled(scales, basis) + self._more(key)
        return Priced(max(learned, FLOOR * roofline), "learned")

    def _more(self, key: CostKey) -> float:
        """Seconds that several transfers take beyond one of all their bytes, as learned."""
        if key.num_begun == 1:
            return 0.0
        if (each := self._more_seconds.get(family_of(key))) is not None:
            return (key.num_begun - 1) * each
        scales = self._scales(key)
        return scales[0] * self._stated_more(key) if scales else 0.0

    def _stated_more(self, key: CostKey) -> float:
        """The same by the machine's figures alone."""
        return algorithms.cheapest(self.machine, key).more_seconds if key.link else 0.0

    def _stride_factor(self, rows: list[Measured]) -> float:
        """The factor by which strided arrays make a family's kernels slower: the geometric mean over measurements."""
        ratios = [row.seconds / self._span(dense).seconds for row in rows if (dense := row.key.dense)]
        return math.exp(sum(map(math.log, ratios)) / len(ratios))

    def _is_here(self, key: CostKey) -> bool:
        """Whether the machine has the link of a measured key: a smaller machine may not."""
        try:
            return not key.link or self.machine.spread(key.link, key.members) is not None
        except ValueError:
            return False

    def _scales(self, key: CostKey) -> Terms | None:
        if family := self._families.get(family_of(key)):
            return family
        factor = self._classes.get(class_of(key)) or self._general.get(level_name(key.link))
        return (factor,) * 4 if factor else None

    def _factor(self, rows: list[Measured]) -> float:
        """The geometric mean of measured over roofline seconds."""
        modelled = [sum(self._terms[row.key]) + self._stated_more(row.key) for row in rows]
        ratios = [row.seconds / seconds for row, seconds in zip(rows, modelled, strict=True)]
        return math.exp(sum(map(math.log, ratios)) / len(ratios))

    def _fit(self, rows: list[Measured]) -> tuple[Terms, float]:
        """Scales of a family's terms, and seconds of each further transfer of several that begin together.

        Non-negative least squares of relative errors of seconds = a + b flops + c rows + d bytes + e more, with a prior
        (ridge) at the class's factor, which decides what the measured sizes leave open. Without a prior for e where the
        machine states no seconds for further transfers.
        """
        # slow to import, and needed only where something was measured
        from scipy.optimize import nnls

        first, weight = rows[0].key, math.sqrt(PRIOR_WEIGHT)
        stated = self._stated_more(first.begun_with([first]))
        each = stated or SMALL_SECONDS
        more = [(row.key.num_begun - 1) * each for row in rows]
        terms = np.array([(*self._terms[row.key], n) for row, n in zip(rows, more, strict=True)])
        terms /= np.array([[row.seconds] for row in rows])
        wanted = weight * np.array([1, 1, 1, 1, bool(stated)])
        prior = np.diag(wanted / self._classes[class_of(first)])
        scales, _ = nnls(np.concatenate([terms, prior]), np.concatenate([np.ones(len(rows)), wanted]))
        a, b, c, d, e = scales.tolist()
        return (a, b, c, d), e * each

    def _curve(self, rows: list[Measured]) -> Curve:
        """A family's measurements with seconds made monotone in work; several transfers count as one."""
        points: dict[float, list[tuple[float, float]]] = defaultdict(list)
        for row in rows:
            if (size := self._size(row.key)) > 0:
                own = min(row.seconds, FLOOR * sum(self._terms[row.key]))
                seconds = max(row.seconds - self._more(row.key), own)
                points[math.log(size)].append((math.log(seconds), _intensity(row.key)))
        work = np.array(sorted(points))
        same_size = [points[w] for w in work.tolist()]
        # most sizes were measured once, and np.mean is slow
        means = np.array([p[0] if len(p) == 1 else np.mean(p, axis=0) for p in same_size]).reshape(-1, 2)
        weights = np.array([*map(len, same_size)], dtype=float)
        return work, isotonic(means[:, 0], weights), means[:, 1]

    def _size(self, key: CostKey) -> float:
        """The work in which a family's members differ: seconds of the terms of a kernel, bytes of a transfer."""
        return float(key.nbytes) if key.link else sum(self.terms(key)[1:])

    def _interpolate(self, key: CostKey) -> float | None:
        """Seconds interpolated between the measured neighbours in work; None where there are none near enough."""
        family = family_of(key)
        if family not in self._rows:
            return None
        if family not in self._curves:
            self._curves[family] = self._curve(self._rows[family])
        (work, seconds, intensity), size = self._curves[family], self._size(key)
        if len(work) == 0 or size <= 0 or not work[0] <= (x := math.log(size)) <= work[-1]:
            return None
        upper = int(np.searchsorted(work, x))
        lower = upper if work[upper] == x else upper - 1
        apart = np.abs(intensity[[lower, upper]] - _intensity(key)).max()
        if work[upper] - work[lower] > math.log(NEIGHBOUR_RATIO) or apart > math.log(INTENSITY_RATIO):
            return None
        return math.exp(float(np.interp(x, work[lower : upper + 1], seconds[lower : upper + 1])))


def family_of(key: CostKey) -> Family:
    """The family of a key: keys that differ in size only."""
    return (key.name, key.dtype, key.link, key.members)


def class_of(key: CostKey) -> tuple[str, str]:
    """The class of a key: a kernel's pass (after the last dot of its name), or a transfer's form and level."""
    return (key.name.partition(".")[0] if key.link else key.name.rpartition(".")[2], level_name(key.link))


def isotonic(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The nearest monotone sequence in weighted least squares (pool adjacent violators: Ayer et al. 1955)."""
    pools: list[list[float]] = []
    for value, weight in zip(values.tolist(), weights.tolist(), strict=True):
        pools.append([value, weight, 1])
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (v, w, n), (v0, w0, n0) = pools.pop(), pools.pop()
            pools.append([(v * w + v0 * w0) / (w + w0), w + w0, n + n0])
    return np.repeat([pool[0] for pool in pools], [int(pool[2]) for pool in pools])


def _kernel_terms(processor: Processor, key: CostKey) -> Terms:
    traits = key.traits if processor.has_traits else ()
    rows = key.rows * processor.row_seconds if processor.row_seconds else 0.0
    looks = key.looks * processor.look_seconds if processor.look_seconds else 0.0
    flops = key.flops / processor.flops_rate(key.dtype, key.name, traits)
    return processor.task_overhead_seconds, flops, rows + looks, key.nbytes / processor.bytes_per_second


def _slowest(processors: Sequence[Processor], key: CostKey) -> tuple[float, Terms]:
    """The roofline seconds and terms on the slowest of these processors."""
    return max(_roofline(p, _kernel_terms(p, key)) for p in processors)


def _way_terms(way: Way) -> Terms:
    return (way.latency_seconds - way.more_seconds, 0.0, 0.0, way.transfer_seconds)


def _roofline(processor: Processor, terms: Terms) -> tuple[float, Terms]:
    fixed, flops, beside, memory = terms
    work = flops + beside
    return fixed + (max(work, memory) if processor.overlaps else work + memory), terms


def _raised(terms: Terms) -> Terms:
    return (terms[0] or SMALL_SECONDS, *terms[1:])


def _scaled(scales: Terms, terms: Terms) -> float:
    return sum(scale * term for scale, term in zip(scales, terms, strict=True))


def _intensity(key: CostKey) -> float:
    """The log of a kernel's flops a byte, in which neighbours must be similar; 0 for a transfer."""
    return 0.0 if key.link else math.log((key.flops + 1) / (key.nbytes + 1))


def _grouped(rows: Iterable[Measured], group_of: Callable[[CostKey], G]) -> dict[G, list[Measured]]:
    groups: dict[G, list[Measured]] = defaultdict(list)
    for row in rows:
        groups[group_of(row.key)].append(row)
    return dict(groups)
