"""Convolution and its gradients: the launches of each algorithm worth trying.

The algorithms: implicit GEMM, with channels copied to be contiguous where they are not, some samples at a time; plain
matrix products for 1x1 windows; depthwise kernels; windows' rows as vectors for few channels. It knows no pooling.
"""

import inspect
from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import numpy as np

from castile.kernels.triton import conv_settings
from castile.kernels.triton.channels import (
    as_one_row,
    channels_last,
    grouped,
    grouped_channels_last,
    without_unit_steps,
)
from castile.kernels.triton.contract import Tile, contract, contract_pointwise
from castile.kernels.triton.conv_settings import ConvSetting, Images, has_channels_apart
from castile.kernels.triton.depthwise import (
    depthwise,
    depthwise_input_gradient,
    depthwise_weight_gradient,
    is_depthwise,
)
from castile.kernels.triton.few_channels import (
    copy_size,
    has_few_channels,
    row_inputs,
    row_weight_gradient,
    row_weights,
    row_windows,
)
from castile.kernels.triton.implicit_gemm import Windows, has_vectors, implicit_gemm, is_scattered
from castile.kernels.triton.launch import Launch, LaunchPlan, are_floats, fixed_plan, planned
from castile.kernels.triton.layout import copy
from castile.kernels.triton.views import View, loop_nest, permuted, view
from castile.kernels.triton.weight_gradient import partial_sums, split_k, sum_parts, weight_gradient
from castile.kernels.windows import Pads, Pair

# Elements of a copy of images, so that working memory is bounded, and much of what is written is read from the cache.
_COPIED = 2**25


@planned
def conv2d(
    out: Any, x: Any, w: Any, *, stride: Pair, pads: Pads, dilation: Pair = (1, 1), groups: int = 1, accumulate: bool
) -> LaunchPlan | None:
    """See the definition. Sums are in float32."""
    if not are_floats(out, x, w) or 0 in (x.size, w.size):
        return None
    if out.size == 0:
        return fixed_plan()
    out, x, w = _with_rows(out, x, w)
    windows = Windows(w.shape[2:], stride, (pads[0], pads[2]), dilation)
    images = _grouped(out, x, w, groups, windows)
    if is_depthwise(images.w):
        return depthwise(*images, windows, accumulate)
    made = [
        *_pointwise_plans(images, windows, out, x, w, "o", "i", accumulate),
        _implicit_gemm(images, windows, False, accumulate),
    ]
    if has_few_channels(images.x, windows):
        # Products of float32 take longer than looking up, and rows are filled up with some that count for nothing.
        made.insert(0 if x.dtype.itemsize == 2 else len(made), _few_channels(images, windows, accumulate))
    return _alternatives(made)


@planned
def conv2d_grad_input(
    out: Any,
    dy: Any,
    w: Any,
    onto: Any = None,
    *,
    shape: tuple[int, ...],
    stride: Pair,
    pads: Pads,
    dilation: Pair = (1, 1),
    groups: int = 1,
    accumulate: bool,
) -> LaunchPlan | None:
    """See the definition. Sums are in float32."""
    if not are_floats(out, dy, w) or 0 in (dy.size, w.size):
        return None
    if out.size == 0:
        return fixed_plan()
    there = None if onto is None else inspect.unwrap(copy)(out, onto, accumulate=accumulate)
    out, dy, w = _with_rows(out, dy, w)
    to = None if onto is None else _with_rows(onto)[0]
    windows = Windows(w.shape[2:], stride, (pads[0], pads[2]), dilation)
    images = _grouped(dy, out, w, groups, windows)
    if is_depthwise(images.w):
        return _in_sequence(
            there, depthwise_input_gradient(images.x, images.y, images.w, windows, accumulate or there is not None)
        )
    made = [
        *_pointwise_plans(images, windows, out, dy, w, "i", "o", accumulate, to),
        _in_sequence(there, _implicit_gemm(images, windows, True, accumulate or there is not None)),
    ]
    return _alternatives(made)


