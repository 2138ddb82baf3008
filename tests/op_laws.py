"""What the laws of operators say, as functions: a case computed whole, cut and put together, or recorded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import prod

import numpy as np

from castile.kernels import reference
from castile.kernels.table import Table
from castile.planner.bodies.trace import Recording, Spec, record
from castile.planner.graph import Node
from castile.planner.op import PASSES, Part
from castile.planner.strategy import parts
from castile.runtime.region import slices
from tests.op_cases import Case

MOST_PARTS = 4


def node_of(case: Case) -> Node:
    alignment = case.op.bind(case.tensors, "it")
    names = tuple(f"it:{label}" for label in case.op.results)
    return Node("it", case.op, tuple(t.name for t in case.tensors), names, alignment)


def splits(node: Node) -> Iterator[dict[str, int]]:
    """Every combination of degrees of the axes that may be split, with at most four parts."""
    a = node.alignment
    axes = [axis for axis in a.axes if axis not in a.frozen]
    degrees = [range(1, min(MOST_PARTS, a.extents[axis]) + 1) for axis in axes]
    for combination in product(*degrees):
        if prod(combination) <= MOST_PARTS:
            yield dict(zip(axes, combination, strict=True))


def telling_splits(node: Node) -> Iterator[dict[str, int]]:
    """Few of them, in which every axis that may be split is cut, most together with another; the whole comes first."""

    def cut_by(split: dict[str, int]) -> set[str]:
        return {axis for axis, degree in split.items() if degree > 1}

    whole, *others = splits(node)
    yield whole
    known = set[str]()
    for split in sorted(others, key=lambda split: -len(cut_by(split))):
        if not cut_by(split) <= known:
            known |= cut_by(split)
            yield split


def passes(case: Case) -> list[str]:
    return [which for which in PASSES if case.op.has(which)]


def targets(case: Case, which: str) -> list[int]:
    """For F the numbers of the results, for B and W those of the operands that the results are gradients of."""
    if which == "F":
        return list(range(len(case.op.results)))
    return [n for n, tensor in enumerate(case.tensors) if tensor.param == (which == "W")]


def run(case: Case, which: str, part: Part, arrays, dy, y) -> list[np.ndarray | None]:
    """One pass of one part with the definitions of the kernels, on its own slices."""
    asked = {"at": part, "y": y}
    context = {name: asked[name] for name in case.op.asks(which)}
    given = arrays if which == "F" else (dy, *arrays)
    result = getattr(case.op, PASSES[which])(reference, *given, **context)
    return list(result) if isinstance(result, tuple) else [result]


class Whole:
    """A case computed in one piece: results of forward, gradients of those that have some, gradients by operand.

    pulls   a gradient of each result that has one; as a body gets them, `dy` is the only one or the tuple of several
    """

    def __init__(self, case: Case) -> None:
        self.case = case
        self.node = node_of(case)
        self.y = tuple(whole_pass(case, "F", case.arrays))
        rng = np.random.default_rng(1)
        self.pulls = tuple(rng.normal(size=y.shape) for y in self.y[: case.op.flows])
        self.results = {
            which: whole_pass(case, which, case.arrays, as_given(self.pulls), self.y) for which in passes(case)
        }

    def local(self, part: Part) -> tuple:
        """What a part has: dense copies of the operands' boxes that it reads, of its dy and its results."""
        arrays = tuple(cut(a, part.reads(n)) for n, a in enumerate(self.case.arrays))
        pulls = tuple(cut(a, part.writes(j)) for j, a in enumerate(self.pulls))
        return arrays, as_given(pulls), tuple(cut(a, part.writes(j)) for j, a in enumerate(self.y))


def whole_pass(case: Case, which: str, arrays, dy=None, y=None) -> list[np.ndarray | None]:
    """One pass in one piece; gradients of operands that are read in part are zero where nobody reads."""
    part = node_of(case).whole()
    made = run(case, which, part, [cut(a, part.reads(n)) for n, a in enumerate(arrays)], dy, y)
    if which == "F":
        return made
    return [
        None if one is None else placed(one, part.reads(n), arrays[n].shape)
        for n, one in zip(targets(case, which), made, strict=True)
    ]


def as_given(pulls: tuple) -> object:
    """Gradients of results as a body gets them."""
    return pulls[0] if len(pulls) == 1 else pulls


def placed(array: np.ndarray, box, shape: tuple[int, ...]) -> np.ndarray:
    """An array of zeros but for a box."""
    whole = np.zeros(shape, array.dtype)
    whole[slices(box)] = array
    return whole


def cut(array: np.ndarray, box) -> np.ndarray:
    return np.array(array[slices(box)])


