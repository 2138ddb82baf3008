"""The laws of operators, for every operator that is found: cut in any legal way it computes the whole."""

from math import prod

import numpy as np
import pytest

from castile.planner.op import available, find
from castile.planner.ops.add import Add
from castile.planner.ops.conv2d import Conv2d
from castile.planner.ops.gelu import Gelu
from castile.planner.ops.max_pool2d import MaxPool2d
from castile.planner.ops.reshape import Reshape
from castile.planner.ops.sgd import Sgd
from castile.planner.strategy import Config, check_config, parts
from castile.runtime.region import contains, whole
from tests.op_cases import Case, case, cases_of, every_case
from tests.op_laws import (
    Whole,
    deviation,
    execute,
    node_of,
    passes,
    recorded,
    relative,
    run,
    splits,
    targets,
    telling_splits,
    whole_pass,
)

TOLERANCE = 1e-10
CASES = [c for name in available() for c in cases_of(name)]


@pytest.mark.parametrize("name", available())
def test_every_operator_is_reached(name):
    cases = cases_of(name)
    assert len(cases) >= 2 and all(c.op.name == name for c in cases)
    able = [c for c in cases if node_of(c).alignment.axes]
    assert not able or any(len(list(splits(node_of(c)))) > 1 for c in able), "no case of it can be split"


@every_case
def test_the_parts_compute_the_whole(case: Case):
    everything = Whole(case)
    for split in splits(everything.node):
        assert deviation(everything, split) <= TOLERANCE, f"{case} split {split}"


@every_case
def test_parts_read_inside_their_operands(case: Case):
    node = node_of(case)
    for split in splits(node):
        for part in parts(node, split):
            for n, tensor in enumerate(case.tensors):
                assert contains(whole(tensor.shape), part.reads(n)), f"{case} split {split}, operand {n}"


def sees(case: Case, part, arrays, n: int, dim: int, at: int) -> bool:
    """Whether results are others where an operand has other elements at a place of a dim."""
    changed = [a.copy() for a in arrays]
    np.moveaxis(changed[n], dim, 0)[at] += 1e3
    each = zip(*(run(case, "F", part, operands, None, None) for operands in (arrays, changed)), strict=True)
    return any(relative(one, other) > 0 for one, other in each)


@every_case
def test_parts_read_no_more_than_they_need(case: Case):
    """Where what they read otherwise than the axis line says begins and ends, they see it, or nobody does.

    Unless that is all of an operand.
    """
    everything = Whole(case)
    node, free = everything.node, [n for n, t in enumerate(case.tensors) if t.floating and not case.op.follows(n)]
    for part in (part for split in (telling_splits(node) if free else ()) for part in parts(node, split)):
        arrays, *_ = everything.local(part)
        for n in (n for n in free if arrays[n].size):
            box = part.reads(n)
            for dim, (lo, hi) in enumerate(zip(box.lo, box.hi)) if box != whole(case.tensors[n].shape) else ():
                for at in {lo, hi - 1}:
                    seen = sees(case, part, arrays, n, dim, at - lo)
                    assert seen or not sees(case, node.whole(), case.arrays, n, dim, at), f"{part.ranges}: operand {n}"


@every_case
def test_gradients_agree_with_differences(case: Case):
    everything, h = Whole(case), 1e-6
    rng = np.random.default_rng(2)

    def pulled(arrays) -> float:
        results = whole_pass(case, "F", arrays)
        return sum(float(np.sum(dy * y)) for dy, y in zip(everything.pulls, results, strict=False))

    for which in set(passes(case)) - {"F"}:
        for n, gradient in zip(targets(case, which), everything.results[which], strict=True):
            if gradient is None and not case.tensors[n].floating:
                continue
            # none is as good as zeros
            gradient = np.zeros_like(case.arrays[n]) if gradient is None else gradient
            direction = rng.normal(size=gradient.shape)
            ends = [[a + s * h * direction if m == n else a for m, a in enumerate(case.arrays)] for s in (1, -1)]
            slope = (pulled(ends[0]) - pulled(ends[1])) / (2 * h)
            along = float(np.sum(gradient * direction))
            assert abs(slope - along) <= 1e-6 * max(1.0, abs(along)), f"{case}: operand {n}"