@planned
def conv2d_grad_weight(
    out: Any,
    dy: Any,
    x: Any,
    *,
    kernel: tuple[int, ...],
    stride: Pair,
    pads: Pads,
    dilation: Pair = (1, 1),
    groups: int = 1,
    accumulate: bool,
) -> LaunchPlan | None:
    """See the definition. Sums are in float32."""
    if not are_floats(out, dy, x) or 0 in (dy.size, x.size):
        return None
    out, dy, x = _with_rows(out, dy, x)
    windows = Windows(out.shape[2:], stride, (pads[0], pads[2]), dilation)
    images = _grouped(dy, x, out, groups, windows)
    if is_depthwise(images.w):
        return depthwise_weight_gradient(images.w, images.y, images.x, windows, accumulate)
    settings = conv_settings.weight_gradient_settings(images, windows, prod(dy.shape[2:]) * dy.shape[0])
    made: list[LaunchPlan | None] = [
        LaunchPlan(settings, lambda way: _weight_gradient(images, windows, way, accumulate))
    ]
    if has_few_channels(images.x, windows):
        pieces = list(_samples(images.x, images.y, copy_size(images.x, windows, images.y.shape[4])))
        made.insert(0, row_weight_gradient(images.w, pieces, windows, accumulate))
    if _is_pointwise(images, windows) and _is_one_matrix(images):
        # Last, since its sums have few parts: too few for the chip where a weight is small.
        made.append(_contracted(out[:, :, 0, 0], "zohw,zihw->oi", dy, x, accumulate))
    return _alternatives(made)


def _is_pointwise(images: Images, windows: Windows) -> bool:
    """Whether each place is a product of its own: windows of one element, no groups, as many places in as out."""
    return windows.alone and images.w.shape[0] == 1 and images.y.shape[3:] == images.x.shape[3:]


def _is_one_matrix(images: Images) -> bool:
    """Whether the places of all samples are the rows of one matrix whose columns are channels."""
    places = loop_nest([permuted(one, (0, 3, 4)) for one in images[:2]])
    return images.y.steps[2] == images.x.steps[2] == 1 and len(places.sizes) == 1


def _pointwise_plans(
    images: Images, windows: Windows, out: Any, x: Any, w: Any, made: str, summed: str, adds: bool, onto: Any = None
) -> Iterator[LaunchPlan | None]:
    """Plans of a 1x1 convolution as one product over all places, or as one for each sample."""
    if not _is_pointwise(images, windows):
        return
    weights = w[:, :, 0, 0]
    if _is_one_matrix(images):
        yield _contracted(out, f"z{summed}hw,oi->z{made}hw", x, weights, adds, onto)
    elif prod(images.x.shape[3:]) % 16 == 0:
        every = np.broadcast_to(weights, (x.shape[0], *weights.shape))
        yield _contracted(out, f"zoi,z{summed}hw->z{made}hw", every, x, adds, onto)


def _contracted(out: Any, spec: str, first: Any, second: Any, adds: bool, onto: Any = None) -> LaunchPlan | None:
    plan: LaunchPlan | None
    if onto is None:
        plan = inspect.unwrap(contract)(out, spec, first, second, scratch=None, accumulate=adds)
    else:
        plan = inspect.unwrap(contract_pointwise)(out, spec, "x, y -> x + y", first, second, onto, accumulate=adds)
    return plan


def _in_sequence(first: LaunchPlan | None, plan: LaunchPlan) -> LaunchPlan:
    """A plan whose launches follow those of another one, if there is one."""
    if first is None:
        return plan
    ahead = first.launches(first.settings[0])
    return LaunchPlan(plan.settings, lambda one: [*ahead, *plan.launches(one)])


def _alternatives(plans: Sequence[LaunchPlan | None]) -> LaunchPlan:
    """The settings of all plans that exist, the first plan's first; settings of different plans differ."""
    owners = {one: plan for plan in plans if plan for one in plan.settings}
    assert len(owners) == sum(len(plan.settings) for plan in plans if plan), "a setting is of one plan"
    return LaunchPlan(tuple(owners), lambda one: owners[one].launches(one))


def _with_rows(*arrays: Any) -> tuple[Any, ...]:
    """The arrays with a dim of rows, one where an array has none."""
    return tuple(x[:, :, None] if x.ndim == 3 else x for x in arrays)


def _grouped(y: Any, x: Any, w: Any, groups: int, windows: Windows) -> Images:
    """The arrays in groups. For 1x1 windows rows that follow each other become one row."""
    images = Images(grouped(view(y), 1, groups), grouped(view(x), 1, groups), grouped(without_unit_steps(w), 0, groups))
    dense = all(one.steps[3] == one.shape[4] * one.steps[4] for one in images[:2])
    if dense and windows.alone and images.y.shape[3:] == images.x.shape[3:]:
        return images._replace(y=as_one_row(images.y), x=as_one_row(images.x))
    return images


