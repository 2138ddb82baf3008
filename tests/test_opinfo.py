"""Operators against PyTorch's own samples of the same operators, forward and every gradient, in float64.

A function `from_<operator>` reads a sample as a case of the operator, or says why it cannot; found by its name.
"""

import warnings
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from math import prod

import numpy as np
import pytest

from castile.planner.op import available, find
from castile.planner.ops.add import Add
from castile.planner.ops.attention import Attention
from castile.planner.ops.conv2d import Conv2d
from castile.planner.ops.gelu import Gelu
from castile.planner.ops.layer_norm import LayerNorm
from castile.planner.ops.max_pool2d import MaxPool2d
from castile.planner.ops.reshape import Reshape
from castile.planner.windows import pair
from tests.op_cases import case
from tests.op_laws import node_of, passes, relative, run, targets

torch = pytest.importorskip("torch", reason="PyTorch is not installed: nothing to compare with")
pytest.importorskip("expecttest", reason="expecttest is not installed: PyTorch's samples need it")

MOST_SAMPLES = 60
TOLERANCE = 1e-10
SMALLEST = 1e-3
NAMES = {"add": "add", "attention": "nn.functional.scaled_dot_product_attention", "reshape": "reshape", "sum": "sum"}
NAMES |= {
    name: f"nn.functional.{name}"
    for name in (
        "conv2d", "cross_entropy", "embedding", "gelu", "layer_norm", "linear", "max_pool2d", "relu",
    )
}  # fmt: skip
LETTERS = "abcdefgh"


class Skip(Exception):
    """Why a sample is no case of the operator."""


def names(count: int) -> str:
    return " ".join(LETTERS[:count])


class Read:
    """A sample read as an operator and its operands.

    operands   (tensor of the sample, how it becomes the operand, axes)
    result     how the operator's result is laid out in the sample's way
    """

    def __init__(self, op, operands, result=lambda y: y):
        self.op, self.operands, self.result = op, operands, result


def same(tensor):
    return tensor


def refuse(kwargs: dict, **harmless) -> None:
    """Settings that the operator does not have are a reason, unless they have their harmless value."""
    for key, value in kwargs.items():
        if key in harmless and value != harmless[key]:
            raise Skip(f"{key} is not {harmless[key]}")


def from_linear(x, w, b=None):
    if w.ndim != 2 or x.ndim < 1:
        raise Skip("a weight without two dims")
    operands = [(x, same, names(x.ndim - 1) + " i"), (w, same, "*o i")]
    return Read(find("linear")(), operands + ([(b, same, "*o")] if b is not None else []))


