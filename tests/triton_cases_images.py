"""Convolutions, pooling and norms of real networks of images, as arrays that are not there: what
`tests.triton_cases.large` finds. And images of any case with their channels innermost.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from castile.kernels.windows import count
from tests.kernel_cases import Case
from tests.triton_arrays import array

# x, output channels, kernel, stride, pads and groups of ResNet-50 and of MobileNet.
_LAYERS = (
    ((64, 64, 56, 56), 64, 3, 1, 1, 1),
    ((64, 128, 56, 56), 128, 3, 2, 1, 1),
    ((64, 256, 56, 56), 64, 1, 1, 0, 1),
    ((64, 1024, 14, 14), 256, 1, 1, 0, 1),
    ((64, 512, 7, 7), 2048, 1, 1, 0, 1),
    ((64, 3, 224, 224), 64, 7, 2, 3, 1),
    ((64, 96, 112, 112), 96, 3, 1, 1, 96),
)

# Samples, rows, columns, channels.
INNERMOST = (0, 2, 3, 1)


def is_image(x: Any, case: Case) -> bool:
    """Whether x has four dims, and as many samples as the first array of a case: weights have not."""
    first: Any = next((one for one in case[0] if hasattr(one, "strides")), None)
    return first is not None and len(getattr(x, "shape", ())) == 4 and x.shape[:1] == first.shape[:1]


def turned(case: Case, lay: Callable[[Any, list[int]], Any]) -> Callable[[Any], Any]:
    """What has `lay` put the images of a case so that their channels are innermost, and leaves what is none."""
    return lambda x: lay(x, list(INNERMOST)) if is_image(x, case) else x


def layouts(case: Case) -> dict[str, Callable[[Any], Any]]:
    """What lays arrays that are not there, by how: as they come, images with channels innermost, and those but
    for images of a number of channels that is no multiple of 8, as pictures stay as they come from the host.
    """

    def laid(x: Any, order: list[int]) -> Any:
        return array(tuple(x.shape[dim] for dim in order), x.dtype.name).transpose(np.argsort(order))

    def few(x: Any) -> bool:
        return is_image(x, case) and x.shape[1] % 8 > 0

    innermost = turned(case, laid)
    return {"": lambda x: x, "channels innermost": innermost, "but of few": lambda x: x if few(x) else innermost(x)}


def large_conv2d(draw: Any) -> Iterator[Case]:
    for x, o, size, stride, pad, groups in _LAYERS:
        yield (draw(*x), draw(o, x[1] // groups, size, size)), _windows(stride, pad) | {"groups": groups}


def large_conv2d_grad_input(draw: Any) -> Iterator[Case]:
    for (x, w), params in large_conv2d(draw):
        given, how = (_convolved(draw, x, w, params), w), params | {"shape": x.shape}
        yield given, how
        # of other windows what is added to is copied first, and what is there is added to
        if w.shape[2:] == (1, 1):
            yield (*given, draw(*x.shape)), how


def large_conv2d_grad_weight(draw: Any) -> Iterator[Case]:
    # of few places a step is of one of them, in several images
    how = {7: _windows(1, 1), 14: _windows(2, 1)}
    few = [((draw(64, 512, n, n), draw(512, 512, 3, 3)), one | {"groups": 1}) for n, one in how.items()]
    for (x, w), params in (*large_conv2d(draw), *few):
        yield (_convolved(draw, x, w, params), x), params | {"kernel": w.shape[2:]}


def _windows(stride: int, pad: int) -> dict[str, Any]:
    return {"stride": (stride,) * 2, "pads": (pad,) * 4, "dilation": (1, 1)}


def _convolved(draw: Any, x: Any, w: Any, params: dict[str, Any]) -> Any:
    size = count(tuple(n + 2 * params["pads"][0] for n in x.shape[2:]), w.shape[2:], params["stride"])
    return draw(x.shape[0], w.shape[0], *size)


def large_max_pool2d(draw: Any) -> Iterator[Case]:
    yield (draw(64, 64, 112, 112),), {"kernel": (3, 3), "stride": (2, 2), "pads": (1, 1, 1, 1)}


def large_max_pool2d_grad(draw: Any) -> Iterator[Case]:
    for (x,), params in large_max_pool2d(draw):
        yield (draw(64, 64, 56, 56), x), params


def large_avg_pool2d(draw: Any) -> Iterator[Case]:
    for padded in (False, True):
        for (x,), params in large_max_pool2d(draw):
            yield (x,), params | {"padded": padded}


def large_avg_pool2d_grad(draw: Any) -> Iterator[Case]:
    for (x,), params in large_avg_pool2d(draw):
        yield (draw(64, 64, 56, 56),), params | {"shape": x.shape}


def large_global_pool(draw: Any) -> Iterator[Case]:
    yield (draw(64, 2048, 7, 7),), {"scale": 1 / 49}


def large_global_pool_grad(draw: Any) -> Iterator[Case]:
    yield (draw(64, 2048),), {"scale": 1 / 49, "shape": (64, 2048, 7, 7)}


# x of batch norms of ResNet-50: few wide channels, many narrow ones.
_BATCHES = ((64, 64, 112, 112), (64, 256, 56, 56), (64, 2048, 7, 7), (8192, 1024))


def large_moments(draw: Any) -> Iterator[Case]:
    for x in _BATCHES:
        yield (draw(*x),), {"scale": 1e-5}


def large_moments_grad(draw: Any) -> Iterator[Case]:
    for x in _BATCHES:
        yield (array((2, x[1]), "float64"), draw(*x)), {"scale": 1e-5}


def large_norm(draw: Any) -> Iterator[Case]:
    for x in _BATCHES:
        yield (draw(*x), draw(3, x[1])), {}


def large_norm_grad(draw: Any) -> Iterator[Case]:
    for x in _BATCHES:
        yield (draw(*x), draw(*x), draw(3, x[1])), {}


def large_norm_grad_pointwise(draw: Any) -> Iterator[Case]:
    for x in _BATCHES:
        for keeps in (False, True):
            yield ("d, y -> where(y > 0, d, 0)", draw(*x), draw(3, x[1]), draw(*x), draw(*x)), {"keeps": keeps}


def large_norm_factors(draw: Any) -> Iterator[Case]:
    yield (draw(2048), draw(2048), array((2, 2048), "float64")), {"eps": 1e-5}


def large_norm_factors_grad(draw: Any) -> Iterator[Case]:
    yield (draw(3, 2048), draw(2048), array((2, 2048), "float64")), {"eps": 1e-5}


# x and groups of a U-Net of images, and of a ResNet-50 with group norm.
_GROUPED = (((16, 320, 64, 64), 32), ((64, 2048, 7, 7), 32))


def large_group_norm(draw: Any) -> Iterator[Case]:
    for x, groups in _GROUPED:
        yield (draw(*x), draw(x[1]), draw(x[1])), {"groups": groups, "eps": 1e-5}


def large_group_norm_grad_input(draw: Any) -> Iterator[Case]:
    for x, groups in _GROUPED:
        yield (draw(*x), draw(*x), draw(x[1]), draw(x[0], groups), draw(x[0], groups)), {}


def large_group_norm_grad_params(draw: Any) -> Iterator[Case]:
    for x, groups in _GROUPED:
        yield (draw(*x), draw(*x), draw(x[0], groups), draw(x[0], groups)), {}
