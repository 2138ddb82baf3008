"""Cases of the kernels of mixtures of experts."""

from collections.abc import Iterator

from castile.kernels import reference
from tests.kernel_cases import Case, Draw

# samples, tokens, choices; experts, capacity; of these the block that is there: first expert and slot, how many
SIZES = (
    ((1, 1, 1), (1, 1), (0, 0), (1, 1)),
    ((2, 7, 2), (3, 4), (0, 0), (3, 4)),
    ((3, 5, 3), (4, 2), (1, 0), (2, 2)),
    ((2, 9, 1), (2, 5), (0, 2), (2, 3)),
    ((2, 33, 2), (8, 10), (0, 0), (8, 10)),
)


def case_queue(draw: Draw) -> Iterator[Case]:
    for shape, (num_experts, capacity), _, _ in SIZES:
        for dtype in ("int32", "int64"):
            yield (draw.ids(num_experts, *shape, dtype=dtype),), {"num_experts": num_experts, "capacity": capacity}


def case_dispatch(draw: Draw) -> Iterator[Case]:
    for experts, slots, first, block in routed(draw):
        for width, gates in ((1, []), (7, [draw(*experts.shape)]), (40, [])):
            x = draw(*experts.shape[:2], width)
            yield (x, experts, slots, *gates), {"num_experts": block[0], "capacity": block[1], **first}


def case_combine(draw: Draw) -> Iterator[Case]:
    for experts, slots, first, block in routed(draw):
        for width, gates in ((1, []), (7, [draw(*experts.shape)]), (40, [])):
            yield (draw(block[0], len(experts), block[1], width), experts, slots, *gates), first


def case_gate_grad(draw: Draw) -> Iterator[Case]:
    for (y, experts, slots, *_), first in case_combine(draw):
        yield (draw(*experts.shape[:2], y.shape[-1]), y, experts, slots), first


def case_expert_share(draw: Draw) -> Iterator[Case]:
    for shape, (num_experts, _), (first, _), (num, _) in SIZES:
        params = {"num_experts": num, "first_expert": first, "dtype": draw.dtype}
        yield (draw.ids(num_experts, *shape, dtype="int32"),), params


def routed(draw: Draw):
    """Experts and slots of each size, and the block that is there."""
    for shape, (num_experts, capacity), (expert, slot), block in SIZES:
        experts = draw.ids(num_experts, *shape, dtype="int32")
        slots = reference.queue(experts, num_experts=num_experts, capacity=capacity)
        yield experts, slots, {"first_expert": expert, "first_slot": slot}, block