def from_conv2d(x, w, b=None, stride=1, padding=0, dilation=1, groups=1):
    refuse({"dilation": pair(dilation), "groups": groups}, dilation=(1, 1), groups=1)
    if padding == "same":
        if any(n % 2 == 0 for n in w.shape[2:]):
            raise Skip("padding is uneven")
        padding = tuple(n // 2 for n in w.shape[2:])
    padding = (0, 0) if padding == "valid" else pair(padding)
    if any(p >= n for p, n in zip(padding, w.shape[2:], strict=True)):
        raise Skip("padding is not smaller than the kernel")
    batched = x.ndim == 4
    operands = [(x, same if batched else lambda t: t[None], "b c h w"), (w, same, "*o i r s")]
    operands += [(b, same, "*o")] if b is not None else []
    return Read(Conv2d(pair(stride), padding), operands, same if batched else lambda y: y[0])


def from_max_pool2d(x, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, return_indices=False):
    refuse(
        {"dilation": pair(dilation), "ceil_mode": ceil_mode, "return_indices": return_indices},
        dilation=(1, 1), ceil_mode=False, return_indices=False,
    )  # fmt: skip
    batched = x.ndim == 4
    op = MaxPool2d(pair(kernel_size), pair(kernel_size if stride is None else stride), pair(padding))
    return Read(op, [(x, same if batched else lambda t: t[None], "b c h w")], same if batched else lambda y: y[0])


def from_relu(x, inplace=False):
    return Read(find("relu")(), [(x, same, names(x.ndim))])


def from_gelu(x, approximate="none"):
    return Read(Gelu(approximate), [(x, same, names(x.ndim))])


def from_layer_norm(x, normalized_shape, weight=None, bias=None, eps=1e-5):
    width, leading = prod(normalized_shape), x.ndim - len(normalized_shape)

    def flat(t):
        return t.reshape(*t.shape[: t.ndim - len(normalized_shape)], width)

    weight = torch.ones(normalized_shape, dtype=x.dtype) if weight is None else weight
    bias = torch.zeros(normalized_shape, dtype=x.dtype) if bias is None else bias
    operands = [(x, flat, names(leading) + " d"), (weight, flat, "*d"), (bias, flat, "*d")]
    return Read(LayerNorm(eps), operands, lambda y: y.reshape(x.shape))


def from_embedding(table, ids, **kwargs):
    harmless = {"padding_idx": None, "max_norm": None, "scale_grad_by_freq": False, "sparse": False}
    refuse(kwargs, **harmless)
    return Read(find("embedding")(), [(ids, same, names(ids.ndim)), (table, same, "*v d")])


def from_attention(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    given = {"attn_mask": attn_mask is not None, "dropout_p": dropout_p, "scale": scale, "enable_gqa": enable_gqa}
    refuse(given, attn_mask=False, dropout_p=0.0, scale=None, enable_gqa=False)
    if q.ndim not in (3, 4) or len({t.shape[:-2] for t in (q, k, v)}) > 1:
        raise Skip("batches are not alike")
    if q.shape[-1] != v.shape[-1]:
        raise Skip("values have another width than queries")
    heads = q.shape[1] if q.ndim == 4 else 1

    def merged(t):
        return t if t.ndim == 3 else t.transpose(1, 2).reshape(t.shape[0], t.shape[2], -1)

    def apart(y):
        return y if q.ndim == 3 else y.reshape(*y.shape[:2], heads, -1).transpose(0, 2, 1, 3)

    return Read(Attention(heads, is_causal), [(t, merged, "b s d") for t in (q, k, v)], apart)


def from_cross_entropy(logits, labels, **kwargs):
    refuse(kwargs, weight=None, label_smoothing=0.0, reduction="mean")
    if labels.is_floating_point():
        raise Skip("labels are probabilities")
    if (labels == kwargs.get("ignore_index", -100)).any():
        raise Skip("some labels are ignored")

    def last(t):
        return t.movedim(1, -1) if t.ndim > 1 else t

    leading = names(logits.ndim - 1)
    return Read(find("cross_entropy")(), [(logits, last, leading + " v"), (labels, same, leading)])


def from_add(x, other, alpha=1):
    refuse({"alpha": alpha}, alpha=1)
    if not torch.is_tensor(other) or other.dtype != x.dtype:
        raise Skip("the second is a number")
    if x.shape[x.ndim - other.ndim :] != other.shape or other.ndim > x.ndim:
        raise Skip("the second is not the last dims of the first")
    axes = LETTERS[: x.ndim]
    return Read(Add(), [(x, same, " ".join(axes)), (other, same, " ".join(axes[x.ndim - other.ndim :]))])


def from_sum(x, dim=None, keepdim=False):
    refuse({"dim": dim, "keepdim": keepdim}, dim=None, keepdim=False)
    return Read(find("sum")(), [(x, same, names(x.ndim))])


def from_reshape(x, *shape):
    new = tuple(x.reshape(*shape).shape)
    marks = sorted({prod(dims[n:]) for dims in (x.shape, new) for n in range(len(dims) + 1)})
    if x.numel() == 0 or any(b % a for a, b in pairwise(marks)):
        raise Skip("the dims have no common factors, or there is nothing")
    sizes = {LETTERS[n]: b // a for n, (a, b) in enumerate(pairwise(marks))}

    def side(dims):
        ends = [marks.index(prod(dims[n:])) for n in range(len(dims) + 1)]
        groups = [" ".join(LETTERS[low:high][::-1]) for high, low in pairwise(ends)]
        if not all(groups):
            raise Skip("a dim of one element")
        return " ".join(f"({group})" for group in groups)

    op = Reshape(f"{side(x.shape)} -> {side(new)}", tuple(sizes.items()))
    return Read(op, [(x, same, " ".join(f"x{n}" for n in range(x.ndim)))])


def samples(name: str):
    from torch.testing._internal.common_methods_invocations import op_db

    info = next(info for info in op_db if info.name == NAMES[name])
    return info, list(info.sample_inputs("cpu", torch.float64, requires_grad=True))


def numpy(tensor, lay_out) -> np.ndarray:
    array = lay_out(tensor.detach()).contiguous().numpy()
    return array if array.dtype.kind == "f" else array.astype(np.int32)


def compare(read: Read, expected) -> None:
    """Forward's first result and all gradients of the operator against PyTorch's."""
    c = case(read.op, *((numpy(t, lay_out), axes) for t, lay_out, axes in read.operands))
    part = node_of(c).whole()
    y = tuple(run(c, "F", part, c.arrays, None, None))
    assert agree(read.result(y[0]), expected.detach().numpy())
    pull = torch.randn_like(expected)
    inputs = [t for t, _, _ in read.operands if t.requires_grad]
    slopes = iter(torch.autograd.grad(expected, inputs, pull))
    wanted = {n: numpy(next(slopes), lay_out) for n, (t, lay_out, _) in enumerate(read.operands) if t.requires_grad}
    dy = _in_our_layout(read, pull.numpy(), y[0].shape)
    for which in set(passes(c)) - {"F"}:
        for n, gradient in zip(targets(c, which), run(c, which, part, c.arrays, dy, y), strict=True):
            if n in wanted:
                assert agree(gradient, wanted.pop(n)), f"operand {n}"
    assert not wanted, f"no gradient for operands {sorted(wanted)}"


def agree(a: np.ndarray, b: np.ndarray) -> bool:
    """To rounding; what should be zero (the gradient of a normalised single number) may be rounding itself."""
    largest = max(np.abs(b).max(initial=0), SMALLEST)
    return a.shape == b.shape and bool(np.abs(a - b).max(initial=0) <= TOLERANCE * largest)


def _in_our_layout(read: Read, pull: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The sample's layout undone: where each of our elements went, its gradient comes from."""
    places = read.result(np.arange(prod(shape)).reshape(shape))
    dy = np.empty(prod(shape))
    dy[places.ravel()] = pull.ravel()
    return dy.reshape(shape)


@pytest.mark.parametrize("name", sorted(NAMES))
def test_the_operator_agrees_with_torch(name: str, tell: Callable[[str], None]):
    info, found = samples(name)
    cases, reasons = [], Counter()
    for sample in found:
        try:
            cases.append((sample, globals()[f"from_{name}"](sample.input, *sample.args, **sample.kwargs)))
        except Skip as reason:
            reasons[str(reason)] += 1
    chosen = cases[:: -(-len(cases) // MOST_SAMPLES)]
    for sample, read in chosen:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected = info(sample.input, *sample.args, **sample.kwargs)
        compare(read, expected)
    if len(chosen) < len(cases):
        reasons[f"one in {len(cases) // len(chosen)} is enough"] = len(cases) - len(chosen)
    skipped = "".join(f"; {count} skipped: {reason}" for reason, count in reasons.most_common())
    tell(f"{name} against PyTorch: {len(chosen)} of {len(found)} samples used{skipped}")
    assert chosen and len(chosen) + reasons.total() == len(found)


def test_every_operator_that_torch_has_is_compared():
    """The rest has no counterpart among PyTorch's samples."""
    assert set(available()) - set(NAMES) == {"accumulate", "fetch", "sgd"}


def test_sgd_is_torch_sgd():
    from castile.kernels import reference
    from castile.planner.ops.sgd import Sgd

    rng = np.random.default_rng(0)
    for momentum, decay, nesterov in ((0.0, 0.0, False), (0.9, 0.0, False), (0.8, 0.1, True)):
        w = rng.normal(size=(3, 4))
        m, weight = np.zeros_like(w), torch.tensor(w, requires_grad=True)
        theirs = torch.optim.SGD([weight], lr=0.1, momentum=momentum, weight_decay=decay, nesterov=nesterov)
        for _ in range(4):
            g = rng.normal(size=w.shape)
            weight.grad = torch.tensor(g)
            theirs.step()
            w, m = Sgd(momentum, decay, nesterov).forward(reference, w, g, m, np.array(0.1))
            assert relative(w, weight.detach().numpy()) <= 1e-14
