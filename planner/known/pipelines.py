"""Pipelines: a plan for a few processors becomes a pipeline on many, with a stage of the network on each group.

Stages are cut as in PipeDream (Narayanan et al., SOSP 2019), by the work of nodes in their order and the bytes sent
between stages, partial sums included. The order of microbatches is the affair of `lowering/stages`. It does not know
what the plan for a few processors is.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from math import isqrt, prod

import numpy as np

from castile.planner.axes import Operand
from castile.planner.bodies.vocabulary import itemsize
from castile.planner.choices import shares
from castile.planner.cost import CostModel
from castile.planner.graph import Node
from castile.planner.lower import Lowering
from castile.planner.strategy import Config
from castile.runtime.forms import seconds
from castile.runtime.timeline import PICOSECONDS

# Where groups share a microbatch's samples, the most idle time, as a share, of groups with fewer samples.
IDLE = 0.1
# With more microbatches than this many times the stages, the bubble, which interleaving shortens, is short.
FEW = 2
# How many stretches of the network a stage may have in an interleaved pipeline.
ROUNDS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48)
# Bisections: so many find a stage time to a millionth.
HALVINGS = 20


def divisors(number: int) -> tuple[int, ...]:
    """Divisors to try as numbers of equal pieces: 1, then each time the least divisor that is at least twice the one
    before; and the number divided by each of these, so that the lengths of pieces are such divisors too, which
    processors may share evenly.
    """
    small, found = [n for n in range(1, isqrt(number) + 1) if number % n == 0], [1]
    for n in [*small, *(number // n for n in reversed(small))]:
        if n >= 2 * found[-1]:
            found.append(n)
    return tuple(sorted({*found, *(number // n for n in found)}))


def stage_counts(num_procs: int, near: int, most: int) -> list[int]:
    """The numbers of stages, at most `most`, with which a stage has whole groups of `near` processors or an equal part
    of one, so that communication within a stage stays near.
    """
    sizes = {num_procs // n: n for n in range(2, most + 1) if num_procs % n == 0}
    return [n for size, n in sizes.items() if size % near == 0 or near % size == 0]


def is_shared(batch: int, microbatches: int, num_stages: int, groups: int, are_cut: bool) -> bool:
    """Whether the `groups` of a stage share a microbatch's samples about equally; or, where samples may be cut too, two
    groups share a sample, or more if there would be few microbatches otherwise.
    """
    samples = batch // microbatches
    if samples < groups:
        is_near = groups == 2 * samples or batch < FEW * num_stages * groups
        return are_cut and groups % samples == 0 and is_near
    return samples >= (1 - IDLE) * groups * -(-samples // groups)


def shared(batch: int, num_procs: int, near: int, most: int) -> tuple[int, ...]:
    """The numbers of microbatches of pipelines of at most `most` stages with which each group of `near` processors has
    one sample of a microbatch, or two, four and so on, and there are at least as many microbatches as stages.
    """
    found = set[int]()
    for num_stages in stage_counts(num_procs, near, most):
        samples = max(1, num_procs // num_stages // near)
        while batch % samples == 0 and batch // samples >= num_stages:
            found.add(batch // samples)
            samples *= 2
    return tuple(sorted(found))


class Pipelines:
    """Makes pipelines of a graph on a machine.

    cost    balances the stages; by default from the machine's figures
    """

    def __init__(self, lowering: Lowering, cost: CostModel | None = None) -> None:
        self._lowering, self._cost = lowering, cost or CostModel(lowering.machine)

    def once(self, num_stages: int, inner: Mapping[str, Config]) -> dict[str, Config]:
        """A pipeline of `num_stages` equal groups of processors, with each stage laid out as in the plan `inner`.

        inner   Configs on the first processors, as many as a group has
        """
        size = self._lowering.machine.num_procs // num_stages
        handed, has_sums = _handed(self._lowering, inner)
        # Without partial sums, sending overlaps with kernels of other microbatches, wherever the network is cut.
        sent = self._sent(handed, size) if has_sums else np.zeros(len(handed))
        return staged(inner, size, cut(self._work, self._rates(num_stages), sent, handed))

    def interleaved(self, num_stages: int, inner: Mapping[str, Config]) -> dict[str, Config]:
        """An interleaved pipeline: each group has several shorter stretches of the network, which shortens the bubble.

        Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", SC 2021,
        section 2.2. Stretches begin where a single tensor is handed over. Their number makes a step shortest if the
        longest stretch sets the pace; the last group has the last one. Where several are not better each group has one.
        """
        necks = np.array([0, *_necks(self._lowering.piece.nodes.values())])
        upto, found = np.append(0, np.cumsum(self._work))[necks].tolist(), dict[float, list[int]]()
        for rounds in [n for n in ROUNDS if n * num_stages < len(necks)]:
            longest, begins = stretches(upto, self._rates(num_stages).tolist() * rounds)
            turns = self._lowering.microbatches * len(begins) / num_stages + num_stages - 1
            found.setdefault(turns * longest, begins)
        begins = found[min(found)] if found else []
        if len(begins) <= num_stages:
            return self.once(num_stages, inner)
        lengths = np.diff([*necks[begins], len(self._work)])
        stages = np.repeat(np.arange(-len(begins), 0) % num_stages, lengths)
        return staged(inner, self._lowering.machine.num_procs // num_stages, stages.tolist())

    def _sent(self, handed: np.ndarray, size: int) -> np.ndarray:
        """float64[N + 1]: picoseconds to send the bytes handed over before each node from one group of `size`
        processors to the next, less the minimum, which every cut costs.
        """
        levels = self._lowering.machine.levels
        level, each = next((level for level in levels if level.group > size), levels[-1]), handed / size
        # this much is sent wherever the network is cut
        each[1:-1] -= each[1:-1].min(initial=each.max())
        return np.array([PICOSECONDS * seconds("move", nbytes, 2, level) if nbytes > 0 else 0.0 for nbytes in each])

    def _rates(self, num_stages: int) -> np.ndarray:
        """The speed of each group, in processors of the fastest kind."""
        return self._speeds.reshape(num_stages, -1).sum(1)

    @cached_property
    def _speeds(self) -> np.ndarray:
        return np.array(shares.speeds(self._lowering, self._cost))

    @cached_property
    def _work(self) -> np.ndarray:
        """int64[N]: picoseconds of all passes of each node for one microbatch, uncut on one processor."""
        # two microbatches stand for all, which take equally long
        program = self._lowering.shortened(2).program(self._lowering.plan({}))
        found = dict.fromkeys(self._lowering.piece.nodes, 0)
        for step in program.steps:
            if step.node.name in found and step.micro.number == 0:
                keys, of_part = self._lowering.templates.get(step, {}, program.dtypes.__getitem__).does.keys
                found[step.node.name] += int(self._cost.picoseconds(keys)[of_part].sum())
        return np.array([*found.values()])


def _necks(nodes: Iterable[Node]) -> list[int]:
    """The numbers n of first nodes of which at most one result is read after them: cuts that hand over one tensor. The
    last is all nodes.
    """
    every = list(nodes)
    last = {name: n for n, node in enumerate(every) for name in node.inputs}
    change = np.zeros(len(every) + 1, np.int64)
    for n, node in enumerate(every):
        for name in node.outputs:
            change[n + 1] += 1
            change[last.get(name, n) + 1] -= 1
    return (1 + np.flatnonzero(np.cumsum(change)[1:] <= 1)).tolist()


def stretches(upto: Sequence[int], rates: Sequence[float]) -> tuple[float, list[int]]:
    """Divide a sequence of work into stretches, one for each rate, or for the last few of them, so that the longest is
    shortest.

    Returns the time of the longest, and how many pieces come before each stretch.

    upto[N + 1]   the cumulative work before each piece, and of all
    """

    def begins(seconds: float) -> list[int]:
        """Where stretches begin if none takes longer than `seconds`, from the last one backwards."""
        found = [len(upto) - 1]
        for rate in reversed(rates):
            found.append(bisect_left(upto, upto[found[-1]] - seconds * rate))
        return found[:0:-1]

    least, most = 0.0, upto[-1] / min(rates)
    for _ in range(HALVINGS):
        middle = (least + most) / 2
        least, most = (least, middle) if begins(middle)[0] == 0 else (middle, most)
    found = begins(most)
    return most, found[bisect_right(found, 0) - 1 :]


def staged(inner: Mapping[str, Config], size: int, stages: Sequence[int]) -> dict[str, Config]:
    """The plan `inner` with each node moved to the group of `size` processors of its stage."""
    moved: dict[tuple[Config, int], Config] = {}
    for stage, config in {*zip(stages, inner.values(), strict=True)}:
        procs = tuple([p + stage * size for p in config.procs])
        moved[config, stage] = Config(config.split, config.replicas, procs)
    return {name: moved[config, stage] for (name, config), stage in zip(inner.items(), stages, strict=True)}


def cut(work: np.ndarray, rates: np.ndarray, sent: np.ndarray, handed: np.ndarray) -> list[int]:
    """The stage of each node: the slowest stage takes least time, and of such cuts the fewest bytes are handed over.

    work[N]         time of each node at a rate of 1
    rates[S]        speeds of the stages; the last get as much work as possible, as the first hold activations of more
                    microbatches
    sent[N + 1]     time that both neighbouring stages spend on a cut before each node
    handed[N + 1]   bytes that are handed over at that cut
    """
    upto = np.append(0.0, np.cumsum(work))
    least, most = 0.0, upto[-1] / rates.min() + 2 * sent.max()

    def ends(seconds: float) -> bool:
        """Whether the stages can do all nodes if none takes longer than `seconds`."""
        may_end = np.arange(len(upto)) == 0
        for rate in rates:
            begun = np.maximum.accumulate(np.where(may_end, upto - sent * rate, -np.inf))
            may_end = upto + sent * rate - begun <= seconds * rate
        return bool(may_end[-1])

    for _ in range(HALVINGS):
        middle = (least + most) / 2
        least, most = (least, middle) if ends(middle) else (middle, most)
    return np.repeat(np.arange(len(rates)), np.diff(_thrifty(upto, rates, sent, handed, most))).tolist()


def _thrifty(upto: np.ndarray, rates: np.ndarray, sent: np.ndarray, handed: np.ndarray, most: float) -> list[int]:
    """How many nodes come before each stage, and the number of all: no stage takes longer than `most`, to a millionth,
    and the fewest bytes are handed over; of equally good cuts the one that gives the last stages most work.
    """
    windows: dict[float, tuple[np.ndarray, np.ndarray]] = {}
    for rate in {*rates.tolist()}:
        every, room = np.arange(len(upto)), most * rate * (1 + 2.0**-HALVINGS)
        width = int((every - np.searchsorted(upto, upto - room)).max()) + 1
        # earlier ones first
        begin = every[:, None] - np.arange(width - 1, -1, -1)
        lasts = upto[:, None] - upto[begin] + (sent[:, None] + sent[begin]) * rate
        windows[rate] = begin, (begin >= 0) & (lasts <= room)
    total, found = np.where(np.arange(len(upto)) == 0, 0.0, np.inf), list[np.ndarray]()
    for rate in rates.tolist():
        begin, fits = windows[rate]
        each = np.where(fits, total[begin], np.inf)
        best = each.argmin(1)
        rows = np.arange(len(upto))
        found.append(begin[rows, best])
        total = each[rows, best] + handed
    bounds = [len(upto) - 1]
    for begins in reversed(found):
        bounds.append(int(begins[bounds[-1]]))
    return bounds[::-1]


def _handed(lowering: Lowering, inner: Mapping[str, Config]) -> tuple[np.ndarray, bool]:
    """float64[N + 1]: bytes of a microbatch's results and gradients that are made before each node and read from there
    on, counting each partial sum; and whether there are partial sums.
    """
    graph = lowering.piece
    place = {name: n for n, name in enumerate(inner)}
    last: dict[str, int] = {}
    gradients: dict[str, int] = {}
    # most nodes have the shapes and the Config of another
    times_of: dict[tuple[int, int], tuple[list[int], list[int]]] = {}
    kinds = [(lowering.templates.node_kind(node), id(inner[node.name])) for node in graph.nodes.values()]
    for kind, node in zip(kinds, graph.nodes.values(), strict=True):
        if kind not in times_of:
            rows = node.alignment.operands, node.alignment.results
            of_operands, of_results = ([_times(inner[node.name], operand) for operand in each] for each in rows)
            times_of[kind] = of_operands, of_results
        for name, times in zip(node.inputs, times_of[kind][0], strict=True):
            last[name] = max(last.get(name, 0), place[node.name])
            gradients[name] = max(gradients.get(name, 0), times)
    change, has_sums = np.zeros(len(inner) + 2), False
    for kind, node in zip(kinds, graph.nodes.values(), strict=True):
        for name, result, times in zip(node.outputs, node.alignment.results, times_of[kind][1], strict=True):
            tensor = graph.tensors[name]
            if name in last:
                times += gradients[name] if tensor.floating else 0
                nbytes = prod(node.alignment.extents[axis] for axis in result.axes) * itemsize(tensor.dtype) * times
                has_sums |= times > 1 + tensor.floating
                change[place[node.name] + 1] += nbytes
                change[last[name] + 1] -= nbytes
    return np.cumsum(change)[:-1], has_sums


def _times(config: Config, operand: Operand) -> int:
    """The number of parts that hold a partial sum of the same elements, or of their gradients."""
    return prod(degree for axis, degree in config.split.items() if axis not in operand.axes)