def _implicit_gemm(images: Images, windows: Windows, back: bool, adds: bool) -> LaunchPlan:
    """The plan of y from x, or with `back` of x's gradient from y's, as an implicit GEMM."""
    to, of = (images.x, images.y) if back else (images.y, images.x)
    piece = next(_samples(to, of, has_channels_apart(of) * _most(to, of)))[0]
    num_n = prod(to.shape[3:]) * piece.shape[0]

    def launches(way: ConvSetting) -> list[Launch]:
        weights = permuted(images.w, (0, 2, 1, 3, 4)) if back else images.w
        found = []
        if way.vectors and not has_vectors(weights, to, windows):
            # What is summed is to lie together: of [g,m,c,r,s] the dim c.
            weights, first = channels_last(weights)
            found.append(first)
        copies = way.vectors and has_channels_apart(of)
        for here, met in _samples(to, of, copies * _most(to, of)):
            if copies:
                met, first = grouped_channels_last(met)
                found.append(first)
            turned = back and not windows.alone
            found.append(implicit_gemm(here, met, weights, windows, way.tile, turned, way.vectors, adds))
        return found

    return LaunchPlan(conv_settings.gemm_settings(images, windows, num_n, back, adds), launches)


def _few_channels(images: Images, windows: Windows, adds: bool) -> LaunchPlan:
    """The plan of y with a window's row in the channels' place. A setting is a tile."""
    weights, weighed = row_weights(images.w)
    places = images.y.shape[3:]
    pieces = list(_samples(images.y, images.x, copy_size(images.x, windows, places[1])))
    num_n = prod(places) * pieces[0][0].shape[0]

    def launches(tile: Tile) -> list[Launch]:
        found = [weighed]
        for to, of in pieces:
            met, first = row_inputs(of, windows, places[1])
            found += [first, implicit_gemm(to, met, weights, row_windows(windows), tile, False, True, adds)]
        return found

    return LaunchPlan(conv_settings.few_channel_tiles(weights, num_n, images.y.array.dtype.itemsize), launches)


def _weight_gradient(images: Images, windows: Windows, way: ConvSetting, adds: bool) -> list[Launch]:
    """The partial sums of dw, over all pieces of the batch, and their sum."""
    y, x, dw = images
    copies = (way.vectors and has_channels_apart(x), way.vectors and has_channels_apart(y) and is_scattered(y, windows))
    pieces = list(_samples(x, y, any(copies) * _most(x, y)))
    places = prod(pieces[0][1].shape[:1] + pieces[0][1].shape[3:])
    parts = split_k(dw, places, x.array.dtype.itemsize, way.tile, way.beside)
    whole = parts.num == len(pieces) == 1 and not (way.vectors and has_channels_apart(dw))
    to = View(dw.array, (1, *dw.shape), (0, *dw.steps)) if whole else partial_sums(dw, parts.num, way.vectors)
    found = []
    for number, (met, grad) in enumerate(pieces):
        if copies[0]:
            met, first = grouped_channels_last(met)
            found.append(first)
        if copies[1]:
            grad, first = grouped_channels_last(grad)
            found.append(first)
        adding = adds if whole else number > 0
        found.append(weight_gradient(to, grad, met, windows, way.tile, way.beside, parts, way.vectors, adding))
    return found if whole else [*found, *sum_parts(dw, to, adds)]


def _most(one: View, other: View) -> int:
    """Elements of the larger sample."""
    return max(prod(one.shape[1:]), prod(other.shape[1:]))


def _samples(one: View, other: View, each: int) -> Iterator[tuple[View, View]]:
    """Two views of images, some samples at a time where `each` elements of a sample are copied; otherwise all at once.
    """
    batch = one.shape[0]
    num = -(-batch // max(1, _COPIED // each)) if each else 1
    size = -(-batch // num)
    for start in range(0, batch, size):
        yield (
            _slice_samples(one, start, min(start + size, batch)),
            _slice_samples(other, start, min(start + size, batch)),
        )


def _slice_samples(one: View, start: int, stop: int) -> View:
    if stop - start == one.shape[0]:
        return one
    return View(one.array[start:stop], (stop - start, *one.shape[1:]), one.steps)
