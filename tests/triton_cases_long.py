"""Cases that the common ones of a kernel lack: those that take another way through its Triton form."""

from typing import Any

import numpy as np

from castile.kernels.table import definitions
from tests.kernel_cases import Case, Draw

_DRAW = Draw("float32")


def _alike(num: int, rows: int) -> np.ndarray:
    """Integers of which many are equal."""
    ids = _DRAW.ids(rows, num)
    ids[_DRAW.random.random(num) < 0.3] = 7
    return ids


def _entropy_slopes(logits: np.ndarray, labels: np.ndarray) -> Case:
    lse = definitions()["cross_entropy"](logits, labels, scale=0.3)[1]
    return (_DRAW(), logits, labels, lse), {"scale": 0.3}


# Channels of a group are whole sectors of memory.
_SECTORS = (2, 32, 9, 7)


def _unlike(*shape: int) -> np.ndarray:
    """Images of which the first place of each channel is far from the others."""
    x = _DRAW(*shape)
    x[:, :, 0, 0] = 1000
    return x


def _attention(heads: int, width: int, num: int, keys: int, slopes: bool) -> Case:
    """The last of a sequence's queries on all of its keys, of one head that they share."""
    q, kk, v = _DRAW(1, num, heads * width), _DRAW(1, keys, width), _DRAW(1, keys, width)
    params = {"heads": heads, "causal": True, "offset": keys - num, "scale": width**-0.5}
    y, lse = definitions()["attention"](q, kk, v, **params)
    return ((_DRAW(*q.shape), q, kk, v, y, lse) if slopes else (q, kk, v)), params


def _group_slopes(*gain: np.ndarray, shape: tuple[int, ...] = (2, 4, 50, 60)) -> Case:
    x = _DRAW(*shape)
    return (_DRAW(*x.shape), x, *gain, _DRAW(2, 2), _many(2, 2)), {}


def _many(*shape: int) -> np.ndarray:
    """Numbers that are not below 0."""
    return np.asarray(np.abs(_DRAW(*shape)))


# Of images, kernel, stride and pads: columns of which a thread has several, read and written as vectors.
_POOLED: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((2, 3, 11, 16), {"kernel": (3, 3), "stride": (2, 2), "pads": (1, 1, 1, 1)}),
    ((1, 2, 5, 24), {"kernel": (2, 3), "stride": (1, 1), "pads": (1, 0, 1, 1)}),
    ((2, 2, 6, 16), {"kernel": (2, 2), "stride": (2, 2), "pads": (0, 0, 0, 0)}),
    ((1, 3, 7, 16), {"kernel": (3, 5), "stride": (2, 1), "pads": (0, 1, 2, 2)}),
    ((2, 1, 4, 32), {"kernel": (3, 6), "stride": (1, 4), "pads": (1, 1, 2, 0)}),
]


def _pooled(size: tuple[int, ...], how: dict[str, Any]) -> np.ndarray:
    """What becomes of such images, in numbers of which none are equal."""
    return np.asarray(_DRAW(*definitions()["max_pool2d"](_DRAW(*size), **how).shape))


def _odd(*shape: int) -> np.ndarray:
    """Numbers of which many are equal, none, without end, or one of two zeros."""
    some = np.array([np.nan, -np.inf, -np.inf, -np.inf, np.inf, 0.0, -0.0, 1.0, -1.0], "float32")
    return np.asarray(some[_DRAW.random.integers(0, len(some), shape)])


_ADAFACTOR = {"beta2_decay": -0.8, "eps1": 1e-7, "eps2": 1e-3, "clip": 1.0, "decay": 0.1}

