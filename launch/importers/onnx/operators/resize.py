"""Images of other sizes: nearest neighbours, each as often as a whole number says, and any other interpolation.

These go dim by dim, and what a dim becomes is a product with a matrix: what ONNX's own evaluator makes of unit vectors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from castile.launch.importers.onnx import shaping
from castile.launch.importers.onnx.file import package
from castile.launch.importers.onnx.folding import evaluated
from castile.launch.importers.onnx.network import Call
from castile.launch.importers.onnx.operators import handles
from castile.launch.importers.onnx.operators.layout import listed
from castile.launch.importers.onnx.operators.products import along
from castile.launch.importers.onnx.values import Unsupported, known
from castile.planner.op import Tensor

# The version of the operator by which the others are told, too.
VERSION = 19
SETTINGS = ("mode", "nearest_mode", "coordinate_transformation_mode", "cubic_coeff_a", "exclude_outside", "antialias")


@handles("Resize", "Upsample")
def resize(c: Call) -> Tensor:
    x, how = c.tensor(0), {name: found for name in SETTINGS if (found := c.get(name)) is not None}
    if c.op == "Upsample" or c.version < 11:
        how |= {"coordinate_transformation_mode": b"asymmetric", "nearest_mode": b"floor"}
    c.has(1), c.get("extrapolation_value")
    if how.get("coordinate_transformation_mode") == b"tf_crop_and_resize":
        raise Unsupported("of a part of an image")
    if c.get("keep_aspect_ratio_policy", b"stretch") != b"stretch":
        raise Unsupported("that keeps the ratio of its sides")
    scales, sizes = _stated(c)
    for dim, length in enumerate(x.shape):
        scale, size = scales.get(dim, 1.0), sizes.get(dim)
        is_batch = dim == 0 and size == c.net.file_batch and length == c.net.batch
        if is_batch or size == length or (size is None and scale == 1):
            continue
        times = size // length if size is not None and size % length == 0 else int(scale)
        is_whole = times * length == size if size is not None else scale == times
        if is_whole and _stand_side_by_side(how):
            x = _repeated(c, x, dim, times)
        else:
            x = _interpolated(c, x, dim, {"scales": scale} if size is None else {"sizes": size}, how)
    return x


def _stated(c: Call) -> tuple[dict[int, float], dict[int, int]]:
    """How many times as long dims become, and how long, of those of which it is said."""
    sizes = listed(c, 3, "") if c.op == "Resize" else None
    scales = c.known(2 if c.op == "Resize" and c.version > 10 else 1, c.get("scales"))
    axes = [dim % len(c.shape(0)) for dim in c.get("axes") or range(len(c.shape(0)))]
    if sizes is not None:
        return {}, dict(zip(axes, sizes, strict=True))
    if scales is None or len(scales) != len(axes):
        raise Unsupported("without a size")
    return dict(zip(axes, map(float, scales), strict=True)), {}


def _stand_side_by_side(how: Mapping[str, Any]) -> bool:
    """Whether copies of each element, a whole number of them, stand side by side."""
    where = how.get("coordinate_transformation_mode", b"half_pixel")
    nearest = how.get("nearest_mode", b"round_prefer_floor")
    is_alike = (where == b"asymmetric" and nearest == b"floor") or (b"half_pixel" in where and nearest[:5] == b"round")
    return how.get("mode", b"nearest") == b"nearest" and is_alike


def _repeated(c: Call, x: Tensor, dim: int, times: int) -> Tensor:
    apart = shaping.reshaped(c.g, c.inner(f"apart{dim}"), x, (*x.shape[: dim + 1], 1, *x.shape[dim + 1 :]))
    many = c.g.expand(c.inner(f"many{dim}"), apart, (*x.shape[: dim + 1], times, *x.shape[dim + 1 :]))
    return shaping.reshaped(
        c.g, c.inner(f"dim{dim}"), many, (*x.shape[:dim], x.shape[dim] * times, *x.shape[dim + 1 :])
    )


def _interpolated(c: Call, x: Tensor, dim: int, stated: Mapping[str, float], how: Mapping[str, Any]) -> Tensor:
    """A dim as a product with a matrix of constants."""
    return along(c, c.inner(f"dim{dim}"), x, dim, known(f"{c.name}.dim{dim}", _matrix(x.shape[dim], stated, how)))


def _matrix(length: int, stated: Mapping[str, float], how: Mapping[str, Any]) -> np.ndarray:
    """What each element of a dim gives to each that is made of it [made, length]."""
    (name, number), given = next(iter(stated.items())), {"x": np.eye(length)}
    given[name] = np.array([length, number], np.int64) if name == "sizes" else np.array([1, number], np.float32)
    inputs = ["x", "", "", "sizes"] if name == "sizes" else ["x", "", "scales"]
    node = package().helper.make_node("Resize", inputs, ["y"], **how)
    (found,) = evaluated(node, [given.get(one) for one in inputs], {"": VERSION})
    return found.astype(np.float64).T
