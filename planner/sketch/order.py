"""The order in which a sketch takes the passes of a program.

Passes are given by their slots (numbers in the program), flows as flat arrays. It does not know operators, layouts or
Configs.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

# Pairs of the slot of a pass and the number of a port.
Slots = Sequence[tuple[int, int]]


class Joined(NamedTuple):
    """The ports of flows, flow by flow: the number of the flow, the slot of the pass, and the number of its port."""

    flow: np.ndarray
    slot: np.ndarray
    port: np.ndarray

    def of(self, which: np.ndarray) -> Joined:
        """The selected entries."""
        return Joined(*(column[which] for column in self))


def joined(flows: Sequence[Slots]) -> Joined:
    """The ports of flows, from a sequence of (slot, port) for each flow."""
    count = [len(slots) for slots in flows]
    pairs = np.fromiter(chain.from_iterable(chain.from_iterable(flows)), np.int64, 2 * sum(count)).reshape(-1, 2)
    return Joined(np.repeat(np.arange(len(count)), count), *pairs.T)


class Agenda(NamedTuple):
    """The order in which a sketch takes passes: their slots, and which entries only send for a later one."""

    slot: np.ndarray
    is_ahead: np.ndarray

    def places(self, num_slots: int, is_ahead: bool) -> np.ndarray:
        """int64[num_slots]: by slot the position of its pass, or of its entry that only sends; -1 for none."""
        found, here = np.full(num_slots, -1), np.flatnonzero(self.is_ahead == is_ahead)
        found[self.slot[here]] = here
        return found


def ordered(is_kept: np.ndarray, is_late: np.ndarray, micro: np.ndarray, made: Joined, read: Joined) -> Agenda:
    """Order the kept passes. A pass that updates a parameter has two entries: the first (`is_ahead`) stands where its
    gradient is made and only sends it; the second, at the end, updates. Otherwise the gradient sums of all layers would
    wait for the last gradient.

    Passes that could begin together are adjacent, as processors serve what is ready first: while one waits for data,
    others run. Data for the next passes is sent before sums that were made at the same time.

    is_kept, is_late   bool by slot: whether the sketch keeps the pass, and whether it updates a parameter
    micro              int by slot: the number of its microbatch, -1 for the whole batch
    made, read         the ports of flows that kept passes make and read
    """
    slots, is_made = np.flatnonzero(is_kept), np.bincount(made.flow, minlength=int(read.flow.max(initial=-1)) + 1) > 0
    read = read.of(is_made[read.flow])
    turn = _turns(slots, made, read)
    # Passes without updates: by microbatch, then by turn, then by slot.
    sooner = slots[np.lexsort((turn[slots], np.maximum(micro, 0)[slots]))]
    rank = np.zeros(len(is_kept), np.int64)
    rank[sooner] = np.arange(len(slots))
    late = slots[is_late[slots]]
    due = _due(late, sooner, rank, made, read)
    # Updates follow the order in which their gradients are made, the last layer's first: none waits for a later one.
    order, waits = slots.copy(), is_late[slots]
    order[waits] = late[np.argsort(due, kind="stable")]
    run = _numbered((micro[order], waits))
    inner = np.lexsort((np.where(waits, np.arange(len(order)), rank[order]), run))
    order, waits = order[inner], waits[inner]
    # Passes of one microbatch and turn are a block, and so are adjacent updates.
    block = _numbered((run[inner], np.where(waits, -1, turn[order])))
    place = np.zeros(len(is_kept), np.int64)
    place[order] = np.arange(len(order))
    # An entry that only sends comes one block after that in which its data is made, before updates.
    source = sooner[due]
    early = ~is_late[source]
    behind, source, ahead = block[place[source[early]]] + 1, source[early], late[early]
    of_late = np.append(waits[np.append(True, block[1:] != block[:-1])], False)
    blocks, sent = np.concatenate([block, behind]), np.arange(len(order) + len(ahead)) >= len(order)
    final = np.lexsort((np.concatenate([np.arange(len(order)), place[source]]), sent != of_late[blocks], blocks))
    return Agenda(np.concatenate([order, ahead])[final], sent[final])


def _turns(slots: np.ndarray, made: Joined, read: Joined) -> np.ndarray:
    """By slot, the turn of its pass: the length of the longest chain of passes that must come before it."""
    found = np.zeros(int(slots.max(initial=-1)) + 1, np.int64)
    # By flow, the earliest turn of a pass that reads what is made of it so far.
    ready = [0] * (1 + int(made.flow.max(initial=-1)))
    for slot, reads, makes in zip(slots.tolist(), _by_slot(slots, read), _by_slot(slots, made), strict=True):
        turn = max([ready[flow] for flow in reads], default=0)
        found[slot] = turn
        for flow in makes:
            ready[flow] = max(ready[flow], turn + 1)
    return found


def _by_slot(slots: np.ndarray, joined: Joined) -> list[list[int]]:
    """The flows with a port at each of these slots."""
    flows = joined.flow[np.argsort(joined.slot, kind="stable")].tolist()
    ends = np.cumsum(np.bincount(joined.slot, minlength=int(slots.max(initial=-1)) + 1))[slots].tolist()
    return [flows[begin:end] for begin, end in zip([0, *ends], ends)]


def _due(late: np.ndarray, sooner: np.ndarray, rank: np.ndarray, made: Joined, read: Joined) -> np.ndarray:
    """For each late pass the rank of the pass that makes its gradient; its own where nothing is made for it."""
    last = np.full(1 + int(made.flow.max(initial=-1)), -1)
    np.maximum.at(last, made.flow, rank[made.slot])
    of_flow = last[read.flow]
    comes = sooner[of_flow] < read.slot
    found = np.full(len(rank), -1)
    np.maximum.at(found, read.slot[comes], of_flow[comes])
    return np.where(found[late] >= 0, found[late], rank[late])


def _numbered(columns: Sequence[np.ndarray]) -> np.ndarray:
    """The number of the run that each entry is in: runs are entries that follow each other and are equal in all
    columns.
    """
    changes = np.logical_or.reduce([column[1:] != column[:-1] for column in columns])
    return np.append(0, np.cumsum(changes))