# x, output channels, kernel, stride, pads, dilation and groups of so many images that a step is of one place of some.
_MANY_IMAGES = (
    ((64, 16, 4, 3), 17, (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1),
    ((64, 17, 7, 9), 18, (3, 3), (2, 2), (1, 1, 1, 1), (1, 1), 1),
    ((64, 34, 5, 4), 32, (3, 2), (2, 1), (1, 0, 3, 0), (1, 2), 2),
    ((128, 19, 5, 6), 16, (1, 1), (2, 2), (0, 0, 0, 0), (1, 1), 1),
)


def _window_slopes(size: Any, outputs: int, kernel: Any, stride: Any, pads: Any, dilation: Any, groups: int) -> Case:
    how = {"stride": stride, "pads": pads, "dilation": dilation, "groups": groups}
    x, w = _DRAW(*size), _DRAW(outputs, size[1] // groups, *kernel)
    return (_DRAW(*definitions()["conv2d"](x, w, **how).shape), x), how | {"kernel": kernel}


# What the common cases lack: a fold in parts, rows longer than a program holds, of which some begin between boundaries
# of 16 bytes, a product summed in parts, integers that need several programs to be sorted, planes walked in runs,
# heads as wide as those of networks.
LONG: dict[str, list[Case]] = {
    "sum_over": [((_DRAW(9000, 3),), {"dims": (0,)}), ((_DRAW(40000),), {"dims": (0,)})],
    "max_over": [((_DRAW(9000, 3),), {"dims": (0,)})],
    "softmax": [((_DRAW(2, 16500),), {}), ((_DRAW(2, 16400),), {}), ((_DRAW(5, 37),), {})],
    "softmax_grad": [((_DRAW(3, 16501), _DRAW(3, 16501)), {})],
    "log_softmax": [((_DRAW(3, 16501),), {}), ((_DRAW(9, 16),), {})],
    "log_softmax_grad": [((_DRAW(3, 16501), _DRAW(3, 16501)), {})],
    "cross_entropy": [((_DRAW(3, 16501), _DRAW.ids(16501, 3)), {"scale": 0.3})],
    "cross_entropy_grad": [
        _entropy_slopes(_DRAW(3, 16501), _DRAW.ids(16501, 3)),
        _entropy_slopes(_DRAW(9, 19), _DRAW.ids(19, 9)),
    ],
    "block_entropy": [((_DRAW(2, 16501), _DRAW.ids(16501, 2)), {"blocks": 1, "first": 0, "of": 1, "classes": 16501})],
    "contract": [(("ki,kj->ij", _DRAW(2100, 17), _DRAW(2100, 20)), {})],
    "contract_pointwise": [
        (
            ("ki,kj->ij", "s, b, x -> a * s - b * x", _DRAW(2100, 17), _DRAW(2100, 20), _DRAW(20), _DRAW(17, 20)),
            {"a": 0.3},
        ),
        (("bki,bkj->jbi", "s, x -> s + x", _DRAW(2, 2100, 17), _DRAW(2, 2100, 20), _DRAW(20, 1, 17)), {}),
    ],
    "embedding_grad": [
        ((_DRAW(520, 5), _alike(520, 300)), {"rows": 300, "first": 0, "known": 300}),
        ((_DRAW(260, 5), _DRAW.ids(1000, 260)), {"rows": 250, "first": 300, "known": 1000}),
    ],
    "moments": [((_DRAW(*size),), {"scale": 1e-3}) for size in ((9000, 3), (2, 3, 90, 100), (2, 5, 35, 35))],
    "norm_grad": [
        ((_DRAW(2100, 3), _DRAW(2100, 3), _DRAW(3, 3)), {}),
        ((_DRAW(2, 3, 90, 50), _DRAW(2, 3, 90, 50), _DRAW(3, 3)), {}),
        ((_DRAW(2, 5, 35, 60), _DRAW(2, 5, 35, 60), _DRAW(3, 5)), {}),
    ],
    "attention": [_attention(2, 64, 70, 140, False), _attention(1, 128, 40, 72, False)],
    "attention_grad": [_attention(2, 64, 70, 140, True), _attention(1, 128, 40, 72, True)],
    "queue": [((_DRAW.ids(3, 1, 1500, 2, dtype="int32"),), {"num_experts": 3, "capacity": 700})],
    "expert_share": [
        ((_DRAW.ids(3, 2, 1500, 2, dtype="int32"),), {"num_experts": 3, "first_expert": 0, "dtype": "float32"})
    ],
    "top_k": [((_DRAW(2, 16500),), {"count": 2})],
    "layer_norm": [((_DRAW(2, 16500), _DRAW(16500), _DRAW(16500)), {"eps": 1e-5})],
    "layer_norm_grad_input": [((_DRAW(2, 16500), _DRAW(2, 16500), _DRAW(16500), _DRAW(2), _DRAW(2)), {})],
    "layer_norm_grad_params": [((_DRAW(2500, 20), _DRAW(2500, 20), _DRAW(2500), _DRAW(2500)), {})],
    "rms_norm": [((_DRAW(2, 16500), _DRAW(16500)), {"eps": 1e-5})],
    "rms_norm_grad_input": [((_DRAW(2, 16500), _DRAW(2, 16500), _DRAW(16500), _DRAW(2)), {})],
    "square_sum": [((_DRAW(300, 200),), {})],
    "conv2d_grad_weight": [_window_slopes(*one) for one in _MANY_IMAGES],
    "max_pool2d": [((np.round(_DRAW(*size)),), how) for size, how in _POOLED],
    "max_pool2d_grad": [
        ((_pooled(size, how), x), how) for size, how in _POOLED for x in (np.round(_DRAW(*size)), _odd(*size))
    ],
    "avg_pool2d": [((_DRAW(*size),), how | {"padded": n % 2 > 0}) for n, (size, how) in enumerate(_POOLED)],
    "avg_pool2d_grad": [
        ((_pooled(size, how),), how | {"shape": size, "padded": n % 2 > 0}) for n, (size, how) in enumerate(_POOLED)
    ],
    "adafactor": [((_DRAW(300, 129), _DRAW(300, 129), _many(300), _many(129), _many(), _many()), _ADAFACTOR)],
    "group_norm_grad_input": [_group_slopes(_DRAW(4)), _group_slopes(_DRAW(32), shape=_SECTORS)],
    "group_norm_grad_params": [_group_slopes(), _group_slopes(shape=_SECTORS)],
    "group_norm": [
        ((30 + _DRAW(2, 4, 50, 60), _DRAW(4), _DRAW(4)), {"groups": 2, "eps": 1e-5}),
        ((30 + _DRAW(*_SECTORS), _DRAW(32), _DRAW(32)), {"groups": 2, "eps": 1e-5}),
        ((_unlike(2, 4, 50, 60), _DRAW(4), _DRAW(4)), {"groups": 2, "eps": 1e-5}),
    ],
}

# Rows of such lengths are longer than a program holds; and one that is so where elements of a row lie apart.
_LONG_ROWS, _FEW_BLOCKS = (16500, 16501), 75


def long_apart(name: str) -> list[Case]:
    """LONG of a kernel for arrays whose last dim is outermost, where programs have some columns at once, whatever the
    length of rows: these are shorter. Logits with their labels stay what they are.
    """
    return [
        (tuple(_shorter(x) for x in args), params)
        if all(isinstance(x, np.ndarray) and x.dtype.kind == "f" for x in args)
        else (args, params)
        for args, params in LONG.get(name, [])
    ]


def _shorter(x: np.ndarray) -> np.ndarray:
    return x[..., :_FEW_BLOCKS].copy() if x.shape[-1:] and x.shape[-1] in _LONG_ROWS else x
