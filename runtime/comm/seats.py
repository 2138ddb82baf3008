"""Seats: where ranks sit, whether NCCL can carry what they send to each other from there, and how it is set.

It is told what ranks found, and reads nothing but this process's variables.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

SHARING_SWITCH = "NCCL_MULTI_RANK_GPU_ENABLE"
FIRST_TO_SHARE = 23003
# What NCCL reads when the first communicator is made and has to be the same on all ranks: as the user of the first has
# set it, else so (None: not set). One algorithm: a sum has the same bits in every run. Streams meet in the order of the
# calls: communicators that run side by side cannot lock each other. Captured calls are made as others are: a rank may
# capture its step where another cannot, and bits are those of a step that is timed.
SETTINGS = {"NCCL_ALGO": "Ring", "NCCL_PROTO": None, "NCCL_LAUNCH_ORDER_IMPLICIT": "1", "NCCL_GRAPH_REGISTER": "0"}


@dataclass(frozen=True)
class Seat:
    """Where a rank sits: its host's name, its GPU's among those of all hosts, the NCCL it found (0: none), whether GPUs
    are shared."""

    host: str
    gpu: str
    version: int
    may_share: bool


def verdict(seats: Sequence[Seat]) -> tuple[bool, str]:
    """Whether NCCL can carry what these ranks send to each other, and why."""
    if len(seats) == 1:
        return False, "one rank: nothing travels"
    versions = sorted({seat.version for seat in seats})
    if not versions[0]:
        lacking = next(seat.host for seat in seats if not seat.version)
        return False, f"through the host: no NCCL on {lacking} (pip install nvidia-nccl-cu13)"
    if len(versions) > 1:
        return False, f"through the host: NCCL differs between ranks ({', '.join(map(spelt, versions))})"
    if len({seat.gpu for seat in seats}) == len(seats):
        return True, f"NCCL {spelt(versions[0])}, a GPU for each rank"
    return shared(versions[0], all(seat.may_share for seat in seats))


def shared(version: int, is_switched_on: bool) -> tuple[bool, str]:
    """Whether that NCCL takes several ranks on one GPU, and why."""
    name = f"NCCL {spelt(version)}"
    if version < FIRST_TO_SHARE:
        return False, f"through the host: ranks share a GPU, which {name} refuses ({spelt(FIRST_TO_SHARE)} can)"
    if not is_switched_on:
        return False, f"through the host: ranks share a GPU, which {name} does with {SHARING_SWITCH}=1 only"
    return True, f"{name}, ranks share a GPU ({SHARING_SWITCH}=1)"


def spelt(version: int) -> str:
    """The version as people write it."""
    return f"{version // 10000}.{version // 100 % 100}.{version % 100}"


def settings() -> dict[str, str | None]:
    """SETTINGS as this process has them."""
    return {name: os.environ.get(name, default) for name, default in SETTINGS.items()}
