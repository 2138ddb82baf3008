"""Cases of operators: mixtures of experts."""

import numpy as np

from castile.kernels import reference
from castile.planner.op import find
from tests.op_cases import case

# samples, tokens, choices, experts, capacity
SIZES = ((3, 5, 2, 4, 2), (2, 6, 1, 3, 3), (1, 7, 3, 3, 4))


def cases_route(rng):
    for (b, s, k, e, c), normalise in zip(SIZES, (True, False, True), strict=True):
        yield case(find("route")(k, c, normalise), (rng.normal(size=(b, s, e)), "b s e"))


def cases_dispatch(rng):
    for (b, s, _, e, c), experts, slots in _routed(rng):
        yield case(find("dispatch")(e, c), (rng.normal(size=(b, s, 5)), "b s d"), (experts, "b s k"), (slots, "b s k"))


def cases_combine(rng):
    for (_, _, _, e, c), experts, slots in _routed(rng):
        y = rng.normal(size=(e, len(experts), c, 5)), "e b c d"
        gates = rng.normal(size=experts.shape), "b s k"
        yield case(find("combine")(), y, gates, (experts, "b s k"), (slots, "b s k"))


def cases_balance(rng):
    for (b, s, _, e, _), experts, _ in _routed(rng):
        yield case(find("balance")(), (rng.uniform(size=(b, s, e)), "b s e"), (experts, "b s k"))


def _routed(rng):
    for b, s, k, e, c in SIZES:
        experts = np.argsort(rng.normal(size=(b, s, e)), axis=-1)[..., :k].astype(np.int32)
        yield (b, s, k, e, c), experts, reference.queue(experts, num_experts=e, capacity=c)
