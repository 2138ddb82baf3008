"""The definitions of all kernels in plain NumPy, slow and obvious: what a kernel means is what is written here.

It knows no fast form. Shapes stand in brackets; results have the dtype of the floating inputs.
"""

from string import ascii_letters

import numpy as np
from scipy.special import erf

Pair = tuple[int, int]
Pads = tuple[int, int, int, int]


def contract(spec: str, *xs: np.ndarray) -> np.ndarray:
    """Einstein sum of `xs` under `spec`, for example "...i,oi->...o"; what the result does not name is summed.

    `...` stands for the same leading dims wherever it stands, and is summed where the result has none.
    """
    left, result = spec.replace(" ", "").split("->")
    widths = [x.ndim - len(term.replace("...", "")) for term, x in zip(left.split(","), xs, strict=True)]
    leading = [c for c in ascii_letters if c not in spec][: max(widths)]
    return np.array(np.einsum(f"{left}->{result}".replace("...", "".join(leading)), *xs))


def add(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Sum of x and y, y broadcast to x with shapes aligned at the right."""
    return x + y


def add_bias(x: np.ndarray, b: np.ndarray, *, dim: int) -> np.ndarray:
    """Sum of x and b [x.shape[dim]], b running along dim `dim` of x."""
    shape = [1] * x.ndim
    shape[dim] = b.size
    return x + b.reshape(shape)


def sum_over(x: np.ndarray, *, dims: tuple[int, ...]) -> np.ndarray:
    """Sum of x over `dims`, which the result lacks; over all dims the result is [] (a 0-d array)."""
    return np.array(np.sum(x, axis=tuple(dims), dtype=x.dtype))


def reshape(x: np.ndarray, *, shape: tuple[int, ...]) -> np.ndarray:
    """The elements of x in C order, as an array of `shape`."""
    return np.array(x.reshape(shape))


def expand(x: np.ndarray, *, shape: tuple[int, ...]) -> np.ndarray:
    """The scalar x [] at every place of `shape`."""
    return np.array(np.broadcast_to(x, shape))


def copy(x: np.ndarray) -> np.ndarray:
    """The same numbers in another array."""
    return np.array(x)


def zero(*, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Zeros."""
    return np.zeros(shape, dtype)


def relu(x: np.ndarray) -> np.ndarray:
    """max(x, 0), elementwise."""
    return np.maximum(x, x.dtype.type(0))


def relu_grad(dy: np.ndarray, x: np.ndarray) -> np.ndarray:
    """dy where x is positive, else 0."""
    return np.where(x > 0, dy, dy.dtype.type(0))


def gelu(x: np.ndarray, *, approximate: str) -> np.ndarray:
    """Gaussian error linear unit (Hendrycks and Gimpel 2016); approximate is "none" (by erf) or "tanh"."""
    return (x * _gelu_gate(x, approximate)).astype(x.dtype)


def gelu_grad(dy: np.ndarray, x: np.ndarray, *, approximate: str) -> np.ndarray:
    """dy times the derivative of `gelu` at x."""
    gate = _gelu_gate(x, approximate)
    if approximate == "tanh":
        slope = 2 * gate * (1 - gate) * np.sqrt(2 / np.pi) * (1 + 3 * 0.044715 * x**2)
    else:
        slope = np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi)
    return (dy * (gate + x * slope)).astype(x.dtype)


def _gelu_gate(x: np.ndarray, approximate: str) -> np.ndarray:
    if approximate == "tanh":
        return 0.5 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    return 0.5 * (1 + erf(x / np.sqrt(2)))


def conv2d(x: np.ndarray, w: np.ndarray, *, stride: Pair, pads: Pads) -> np.ndarray:
    """Cross-correlation of x [b,i,H,W] with w [o,i,r,s] -> [b,o,h,w]; pads (top, bottom, left, right) hold zeros."""
    padded = _pad(x, pads, 0)
    height, width = _windows(padded.shape[2:], w.shape[2:], stride)
    y = np.zeros((x.shape[0], w.shape[0], height, width), x.dtype)
    for r, s in np.ndindex(*w.shape[2:]):
        y += np.einsum("bihw,oi->bohw", _tap(padded, r, s, (height, width), stride), w[:, :, r, s])
    return y


def conv2d_grad_input(dy: np.ndarray, w: np.ndarray, *, shape: tuple[int, ...], stride: Pair, pads: Pads) -> np.ndarray:
    """Gradient of `conv2d` to its x [b,i,H,W] = `shape`, from dy [b,o,h,w]; zero where no window reads x."""
    padded = _pad(np.zeros(shape, dy.dtype), pads, 0)
    for r, s in np.ndindex(*w.shape[2:]):
        tap = _tap(padded, r, s, dy.shape[2:], stride)
        tap += np.einsum("bohw,oi->bihw", dy, w[:, :, r, s])
    return np.array(padded[:, :, pads[0] : pads[0] + shape[2], pads[2] : pads[2] + shape[3]])


