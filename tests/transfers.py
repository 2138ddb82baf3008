"""A tiny interpreter of transfer plans, and random situations to plan for; nothing of the executor is in it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st

from castile.runtime.machine import Level
from castile.runtime.region import Box, blocks, intersect, relative, slices, whole
from castile.runtime.task import Arg, Body, Comm, View
from castile.runtime.transfer import Links, Piece, Source, Transfer
from tests.draws import among, ordered

Read = tuple[int, Box]


def links(task_seconds: float = 1.0, group: int = 8, has_trees: bool = False) -> Links:
    """With dear tasks and free bytes special forms win wherever they fit; processors of one `group` are near."""
    near, far = Level("near", group, 0.0, 1e15), Level("far", 64, 1e-9, 1e15)

    def level(slots: tuple[int, ...]) -> Level:
        assert len(set(slots)) > 1, "one processor alone sends nothing"
        return near if len({slot // group for slot in slots}) == 1 else far

    return Links(lambda slot: (slot // group, 0), level, 1e15, task_seconds, has_trees)


def interpret(plan: Transfer, held: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The arrays of all pieces after the plan's tasks; held[i] is what source i holds, memory begins as NaN."""
    arrays = [np.full(piece.box.shape, np.nan) for piece in plan.pieces]
    for (source, _), piece in plan.instances.items():
        arrays[piece][...] = held[source]
    for pattern in plan.patterns:
        if pattern.comm:
            _communicate(pattern.comm, plan.pieces, arrays)
        else:
            _compute(pattern.body, pattern.views, plan.pieces, arrays)
    return arrays


def results(plan: Transfer, held: Sequence[np.ndarray], reads: Sequence[Read]) -> list[np.ndarray]:
    """What each read finds."""
    arrays = interpret(plan, held)
    found = []
    for (proc, box), piece in zip(reads, plan.located, strict=True):
        assert plan.pieces[piece].proc == proc
        found.append(arrays[piece][..., *slices(relative(box, plan.pieces[piece].box))].copy())
    return found


def _view(view: View, pieces: Sequence[Piece], arrays: Sequence[np.ndarray]) -> np.ndarray:
    part = arrays[view.buffer][..., *slices(relative(view.box, pieces[view.buffer].box))]
    if view.shape is None:
        return part
    assert part.flags.c_contiguous
    return part.reshape(view.shape)


def _compute(body: Body, views: Sequence[View], pieces: Sequence[Piece], arrays: Sequence[np.ndarray]) -> None:
    for call in body.calls:
        out = _view(views[call.outs[0].index], pieces, arrays)
        if call.kernel == "zero":
            out[...] = 0
            continue
        assert call.kernel == "copy" and isinstance(call.args[0], Arg)
        source = _view(views[call.args[0].index], pieces, arrays)
        out[...] = out + source if call.accumulate else source


def _communicate(comm: Comm, pieces: Sequence[Piece], arrays: Sequence[np.ndarray]) -> None:
    """Each form as `Comm` defines it."""
    for view in (*comm.send, *comm.receive):
        assert view is None or _view(view, pieces, arrays).flags.c_contiguous
    sent = [None if v is None else _view(v, pieces, arrays).reshape(-1).copy() for v in comm.send]
    for j, view in enumerate(comm.receive):
        if view is None:
            continue
        into, counts = _view(view, pieces, arrays).reshape(-1), comm.counts
        if comm.form in ("move", "broadcast"):
            into[...] = sent[0]
        elif comm.form == "all_reduce":
            into[...] = _sum([s for s in sent if s is not None])
        elif comm.form == "reduce_scatter":
            into[...] = _sum([_part(s, counts[i], j) for i, s in enumerate(sent) if s is not None and counts[i][j]])
        elif comm.form == "all_gather":
            into[...] = np.concatenate([s[: counts[i][j]] for i, s in enumerate(sent) if s is not None])
        else:
            assert comm.form == "all_to_all"
            into[...] = np.concatenate([_part(s, counts[i], j) for i, s in enumerate(sent) if s is not None])


def _part(array: np.ndarray, counts: Sequence[int], j: int) -> np.ndarray:
    return array[sum(counts[:j]) : sum(counts[: j + 1])]


