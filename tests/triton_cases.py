"""What checks of the Triton forms share: their plans on arrays that are there or not, shapes of real networks."""

import inspect
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain, combinations
from typing import Any
from unittest import mock

import ml_dtypes  # noqa: F401  (makes "bfloat16" a dtype of NumPy)
import numpy as np

from castile.kernels.table import definitions, forms
from castile.kernels.triton.launch import Launch, Plan
from castile.planner import vocabulary
from castile.planner.vocabulary import Spec
from tests import triton_cases_images
from tests.kernel_cases import Case, cases
from tests.triton_arrays import array

NAMES = sorted(forms("triton"))
TOKENS, WIDTH, WORDS = (8, 1024), 768, 50257


def specs(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Arrays as the vocabulary sees them."""
    return tuple(Spec(x.shape, x.dtype.name) if hasattr(x, "strides") else x for x in args)


def results(name: str, args: tuple[Any, ...], params: dict[str, Any]) -> tuple[Spec, ...]:
    """What a kernel gives, as Specs."""
    return vocabulary.results(name, specs(args), params)


def cast(name: str, case: Case, dtype: str) -> Case:
    """A case with its floating arrays in another dtype, but for those that its kernel wants wide."""
    args, params = case
    words = {word: dtype if word == "dtype" else x for word, x in params.items()}
    return _taken(name, tuple(_cast(x, dtype) for x in args), args, words), words


def _taken(name: str, low: tuple[Any, ...], wide: tuple[Any, ...], params: dict[str, Any]) -> tuple[Any, ...]:
    """`low` with as few arguments of `wide` as the vocabulary wants."""
    for kept in chain(*(combinations(range(len(low)), num) for num in range(len(low) + 1))):
        mixed = tuple(wide[n] if n in kept else x for n, x in enumerate(low))
        with suppress(ValueError):
            results(name, mixed, params)
            return mixed
    raise ValueError(f"{name} takes no such dtypes")


def plain(name: str, case: Case, dtype: str) -> list[np.ndarray]:
    """The results of a case in dtype by the definition in float32, but for operands of products, which are rounded to
    dtype: what comes of units that multiply numbers of dtype and add in float32.
    """
    einsum = np.einsum

    def rounding(spec: str, *xs: np.ndarray) -> np.ndarray:
        return np.asarray(einsum(spec, *(x.astype(dtype).astype(x.dtype) for x in xs)))

    args, params = cast(name, case, "float32")
    with mock.patch.object(np, "einsum", rounding), np.errstate(all="ignore"):
        made = definitions()[name](*args, **params)
    every = zip(made if isinstance(made, tuple) else (made,), results(name, *case), strict=True)
    return [np.asarray(x).astype(spec.dtype) for x, spec in every]


def _cast(x: Any, dtype: str) -> Any:
    # What is float64 among float32, as moments are, is so whatever the others are.
    kept = not isinstance(x, np.ndarray) or x.dtype.kind in "iub" or x.dtype == np.float64
    with np.errstate(over="ignore"):
        return x if kept else x.astype(dtype)


def error(got: np.ndarray, want: np.ndarray) -> float:
    """The largest difference; infinities that are the same are none."""
    one, other = got.astype(np.float64), want.astype(np.float64)
    return float(np.abs(np.subtract(one, other, where=one != other, out=np.zeros_like(one))).max(initial=0))


def plan(name: str, outs: tuple[Any, ...], case: Case, accumulate: bool = False) -> Plan | None:
    """What a form says of its work, before anything is bound."""
    args, params = case
    form = forms("triton")[name]
    extra = {"accumulate": accumulate, "scratch": None}
    known = inspect.signature(form).parameters
    words = params | {word: value for word, value in extra.items() if word in known}
    return inspect.unwrap(form)(outs[0] if len(outs) == 1 else outs, *args, **words)


def fake_plan(name: str, case: Case) -> Plan | None:
    """The plan on arrays like those of a case, with results that lie dense."""
    outs = tuple(array(one.shape, one.dtype) for one in results(name, *case))
    return plan(name, outs, case)


def launches(made: Plan) -> list[Launch]:
    """What the likeliest setting would launch."""
    return made.launches(made.settings[0])


def has_network_shapes(name: str) -> bool:
    """Whether `large` has more than the small cases."""
    return _large(name) is not None


def large(name: str, dtype: str) -> Iterator[Case]:
    """Cases of a GPT-2 of 124 million parameters and batch 8; small ones where none is named."""
    make = _large(name)
    if make is None:
        yield from (cast(name, case, dtype) for case in cases(name, "float32")[-2:])
        return

    def draw(*shape: int) -> np.ndarray:
        return array(shape, dtype)

    for args, params in make(draw):
        wide = tuple(array(x.shape, "float32") if getattr(x, "dtype", None) == dtype else x for x in args)
        yield _taken(name, args, wide, params), params


def _large(name: str) -> Callable[..., Iterator[Case]] | None:
    """What makes cases of a kernel, here or of images."""
    return globals().get(f"large_{name}") or getattr(triton_cases_images, f"large_{name}", None)


def ids(*shape: int) -> np.ndarray:
    """Integers that are not there."""
    return array(shape, "int64")


def large_pointwise(draw: Any) -> Iterator[Case]:
    yield ("x, y -> x + tanh(y)", draw(*TOKENS, WIDTH), draw(*TOKENS, WIDTH)), {}
    yield ("x, y -> a * x + y", draw(*TOKENS, WIDTH), draw(WIDTH)), {"a": 0.5}


def large_gelu_grad(draw: Any) -> Iterator[Case]:
    for how in ("none", "tanh"):
        yield (draw(*TOKENS, 4 * WIDTH), draw(*TOKENS, 4 * WIDTH)), {"approximate": how}


def large_copy(draw: Any) -> Iterator[Case]:
    yield (draw(*TOKENS, WIDTH)[:, :512],), {}


def large_rearrange(draw: Any) -> Iterator[Case]:
    yield (draw(*TOKENS, WIDTH),), {"apart": (*TOKENS, 12, 64), "dims": (0, 2, 1, 3), "shape": (96, 1024, 64)}


def large_sum_over(draw: Any) -> Iterator[Case]:
    for dims in ((0, 1), (2,), (0, 1, 2)):
        yield (draw(*TOKENS, 4 * WIDTH),), {"dims": dims}


def large_max_over(draw: Any) -> Iterator[Case]:
    yield (draw(*TOKENS, WIDTH),), {"dims": (0, 1)}


def large_square_sum(draw: Any) -> Iterator[Case]:
    yield (draw(WORDS, WIDTH),), {}


def large_contract(draw: Any) -> Iterator[Case]:
    yield ("...i,oi->...o", draw(*TOKENS, WIDTH), draw(4 * WIDTH, WIDTH)), {}
    yield ("...o,oi->...i", draw(*TOKENS, 4 * WIDTH), draw(4 * WIDTH, WIDTH)), {}
    yield ("...o,...i->oi", draw(*TOKENS, 4 * WIDTH), draw(*TOKENS, WIDTH)), {}
    yield ("bshd,bthd->bhst", draw(*TOKENS, 12, 64), draw(*TOKENS, 12, 64)), {}
    yield ("...i,oi->...o", draw(*TOKENS, WIDTH), draw(WORDS, WIDTH)), {}


def large_layer_norm(draw: Any) -> Iterator[Case]:
    yield (draw(*TOKENS, WIDTH), draw(WIDTH), draw(WIDTH)), {"eps": 1e-5}
    yield (draw(2, 20000), draw(20000), draw(20000)), {"eps": 1e-5}


def large_layer_norm_grad_input(draw: Any) -> Iterator[Case]:
    yield (draw(*TOKENS, WIDTH), draw(*TOKENS, WIDTH), draw(WIDTH), draw(*TOKENS), draw(*TOKENS)), {}
    yield (draw(512, 16384), draw(512, 16384), draw(16384), draw(512), draw(512)), {}


def large_layer_norm_grad_params(draw: Any) -> Iterator[Case]:
    yield (draw(*TOKENS, WIDTH), draw(*TOKENS, WIDTH), draw(*TOKENS), draw(*TOKENS)), {}


def large_rms_norm(draw: Any) -> Iterator[Case]:
    yield (draw(*TOKENS, 4096), draw(4096)), {"eps": 1e-5}


def large_rms_norm_grad_input(draw: Any) -> Iterator[Case]:
    yield (draw(*TOKENS, 4096), draw(*TOKENS, 4096), draw(4096), draw(*TOKENS)), {}


def large_rms_norm_grad_params(draw: Any) -> Iterator[Case]:
    yield (draw(*TOKENS, 4096), draw(*TOKENS, 4096), draw(*TOKENS)), {}


def large_softmax(draw: Any) -> Iterator[Case]:
    yield (draw(8, 12, 1024, 1024),), {}
    yield (draw(*TOKENS, WORDS),), {}


def large_softmax_grad(draw: Any) -> Iterator[Case]:
    yield (draw(8, 12, 1024, 1024), draw(8, 12, 1024, 1024)), {}


def large_log_softmax(draw: Any) -> Iterator[Case]:
    yield from large_softmax(draw)


def large_log_softmax_grad(draw: Any) -> Iterator[Case]:
    yield (draw(*TOKENS, WORDS), draw(*TOKENS, WORDS)), {}


def large_cross_entropy(draw: Any) -> Iterator[Case]:
    yield (draw(*TOKENS, WORDS), ids(*TOKENS)), {"scale": 0.5}


def large_cross_entropy_grad(draw: Any) -> Iterator[Case]:
    yield (draw(), draw(*TOKENS, WORDS), ids(*TOKENS), draw(*TOKENS)), {"scale": 0.5}


def large_embedding(draw: Any) -> Iterator[Case]:
    yield (ids(*TOKENS), draw(WORDS, WIDTH)), {}


def large_embedding_grad(draw: Any) -> Iterator[Case]:
    yield (draw(*TOKENS, WIDTH), ids(*TOKENS)), {"rows": WORDS}


def large_dropout(draw: Any) -> Iterator[Case]:
    params = {"rate": 0.1, "salt": 7, "offset": (0, 0, 0), "whole": (*TOKENS, WIDTH)}
    yield (draw(*TOKENS, WIDTH), array((), "int64")), params


def large_adam(draw: Any) -> Iterator[Case]:
    params = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "decay": 0.1, "decoupled": True}
    yield (*(draw(WORDS, WIDTH) for _ in range(4)), draw(), draw()), params


def large_rotary(draw: Any) -> Iterator[Case]:
    for interleaved in (False, True):
        params = {"heads": 32, "base": 1e4, "offset": 0, "interleaved": interleaved, "inverse": False}
        yield (draw(*TOKENS, 4096),), params


def large_lstm_cell(draw: Any) -> Iterator[Case]:
    yield (draw(256, 1, 4, 1024), draw(4, 1024), draw(256, 1, 4, 1024), draw(256, 1, 1024)), {}


def large_lstm_cell_grad(draw: Any) -> Iterator[Case]:
    state = [draw(256, 1, 1024) for _ in range(4)]
    yield (*state[:2], draw(256, 1, 4, 1024), *state[2:]), {}


def large_gru_cell(draw: Any) -> Iterator[Case]:
    gates, bias = draw(256, 1, 3, 1024), draw(3, 1024)
    yield (gates, bias, gates, bias, draw(256, 1, 1024)), {}


def large_gru_cell_grad(draw: Any) -> Iterator[Case]:
    yield (draw(256, 1, 1024), draw(256, 1, 4, 1024), draw(256, 1, 1024)), {}


def large_attention(draw: Any) -> Iterator[Case]:
    # Those of GPT-2, and Llama's wider ones, of which four share a head of keys; the last is a part of a sequence.
    for heads, groups, width, offset in ((12, 12, 64, 0), (32, 8, 128, 0), (32, 8, 128, 1024)):
        params = {"heads": heads, "causal": True, "offset": offset, "scale": width**-0.5}
        keys = (TOKENS[0], TOKENS[1] + offset, groups * width)
        yield (draw(*TOKENS, heads * width), draw(*keys), draw(*keys)), params


def large_attention_grad(draw: Any) -> Iterator[Case]:
    for (q, kk, v), params in large_attention(draw):
        lse = array((q.shape[0], params["heads"], q.shape[1]), "float32")
        yield (q, q, kk, v, q, lse), params


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


def large_norm_factors(draw: Any) -> Iterator[Case]:
    yield (draw(2048), draw(2048), array((2, 2048), "float64")), {"eps": 1e-5}


def large_norm_factors_grad(draw: Any) -> Iterator[Case]:
    yield (draw(3, 2048), draw(2048), array((2, 2048), "float64")), {"eps": 1e-5}


def large_block_entropy(draw: Any) -> Iterator[Case]:
    # A GPT-2's classes over four processors.
    yield (draw(*TOKENS, 12576), ids(*TOKENS)), {"blocks": 1, "first": 12576, "classes": WORDS}


def large_block_entropy_grad(draw: Any) -> Iterator[Case]:
    parts = (draw(*TOKENS, 1, 2), draw(*TOKENS, 12576), ids(*TOKENS), draw(*TOKENS, 1, 2))
    yield parts, {"first": 12576, "classes": WORDS}


def large_split_cross_entropy(draw: Any) -> Iterator[Case]:
    yield (draw(*TOKENS, 4, 2),), {"scale": 1e-4}


def large_split_cross_entropy_grad(draw: Any) -> Iterator[Case]:
    yield (draw(), draw(*TOKENS, 4, 2), draw(*TOKENS)), {"scale": 1e-4}


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


def _routed(*shape: int) -> tuple[Any, Any]:
    return array(shape, "int32"), array(shape, "int32")


def large_queue(draw: Any) -> Iterator[Case]:
    yield (_routed(*TOKENS, 2)[0],), {"num_experts": 64, "capacity": 64}


def large_dispatch(draw: Any) -> Iterator[Case]:
    params = {"num_experts": 64, "capacity": 64, "first_expert": 0, "first_slot": 0}
    yield (draw(*TOKENS, 2048), *_routed(*TOKENS, 2)), params


def large_combine(draw: Any) -> Iterator[Case]:
    params = {"first_expert": 0, "first_slot": 0}
    yield (draw(64, TOKENS[0], 64, 2048), *_routed(*TOKENS, 2), draw(*TOKENS, 2)), params


def large_gate_grad(draw: Any) -> Iterator[Case]:
    for (y, experts, slots, _), params in large_combine(draw):
        yield (draw(*TOKENS, 2048), y, experts, slots), params


def large_top_k(draw: Any) -> Iterator[Case]:
    yield (draw(*TOKENS, 64),), {"count": 2}


def large_pick(draw: Any) -> Iterator[Case]:
    yield (draw(*TOKENS, 64), _routed(*TOKENS, 2)[0]), {}


def large_pick_grad(draw: Any) -> Iterator[Case]:
    yield (draw(*TOKENS, 2), _routed(*TOKENS, 2)[0]), {"size": 64}