def conv2d_grad_weight(dy: np.ndarray, x: np.ndarray, *, kernel: Pair, stride: Pair, pads: Pads) -> np.ndarray:
    """Gradient of `conv2d` to its w [o,i,r,s], (r, s) = `kernel`, from dy [b,o,h,w] and x [b,i,H,W]."""
    padded = _pad(x, pads, 0)
    dw = np.zeros((dy.shape[1], x.shape[1], *kernel), x.dtype)
    for r, s in np.ndindex(*kernel):
        dw[:, :, r, s] = np.einsum("bohw,bihw->oi", dy, _tap(padded, r, s, dy.shape[2:], stride))
    return dw


def max_pool2d(x: np.ndarray, *, kernel: Pair, stride: Pair, pads: Pads) -> np.ndarray:
    """Largest element of each window of x [b,c,H,W]; the padding counts as -inf -> [b,c,h,w]."""
    padded = _pad(x, pads, -np.inf)
    size = _windows(padded.shape[2:], kernel, stride)
    return np.max([_tap(padded, r, s, size, stride) for r, s in np.ndindex(*kernel)], axis=0)


def max_pool2d_grad(dy: np.ndarray, x: np.ndarray, *, kernel: Pair, stride: Pair, pads: Pads) -> np.ndarray:
    """dy [b,c,h,w] added where `max_pool2d` took its value: the first maximum of a window in row-major order."""
    padded = _pad(x, pads, -np.inf)
    size = dy.shape[2:]
    first = np.argmax([_tap(padded, r, s, size, stride) for r, s in np.ndindex(*kernel)], axis=0)
    dx = np.zeros_like(padded)
    for number, (r, s) in enumerate(np.ndindex(*kernel)):
        tap = _tap(dx, r, s, size, stride)
        tap += np.where(first == number, dy, dy.dtype.type(0))
    return np.array(dx[:, :, pads[0] : pads[0] + x.shape[2], pads[2] : pads[2] + x.shape[3]])


def _pad(x: np.ndarray, pads: Pads, value: float) -> np.ndarray:
    top, bottom, left, right = pads
    return np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)), constant_values=value)


def _windows(padded: tuple[int, ...], kernel: tuple[int, ...], stride: Pair) -> Pair:
    return (padded[0] - kernel[0]) // stride[0] + 1, (padded[1] - kernel[1]) // stride[1] + 1


def _tap(padded: np.ndarray, r: int, s: int, size: tuple[int, ...], stride: Pair) -> np.ndarray:
    """What element (r, s) of the window meets in each of the size[0] x size[1] windows, as a view."""
    return padded[:, :, r :: stride[0], s :: stride[1]][:, :, : size[0], : size[1]]