def combined(whole: Whole, split: Mapping[str, int], which: str) -> list[np.ndarray]:
    """The pass computed part by part and put together by the law.

    A result that bears every split axis is written once everywhere; another is summed over the pieces. Gradients add up
    where the boxes that pieces read overlap, and are zero where nobody reads.
    """
    case, node = whole.case, whole.node
    cut_axes = {axis for axis, degree in split.items() if degree > 1}
    numbers = targets(case, which)
    likes = whole.y if which == "F" else case.arrays
    totals = [np.zeros(likes[n].shape) for n in numbers]
    counts = [np.zeros(likes[n].shape, int) for n in numbers]
    for part in parts(node, split):
        outcome = run(case, which, part, *whole.local(part))
        assert len(outcome) == len(numbers), f"{case}: {which} gives {len(outcome)} results for {len(numbers)}"
        for n, total, count, piece in zip(numbers, totals, counts, outcome, strict=True):
            if piece is not None:
                box = part.writes(n) if which == "F" else part.reads(n)
                assert piece.shape == box.shape, f"{case} {split}: {which} {n} has {piece.shape}, its box is {box}"
                total[slices(box)] += piece
                count[slices(box)] += 1
    if which == "F":
        for n, count in zip(numbers, counts, strict=True):
            tiles = cut_axes <= set(node.alignment.results[n].axes)
            assert (count == 1).all() if tiles else (count >= 1).all(), f"{case} {split}: result {n} is not tiled"
    return totals


def deviation(whole: Whole, split: Mapping[str, int]) -> float:
    """The largest of max|a - b| / max|b| over all results and gradients; infinite where it is not a number."""
    worst = 0.0
    for which in passes(whole.case):
        for one, all_ in zip(combined(whole, split, which), whole.results[which], strict=True):
            if all_ is not None:
                worst = max(worst, relative(one, all_))
    return worst


def relative(a: np.ndarray, b: np.ndarray) -> float:
    if b.size == 0:
        return 0.0
    difference, scale = float(np.abs(a - b).max()), float(np.abs(b).max())
    if np.isnan(difference) or np.isnan(scale):
        return float("inf")
    return difference / scale if scale else difference


def recorded(case: Case, which: str, part: Part, arrays, dy, y) -> tuple[Recording, list[np.ndarray]]:
    """The pass's recording for a part, and the arrays that it numbers."""
    asked = {"at": part, "y": tuple(spec(a) for a in y)}
    context = {name: asked[name] for name in sorted(case.op.asks(which))}
    pulls = () if which == "F" else dy if isinstance(dy, tuple) else (dy,)
    inputs = [*pulls, *arrays]
    specs = tuple(spec(a) for a in pulls)
    given = [as_given(specs)] if pulls else []
    recording = record(getattr(case.op, PASSES[which]), [*given, *(spec(a) for a in arrays)], **context)
    return recording, [*inputs, *y] if "y" in context else inputs


def spec(array: np.ndarray) -> Spec:
    return Spec(array.shape, array.dtype.name)


def execute(
    recording: Recording, inputs: list[np.ndarray], form: str, accumulate: bool | Sequence[bool],
    places: Sequence[int] = (),
) -> list[np.ndarray]:  # fmt: skip
    """Run calls on poisoned memory; with `accumulate` results are added to ones, all or those that it says.

    places   results of the same number have one array, which is as the first of them says
    """
    made = [s for s in recording.results if s is not None]
    added = [accumulate] * len(made) if isinstance(accumulate, bool) else accumulate
    outs = [np.ones(s.shape, s.dtype) if adds else poison(s) for s, adds in zip(made, added, strict=True)]
    outs = [outs[list(places).index(n)] for n in places] or outs
    body = recording.body(added, [s.dtype for s in made], [()] * (len(recording.reads) + len(made)))
    views = [inputs[n] for n in recording.reads] + outs
    memory = poisoned(body.private_bytes)
    temps = [
        memory[t.offset :][: prod(t.shape) * np.dtype(t.dtype).itemsize].view(t.dtype).reshape(t.shape)
        for t in body.temps
    ]
    table = Table(form)

    def resolve(arg):
        spaces = {"view": views, "temp": temps}
        return spaces[arg.space][arg.index] if hasattr(arg, "space") else arg

    for call in body.calls:
        args, results = [resolve(a) for a in call.args], tuple(resolve(o) for o in call.outs)
        scratch = memory[call.scratch_offset :][: call.scratch_bytes] if call.scratch_bytes else None
        table.bind(call.kernel, args, results, dict(call.params), scratch, call.accumulate)()
    return outs


def poison(of: Spec) -> np.ndarray:
    """An array that nobody has written."""
    floating = of.dtype.startswith("float")
    return np.full(of.shape, np.nan if floating else np.iinfo(of.dtype).min, of.dtype)


def poisoned(nbytes: int) -> np.ndarray:
    """Bytes at a 64-byte boundary that read as NaN."""
    raw = np.full(nbytes + 64, 0xFF, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + nbytes]
