"""Descriptions of the known plans, by the parts of their names, for users.

It does not know which of them a network on a machine has.
"""

from __future__ import annotations

import inspect

from castile.planner.known import plans
from castile.planner.known.seeds import PIPELINE

_WHOLE = (
    plans.data_parallel, plans.balanced, plans.one_processor, plans.one_weird_trick, plans.fsdp, plans.megatron,
    plans.context_parallel, plans.ulysses, plans.expert_parallel,
)  # fmt: skip
# N is a number, NAME that of another.
_MADE = {
    "NAME_N": "The same across N processors: data_parallel_4 is on four, megatron_4, ulysses_4 and expert_parallel_4 "
    "cut that many ways",
    "NAME_zero": "The same with sharded updates: each processor that holds a parameter updates a share, as in ZeRO",
    f"{PIPELINE}N": "N stages, each a stretch of nodes on processors of its own, for N or more microbatches, "
    "one forward one backward",
    f"{PIPELINE}N_interleaved": "The same with several short stretches of nodes in each stage",
    f"{PIPELINE}N_NAME": "Either, with each stage laid out on its processors as in the plan NAME: "
    "pipeline_4_megatron_2, pipeline_4_interleaved_ulysses",
}


def described() -> dict[str, str]:
    """By name, or by form of a name: what a plan of that name is."""
    return {make.__name__: " ".join((inspect.getdoc(make) or "").split("\n\n")[0].split()) for make in _WHOLE} | _MADE
