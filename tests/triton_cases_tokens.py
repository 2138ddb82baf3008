"""Kernels of transformers and other networks of tokens, as arrays that are not there: what `tests.triton_cases.large`
finds. Sizes are those of a GPT-2 of 124 million parameters and batch 8 where no others are named.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from tests.kernel_cases import Case
from tests.triton_arrays import array, outermost

TOKENS, WIDTH, WORDS = (8, 1024), 768, 50257
# Rows of more than a program holds in registers: begun anywhere or in vectors, held as they lie or too long for that.
LONG = (16385, 20000, 32761, 32768, 50304, 65536, 100003)
# All parameters of a block of the transformer.
BLOCK = (
    *((3 * WIDTH, WIDTH), (WIDTH, WIDTH), (4 * WIDTH, WIDTH), (WIDTH, 4 * WIDTH)),
    *((3 * WIDTH,), (4 * WIDTH,), *[(WIDTH,)] * 6),
)


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
    yield tuple(draw(*shape) for shape in BLOCK), {}


def large_rearrange(draw: Any) -> Iterator[Case]:
    yield (draw(*TOKENS, WIDTH),), {"apart": (*TOKENS, 12, 64), "dims": (0, 2, 1, 3), "shape": (96, 1024, 64)}


def large_sum_over(draw: Any) -> Iterator[Case]:
    for dims in ((0, 1), (2,), (0, 1, 2)):
        yield (draw(*TOKENS, 4 * WIDTH),), {"dims": dims}


def large_max_over(draw: Any) -> Iterator[Case]:
    yield (draw(*TOKENS, WIDTH),), {"dims": (0, 1)}


def large_square_sum(draw: Any) -> Iterator[Case]:
    yield (draw(WORDS, WIDTH),), {}
    yield tuple(draw(*shape) for shape in BLOCK), {}


def large_contract(draw: Any) -> Iterator[Case]:
    yield ("...i,oi->...o", draw(*TOKENS, WIDTH), draw(4 * WIDTH, WIDTH)), {}
    yield ("...o,oi->...i", draw(*TOKENS, 4 * WIDTH), draw(4 * WIDTH, WIDTH)), {}
    yield ("...o,...i->oi", draw(*TOKENS, 4 * WIDTH), draw(*TOKENS, WIDTH)), {}
    yield ("bshd,bthd->bhst", draw(*TOKENS, 12, 64), draw(*TOKENS, 12, 64)), {}
    yield ("...i,oi->...o", draw(*TOKENS, WIDTH), draw(WORDS, WIDTH)), {}
    # Both gradients of logits whose classes are outermost.
    yield ("...o,oi->...i", outermost(draw(*TOKENS, WORDS)), draw(WORDS, WIDTH)), {}
    yield ("...o,...i->oi", outermost(draw(*TOKENS, WORDS)), draw(*TOKENS, WIDTH)), {}


def large_contract_pointwise(draw: Any) -> Iterator[Case]:
    linear, gate = "...i,oi->...o", "(s + b) * sigmoid((s + b) * (p + q * (s + b) * (s + b)))"
    for outer, inner in ((3 * WIDTH, WIDTH), (WIDTH, 4 * WIDTH)):
        yield (linear, "s, b -> s + b", draw(*TOKENS, inner), draw(outer, inner), draw(outer)), {}
    yield (
        (linear, f"s, b -> {gate}", draw(*TOKENS, WIDTH), draw(4 * WIDTH, WIDTH), draw(4 * WIDTH)),
        {"p": 1.6, "q": 0.07},
    )
    residual = draw(*TOKENS, WIDTH), draw(WIDTH, WIDTH), draw(WIDTH), draw(*TOKENS, WIDTH)
    yield (linear, "s, b, x -> x + s + b", *residual), {}
    # few rows of many summed elements: in parts
    yield (linear, "s, b -> where(s + b > 0, s + b, 0)", draw(32, 25088), draw(4096, 25088), draw(4096)), {}


def large_layer_norm(draw: Any) -> Iterator[Case]:
    yield (draw(*TOKENS, WIDTH), draw(WIDTH), draw(WIDTH)), {"eps": 1e-5}
    for num in LONG:
        yield (draw(*TOKENS, num), draw(num), draw(num)), {"eps": 1e-5}


def large_layer_norm_grad_input(draw: Any) -> Iterator[Case]:
    yield (draw(*TOKENS, WIDTH), draw(*TOKENS, WIDTH), draw(WIDTH), draw(*TOKENS), draw(*TOKENS)), {}
    yield (draw(512, 16384), draw(512, 16384), draw(16384), draw(512), draw(512)), {}
    tokens = draw(*TOKENS, WIDTH)
    yield (tokens, tokens, draw(WIDTH), draw(*TOKENS), draw(*TOKENS), tokens), {}


def large_layer_norm_grad_params(draw: Any) -> Iterator[Case]:
    yield (draw(*TOKENS, WIDTH), draw(*TOKENS, WIDTH), draw(*TOKENS), draw(*TOKENS)), {}


def large_rms_norm(draw: Any) -> Iterator[Case]:
    for num in (4096, *LONG):
        yield (draw(*TOKENS, num), draw(num)), {"eps": 1e-5}


def large_rms_norm_grad_input(draw: Any) -> Iterator[Case]:
    yield (draw(*TOKENS, 4096), draw(*TOKENS, 4096), draw(4096), draw(*TOKENS)), {}
    yield (draw(*TOKENS, 4096), draw(*TOKENS, 4096), draw(4096), draw(*TOKENS), draw(*TOKENS, 4096)), {}


def large_rms_norm_grad_params(draw: Any) -> Iterator[Case]:
    yield (draw(*TOKENS, 4096), draw(*TOKENS, 4096), draw(*TOKENS)), {}


def large_softmax(draw: Any) -> Iterator[Case]:
    yield (draw(8, 12, 1024, 1024),), {}
    for num in (WORDS, *LONG):
        yield (draw(*TOKENS, num),), {}


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
    # All of a GPT-2's words, and those of one of four processors.
    yield (ids(*TOKENS), draw(WORDS, WIDTH)), {"first": 0, "known": WORDS}
    yield (ids(*TOKENS), draw(12564, WIDTH)), {"first": 12565, "known": WORDS}


def large_embedding_grad(draw: Any) -> Iterator[Case]:
    yield (draw(*TOKENS, WIDTH), ids(*TOKENS)), {"rows": WORDS, "first": 0, "known": WORDS}
    yield (draw(*TOKENS, WIDTH), ids(*TOKENS)), {"rows": 12564, "first": 12565, "known": WORDS}


def large_dropout(draw: Any) -> Iterator[Case]:
    params = {"rate": 0.1, "salt": 7, "offset": (0, 0, 0), "whole": (*TOKENS, WIDTH)}
    yield (draw(*TOKENS, WIDTH), array((), "int64")), params


def large_adam(draw: Any) -> Iterator[Case]:
    params = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "decay": 0.1, "decoupled": True}
    yield (*(draw(WORDS, WIDTH) for _ in range(4)), draw(), draw()), params
    # With a guard a kernel has all that it has without one, so without one it is of few.
    for guard, more, shapes in (((), {}, BLOCK[:3]), ((draw(),), {"guarded": True}, BLOCK)):
        each = ((*(draw(*shape) for _ in range(4)), draw(), draw(), *guard) for shape in shapes)
        yield tuple(one for row in each for one in row), params | more


def large_times(draw: Any) -> Iterator[Case]:
    yield (draw(WORDS, WIDTH), array((), "float32")), {}
    yield tuple(one for shape in BLOCK for one in (draw(*shape), array((), "float32"))), {}


def large_adafactor(draw: Any) -> Iterator[Case]:
    params = {"beta2_decay": -0.8, "eps1": 1e-7, "eps2": 1e-3, "clip": 1.0, "decay": 0.1}
    yield (draw(WORDS, WIDTH), draw(WORDS, WIDTH), draw(WORDS), draw(WIDTH), draw(), draw()), params
    yield (*(draw(4 * WIDTH) for _ in range(4)), draw(), draw()), params


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


def large_block_entropy(draw: Any) -> Iterator[Case]:
    # A GPT-2's classes over four processors, and all of what 48 can be given.
    yield (draw(*TOKENS, 12564), ids(*TOKENS)), {"blocks": 1, "first": 1, "of": 4, "classes": WORDS}
    yield (draw(*TOKENS, WORDS), ids(*TOKENS)), {"blocks": 48, "first": 0, "of": 48, "classes": WORDS}


def large_block_entropy_grad(draw: Any) -> Iterator[Case]:
    parts = (draw(*TOKENS, 1, 2), draw(*TOKENS, 12564), ids(*TOKENS), draw(*TOKENS, 1, 2))
    yield parts, {"first": 1, "of": 4, "classes": WORDS}
    parts = (draw(*TOKENS, 48, 2), draw(*TOKENS, WORDS), ids(*TOKENS), draw(*TOKENS, 48, 2))
    yield parts, {"first": 0, "of": 48, "classes": WORDS}


def large_split_cross_entropy(draw: Any) -> Iterator[Case]:
    yield (draw(*TOKENS, 4, 2),), {"scale": 1e-4}


def large_split_cross_entropy_grad(draw: Any) -> Iterator[Case]:
    yield (draw(), draw(*TOKENS, 4, 2), draw(*TOKENS)), {"scale": 1e-4}


def _routed(*shape: int) -> tuple[Any, Any]:
    return array(shape, "int32"), array(shape, "int32")


def large_queue(draw: Any) -> Iterator[Case]:
    yield (_routed(*TOKENS, 2)[0],), {"num_experts": 64, "capacity": 64}


def large_expert_share(draw: Any) -> Iterator[Case]:
    yield (_routed(*TOKENS, 2)[0],), {"num_experts": 64, "first_expert": 0, "dtype": draw().dtype.name}


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


def large_pair_dots(draw: Any) -> Iterator[Case]:
    for num, width in ((27, 64), (27, 128), (60, 64)):
        yield (draw(2048, num, width),), {}


def large_pair_dots_grad(draw: Any) -> Iterator[Case]:
    for (x,), params in large_pair_dots(draw):
        yield (draw(2048, x.shape[1] * (x.shape[1] - 1) // 2), x), params