def layer_norm(x: np.ndarray, g: np.ndarray, b: np.ndarray, *, eps: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Layer normalisation (Ba et al. 2016) over the last dim: y like x, mean and 1 / deviation x.shape[:-1]."""
    mean = x.mean(axis=-1)
    rstd = (1 / np.sqrt(x.var(axis=-1) + eps)).astype(x.dtype)
    return _standard(x, mean, rstd) * g + b, mean, rstd


def layer_norm_grad_input(
    dy: np.ndarray, x: np.ndarray, g: np.ndarray, mean: np.ndarray, rstd: np.ndarray
) -> np.ndarray:
    """Gradient of `layer_norm` to its x."""
    z, dz = _standard(x, mean, rstd), dy * g
    inner = dz - dz.mean(axis=-1, keepdims=True) - z * (dz * z).mean(axis=-1, keepdims=True)
    return inner * rstd[..., None]


def layer_norm_grad_params(
    dy: np.ndarray, x: np.ndarray, mean: np.ndarray, rstd: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Gradients of `layer_norm` to its g and b, both [x.shape[-1]]."""
    leading = tuple(range(x.ndim - 1))
    return np.array((dy * _standard(x, mean, rstd)).sum(axis=leading)), np.array(dy.sum(axis=leading))


def _standard(x: np.ndarray, mean: np.ndarray, rstd: np.ndarray) -> np.ndarray:
    return (x - mean[..., None]) * rstd[..., None]


def embedding(ids: np.ndarray, table: np.ndarray) -> np.ndarray:
    """Rows of table [rows, d] at the integers ids -> ids.shape + (d,); IndexError for an id outside [0, rows)."""
    _check_ids("embedding", ids, len(table))
    return table[ids]


def embedding_grad(dy: np.ndarray, ids: np.ndarray, *, rows: int) -> np.ndarray:
    """Gradient of `embedding` to its table [rows, d]: rows of dy added in the order of the ids."""
    _check_ids("embedding_grad", ids, rows)
    d_table = np.zeros((rows, dy.shape[-1]), dy.dtype)
    np.add.at(d_table, ids, dy)
    return d_table


def _check_ids(what: str, ids: np.ndarray, length: int) -> None:
    if ids.size and not (0 <= ids.min() and ids.max() < length):
        raise IndexError(f"{what}: an integer lies outside 0 to {length - 1}")


def attention(
    q: np.ndarray, kk: np.ndarray, v: np.ndarray, *, heads: int, causal: bool, offset: int, scale: float
) -> tuple[np.ndarray, np.ndarray]:
    """Scaled dot-product attention (Vaswani et al. 2017) of q [b,s,heads*d] over keys kk and values v [b,t,heads*d].

    -> y like q, and lse [b,heads,s]: the log of the sum of exponentials of the scaled scores. With `causal`, query row
    i sees the keys j <= offset + i; offset >= 0.
    """
    scores = _scores(q, kk, heads, causal, offset, scale)
    top = scores.max(axis=-1, keepdims=True)
    lse = top + np.log(np.exp(scores - top).sum(axis=-1, keepdims=True))
    y = np.einsum("bhst,bthd->bshd", np.exp(scores - lse), _heads(v, heads))
    return y.reshape(q.shape), lse[..., 0]


def attention_grad(
    dy: np.ndarray,
    q: np.ndarray,
    kk: np.ndarray,
    v: np.ndarray,
    y: np.ndarray,
    lse: np.ndarray,
    *,
    heads: int,
    causal: bool,
    offset: int,
    scale: float,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Gradients of `attention` to q, kk and v; the probabilities are computed again from lse (Dao et al. 2022)."""
    p = np.exp(_scores(q, kk, heads, causal, offset, scale) - lse[..., None])
    dy4, y4 = _heads(dy, heads), _heads(y, heads)
    dp = np.einsum("bshd,bthd->bhst", dy4, _heads(v, heads))
    ds = p * (dp - np.einsum("bshd,bshd->bhs", dy4, y4)[..., None]) * q.dtype.type(scale)
    dq = np.einsum("bhst,bthd->bshd", ds, _heads(kk, heads))
    dk = np.einsum("bhst,bshd->bthd", ds, _heads(q, heads))
    dv = np.einsum("bhst,bshd->bthd", p, dy4)
    return dq.reshape(q.shape), dk.reshape(kk.shape), dv.reshape(v.shape)


def _heads(x: np.ndarray, heads: int) -> np.ndarray:
    return x.reshape(*x.shape[:2], heads, x.shape[2] // heads)


def _scores(q: np.ndarray, kk: np.ndarray, heads: int, causal: bool, offset: int, scale: float) -> np.ndarray:
    scores = np.einsum("bshd,bthd->bhst", _heads(q, heads), _heads(kk, heads)) * q.dtype.type(scale)
    if causal:
        seen = np.arange(kk.shape[1])[None, :] <= offset + np.arange(q.shape[1])[:, None]
        scores = np.where(seen, scores, q.dtype.type(-np.inf))
    return scores


def cross_entropy(logits: np.ndarray, labels: np.ndarray, *, scale: float) -> tuple[np.ndarray, np.ndarray]:
    """scale times the sum of -log softmax(logits [...,c]) at the integer labels [...].

    -> loss [], and the log-sum-exp of each row [...]; IndexError for a label outside [0, c).
    """
    _check_ids("cross_entropy", labels, logits.shape[-1])
    top = logits.max(axis=-1, keepdims=True)
    lse = (top + np.log(np.exp(logits - top).sum(axis=-1, keepdims=True)))[..., 0]
    picked = np.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    return np.array(np.sum(lse - picked) * logits.dtype.type(scale)), np.array(lse)


def cross_entropy_grad(
    dy: np.ndarray, logits: np.ndarray, labels: np.ndarray, lse: np.ndarray, *, scale: float
) -> np.ndarray:
    """Gradient of `cross_entropy`'s loss to its logits, times dy []."""
    _check_ids("cross_entropy_grad", labels, logits.shape[-1])
    d_logits = np.exp(logits - lse[..., None])
    picked = np.take_along_axis(d_logits, labels[..., None], axis=-1)
    np.put_along_axis(d_logits, labels[..., None], picked - logits.dtype.type(1), axis=-1)
    return d_logits * (dy * logits.dtype.type(scale))


def sgd(
    w: np.ndarray,
    g: np.ndarray,
    m: np.ndarray,
    lr: np.ndarray,
    *,
    momentum: float,
    decay: float,
    nesterov: bool,
) -> tuple[np.ndarray, np.ndarray]:
    """One step of stochastic gradient descent with momentum as PyTorch defines it; lr is [] -> new w, new m."""
    g = g + w.dtype.type(decay) * w
    m = w.dtype.type(momentum) * m + g
    step = g + w.dtype.type(momentum) * m if nesterov else m
    return w - lr.astype(w.dtype) * step, m
