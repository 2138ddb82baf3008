"""Definitions of mixtures of experts in plain NumPy: places in queues, tokens to experts and back.

experts and slots [b,s,k] say of each of k choices of a token its expert and its place in the queue of that expert and
sample; -1 where the queue was full. Where only a block of experts or places is there it begins with number
`first_expert`, `first_slot`; what lies outside is passed over.
"""

from collections.abc import Iterator

import numpy as np

from castile.kernels.form import numbers
from castile.kernels.ids import check_ids


@numbers("num_experts")
def queue(experts: np.ndarray, *, num_experts: int, capacity: int) -> np.ndarray:
    """Places [b,s,k] (int32) in the queues of experts: first choices come first, in the order of the tokens.

    -1 for one that comes after `capacity` others. IndexError for an expert outside [0, num_experts).
    """
    check_ids("queue", experts, num_experts)
    slots = np.empty(experts.shape, np.int32)
    for sample, row in enumerate(experts):
        waiting = [0] * num_experts
        for choice in range(row.shape[1]):
            for token, expert in enumerate(row[:, choice]):
                slots[sample, token, choice] = waiting[expert] if waiting[expert] < capacity else -1
                waiting[expert] += 1
    return slots


def dispatch(
    x: np.ndarray,
    experts: np.ndarray,
    slots: np.ndarray,
    *gates: np.ndarray,
    num_experts: int,
    capacity: int,
    first_expert: int,
    first_slot: int,
) -> np.ndarray:
    """Tokens x [b,s,d], times gates [b,s,k] if given, at their places in [num_experts,b,capacity,d]; else zeros."""
    y = np.zeros((num_experts, len(x), capacity, x.shape[-1]), x.dtype)
    for index, (expert, slot) in _there(experts, slots, (num_experts, capacity), (first_expert, first_slot)):
        token = x[index[:2]]
        y[expert, index[0], slot] += token * gates[0][index] if gates else token
    return y


def combine(
    y: np.ndarray, experts: np.ndarray, slots: np.ndarray, *gates: np.ndarray, first_expert: int, first_slot: int
) -> np.ndarray:
    """Of y [e,b,c,d] the sum over a token's choices, times gates [b,s,k] if given -> [b,s,d]."""
    x = np.zeros((*experts.shape[:2], y.shape[-1]), y.dtype)
    for index, (expert, slot) in _there(experts, slots, (y.shape[0], y.shape[2]), (first_expert, first_slot)):
        token = y[expert, index[0], slot]
        x[index[:2]] += token * gates[0][index] if gates else token
    return x


def gate_grad(
    dy: np.ndarray, y: np.ndarray, experts: np.ndarray, slots: np.ndarray, *, first_expert: int, first_slot: int
) -> np.ndarray:
    """Gradient of `combine` to its gates [b,s,k], from dy [b,s,d]."""
    grad = np.zeros(experts.shape, y.dtype)
    for index, (expert, slot) in _there(experts, slots, (y.shape[0], y.shape[2]), (first_expert, first_slot)):
        grad[index] = dy[index[:2]] @ y[expert, index[0], slot]
    return grad


def expert_share(experts: np.ndarray, *, num_experts: int, first_expert: int, dtype: str) -> np.ndarray:
    """The share of each sample's tokens whose first choice is an expert -> [b,num_experts]."""
    numbers = first_expert + np.arange(num_experts)
    return (experts[:, :, :1] == numbers).mean(axis=1).astype(dtype)


def _there(
    experts: np.ndarray, slots: np.ndarray, sizes: tuple[int, int], firsts: tuple[int, int]
) -> Iterator[tuple[tuple[int, ...], tuple[int, int]]]:
    """(sample, token, choice), (expert, slot) of every choice that has a place in the block."""
    for index in np.ndindex(*experts.shape):
        expert, slot = int(experts[index]) - firsts[0], int(slots[index]) - firsts[1]
        if slots[index] >= 0 and 0 <= expert < sizes[0] and 0 <= slot < sizes[1]:
            yield index, (expert, slot)
