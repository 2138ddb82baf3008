"""Large plans: those of so many parts that of known ones only few are simulated, and these through few processors.

It does not know what known plans there are.
"""

from __future__ import annotations

from castile.planner.lower import Lowering

# To look at one of more parts takes seconds, and of still more a minute.
MOST_PARTS, VAST = 100_000, 5_000_000


def has_many_parts(lowering: Lowering, most: int = MOST_PARTS) -> bool:
    """Whether plans have too many parts to simulate several pipelines; or of VAST, those of several kinds."""
    return len(lowering.piece.nodes) * lowering.machine.num_procs > most