def _sum(parts: Sequence[np.ndarray]) -> np.ndarray:
    total = parts[0].copy()
    for part in parts[1:]:
        total = total + part
    return total


def expected(sources: Sequence[Source], held: Sequence[np.ndarray], box: Box) -> np.ndarray:
    """The sum of all sources over a box, zero where there is none."""
    total = np.zeros(box.shape)
    for source, array in zip(sources, held, strict=True):
        common = intersect(source.box, box)
        if common is not None:
            total[..., *slices(relative(common, box))] += array[..., *slices(relative(common, source.box))]
    return total


# Situations: layouts as plans make them, and boxes anyhow.


@st.composite
def boxes(draw: st.DrawFn, shape: tuple[int, ...]) -> Box:
    ends = [sorted(draw(st.lists(st.integers(0, n), min_size=2, max_size=2, unique=True))) for n in shape]
    return Box(tuple(lo for lo, _ in ends), tuple(hi for _, hi in ends))


@st.composite
def layouts(draw: st.DrawFn, shape: tuple[int, ...], num_procs: int) -> list[tuple[Box, tuple[int, ...]]]:
    """A grid over the array, or several such grids one upon the other (partial sums), each part on its processors."""
    degrees = [draw(st.integers(1, min(n, 3))) for n in shape]
    layers = draw(among((1, 1, 2, 3)))
    grid = [Box((), ())]
    for n, degree in zip(shape, degrees, strict=True):
        grid = [Box((*b.lo, lo), (*b.hi, hi)) for b in grid for lo, hi in blocks(n, degree)]
    replicas = draw(st.integers(1, min(2, num_procs)))
    order = draw(ordered(range(num_procs)))
    procs = [
        tuple(order[(n * replicas + r) % num_procs] for r in range(replicas)) for n in range(layers * len(grid))
    ]
    return list(zip(grid * layers, procs, strict=True))


@st.composite
def groups(draw: st.DrawFn, shape: tuple[int, ...], num_procs: int) -> list[tuple[Box, tuple[int, ...]]]:
    """One group of processors, each with all of the array or with its block along one axis; or one of them with all."""
    procs = range(num_procs) if draw(st.integers(0, 3)) else [draw(st.integers(0, num_procs - 1))]
    axis = draw(among((*(n for n, extent in enumerate(shape) if extent >= num_procs), None)))
    if axis is None or len(procs) == 1:
        return [(whole(shape), (proc,)) for proc in procs]
    placed = []
    for proc, (lo, hi) in zip(procs, blocks(shape[axis], num_procs), strict=True):
        box = whole(shape)
        placed.append((Box(_set(box.lo, axis, lo), _set(box.hi, axis, hi)), (proc,)))
    return placed


def _set(corner: tuple[int, ...], axis: int, value: int) -> tuple[int, ...]:
    return (*corner[:axis], value, *corner[axis + 1 :])


KINDS = (groups, layouts, boxes)


@st.composite
def situations(draw: st.DrawFn, kinds: Sequence = KINDS) -> tuple[list[Source], list[Read], list[np.ndarray]]:
    """Sources, reads, and what each source holds."""
    # sampled evenly: integers would mostly be too small to cut
    shape = tuple(draw(among((4, 5, 6, 7, 3, 2, 1))) for _ in range(draw(among((1, 2)))))
    num_procs = draw(among((3, 2, 4, 1)))
    kind = draw(among(tuple(kinds)))
    if kind is not boxes:
        placed = draw(kind(shape, num_procs))
        reads = [(proc, box) for box, procs in draw(kind(shape, num_procs)) for proc in procs]
    else:
        some = st.lists(st.integers(0, num_procs - 1), min_size=1, max_size=2, unique=True).map(tuple)
        placed = draw(st.lists(st.tuples(boxes(shape), some), min_size=1, max_size=5))
        reads = draw(st.lists(st.tuples(st.integers(0, num_procs - 1), boxes(shape)), min_size=1, max_size=5))
    sources = [Source(box, procs) for box, procs in dict.fromkeys(placed)]
    rng = np.random.default_rng(draw(st.integers(0, 9)))
    return sources, reads, [rng.normal(size=source.box.shape) for source in sources]