@pytest.mark.parametrize("form", ["reference", "numpy"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_recorded_calls_compute_what_the_body_does(case: Case, form: str):
    everything = Whole(case)
    for split in _few(splits(everything.node)):
        for part in parts(everything.node, split):
            for which in passes(case):
                _compare_recording(everything, which, part, form)


def _few(options):
    """The whole, and one split of each axis, into three where it can be."""
    chosen = {}
    for split in options:
        axes = [axis for axis, degree in split.items() if degree > 1]
        if len(axes) <= 1 and max([*split.values(), 1]) <= 3:
            chosen["".join(axes)] = split
    return chosen.values()


def _compare_recording(everything: Whole, which: str, part, form: str) -> None:
    local = everything.local(part)
    direct = [r for r in run(everything.case, which, part, *local) if r is not None]
    recording, inputs = recorded(everything.case, which, part, *local)
    # what a recording does not read may hold anything
    idle = [a if n in recording.reads or a.dtype.kind != "f" else a * np.nan for n, a in enumerate(inputs)]
    for accumulate in (False, True):
        for one, other in zip(execute(recording, idle, form, accumulate), direct, strict=True):
            assert one.shape == other.shape
            assert relative(one - accumulate, other) <= TOLERANCE * (1 + accumulate * 100), f"{which} {part.ranges}"


@every_case
def test_illegal_splits_are_refused_in_words(case: Case):
    node = node_of(case)
    a = node.alignment
    for axis, extent in a.extents.items():
        too_many = Config({axis: extent + 1}, procs=tuple(range(extent + 1)))
        words = "may not be split" if axis in a.frozen else "too few"
        with pytest.raises(ValueError, match=f"it: axis '{axis}'.*{words}"):
            check_config(node, too_many)
    with pytest.raises(ValueError, match="no axis 'nowhere'"):
        check_config(node, Config({"nowhere": 2}, procs=(0, 1)))
    for split in splits(node):
        check_config(node, Config(split, procs=tuple(range(len(parts(node, split))))))


FROZEN = [(name, mark) for name in available() for mark in find(name).line.replace("(", " ").replace(")", " ").split()]
FROZEN = sorted({(name, mark.strip("*,~")) for name, mark in FROZEN if mark.strip("*,~").endswith("!")})


@pytest.mark.parametrize(("name", "mark"), FROZEN)
def test_an_axis_is_frozen_because_splitting_it_breaks_the_law(name: str, mark: str):
    axis = mark.rstrip("!")
    thawed = [_thawed(c, axis) for c in cases_of(name)]
    seen = [c for c in thawed if axis not in node_of(c).alignment.frozen and node_of(c).alignment.extents[axis] > 1]
    if not seen:
        # inside a merged dim an axis is frozen by its place
        assert any(axis in dim[1:] for o in node_of(thawed[0]).alignment.operands for dim in o.dims)
        return
    assert all(_breaks(c, axis) for c in seen), f"{name}: splitting {axis!r} does no harm, so it need not be frozen"


def _thawed(case: Case, axis: str) -> Case:
    class Thawed(type(case.op)):  # type: ignore[misc]
        def axis_line(self, inputs):
            return super().axis_line(inputs).replace(f"{axis}!", axis)

    return Case(Thawed(**dict(case.op.settings)), case.tensors, case.arrays)


def _breaks(case: Case, axis: str) -> bool:
    try:
        return deviation(Whole(case), {axis: 2}) > 1e-6
    except (AssertionError, ValueError, IndexError):
        return True


KEPT = {
    # what backward need not keep is as much a promise as what it computes
    ("linear", "B"): {"dy", 1},
    ("linear", "W"): {"dy", 0},
    ("conv2d", "B"): {"dy", 1},
    ("conv2d", "W"): {"dy", 0},
    ("relu", "B"): {"dy", "y0"},
    ("add", "B"): {"dy"},
    ("reshape", "B"): {"dy"},
    ("sum", "B"): {"dy"},
    ("layer_norm", "B"): {"dy", 0, 1, "y1", "y2"},
    ("layer_norm", "W"): {"dy", 0, "y1", "y2"},
    ("embedding", "W"): {"dy", 0},
    ("cross_entropy", "B"): {"dy", 0, 1, "y1"},
}


@pytest.mark.parametrize(("name", "which"), KEPT)
def test_backward_keeps_only_what_it_needs(name: str, which: str):
    for c in cases_of(name):
        everything = Whole(c)
        recording, _ = recorded(c, which, everything.node.whole(), *everything.local(everything.node.whole()))
        pulls = ["dy", *(f"dy{j}" for j in range(1, len(everything.pulls)))]
        names = [*pulls, *range(len(c.arrays)), *(f"y{j}" for j in range(len(everything.y)))]
        assert {names[n] for n in recording.reads} == KEPT[name, which], str(c)


def test_causal_queries_read_only_the_keys_they_see():
    c = next(c for c in cases_of("attention") if c.op.causal and c.tensors[0].shape[1] == 7)
    first, *_, last = parts(node_of(c), {"s": 3})
    assert first.reads(1).hi[1] == 3 and last.reads(1).hi[1] == 7
    assert first.op.flops("F", first) < last.op.flops("F", last)


def test_a_row_block_reads_its_halo_only():
    conv = next(c for c in cases_of("conv2d") if c.op.padding == (1, 1) and c.tensors[0].shape[2] == 6)
    top, bottom = parts(node_of(conv), {"h": 2})
    assert (top.reads(0).lo[2], top.reads(0).hi[2]) == (0, 4)
    assert (bottom.reads(0).lo[2], bottom.reads(0).hi[2]) == (2, 6)


@pytest.mark.parametrize("count", ["flops", "looks"])
def test_what_is_counted_of_parts_adds_up(count):
    for c in CASES:
        node = node_of(c)
        for which in passes(c):
            total = getattr(c.op, count)(which, node.whole())
            for split in splits(node):
                summed = sum(getattr(c.op, count)(which, part) for part in parts(node, split))
                assert summed == pytest.approx(total), f"{c} {which} {split}"


def test_looked_for_are_shares_of_scores_that_are_seen_and_places_of_maxima():
    for c in CASES:
        node, made = node_of(c), 0
        if c.op.name == "attention":
            (b, s, _), t = c.tensors[0].shape, c.tensors[1].shape[1]
            made = b * c.op.h * c.op.r * sum(not c.op.causal or j <= i for i in range(s) for j in range(t))
        for which in passes(c):
            places = node.whole().writes(0).volume if c.op.name == "max_pool2d" and which == "B" else 0
            assert c.op.looks(which, node.whole()) == made + places, f"{c} {which}"


def products(step) -> int:
    """How many products of two numbers a kernel adds up; of windows those with the padding count too.

    Of attention two for each element of a head of a query and a key that it sees, and for gradients five; of pairs of
    vectors one for each element, and two.
    """
    if step.kernel == "contract":
        text, *xs = step.args
        return int(np.einsum(text.split("->")[0] + "->...", *(np.ones(x.spec.shape) for x in xs)).sum())
    if times := {"attention": 2, "attention_grad": 5}.get(step.kernel):
        (b, s, width), t = step.outs[0].spec.shape, step.args[-1 if times == 2 else 2].spec.shape[1]
        seen = [not step.params["causal"] or j <= i + step.params["offset"] for i in range(s) for j in range(t)]
        return times * b * width * sum(seen)
    if times := {"pair_dots": 1, "pair_dots_grad": 2}.get(step.kernel):
        b, f, d = step.args[-1].spec.shape
        return times * b * d * f * (f - 1) // 2
    arrays = {"y": step.outs[0], **dict(zip(("x", "w"), step.args))}
    of = {"conv2d": "yw", "conv2d_grad_input": "xw", "conv2d_grad_weight": "xy"}.get(step.kernel)
    return prod(arrays[of[0]].spec.shape) * prod(arrays[of[1]].spec.shape[1:]) if of else 0


@every_case
def test_operations_are_two_for_each_product(case: Case):
    everything = Whole(case)
    whole_part = everything.node.whole()
    for which in passes(case):
        recording, _ = recorded(case, which, whole_part, *everything.local(whole_part))
        made = sum(map(products, recording.steps))
        assert not made or case.op.flops(which, whole_part) == pytest.approx(2 * made), which


def array(*shape: int) -> np.ndarray:
    return np.zeros(shape)


def convolution(op: Conv2d, channels: int) -> Case:
    return case(op, (array(2, 1, 8, 8), "b c h w"), (array(4, channels, 3, 3), "*o i r s"))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: convolution(Conv2d((1, 1), (3, 3)), 1), "it .conv2d.: padding 3"),
        (lambda: convolution(Conv2d(), 2), "axis i=1"),
        (lambda: convolution(Conv2d((0, 1)), 1), "stride of 0"),
        (lambda: case(MaxPool2d((9, 9)), (array(2, 1, 8, 8), "b c h w")), "kernel of 9 does not fit"),
        (lambda: case(Add(), (array(4, 3), "b d"), (array(4, 2), "b e")), "x1.*broadcast"),
        (lambda: case(Reshape("b c -> c b"), (array(4, 3), "b d")), "same order"),
        (lambda: case(Reshape("b c -> (b c)", (("e", 2),)), (array(4, 3), "b d")), "no axis 'e'"),
        (lambda: case(find("attention")(3), *[(array(2, 4, 8), "b s d")] * 3), "h=3"),
        (lambda: case(find("linear")(), (array(4, 3), "b i"), (array(2, 5), "*o i")), "axis i=3"),
        (lambda: case(Gelu("sigmoid"), (array(2), "b")), "tanh, none"),
        (lambda: case(Sgd(1.5), *[(array(2), "o")] * 3, (array(), "")), "momentum"),
    ],
)
def test_operands_that_do_not_fit_are_refused_in_words(make, words):
    with pytest.raises(ValueError, match=words):
        node_of(make())
