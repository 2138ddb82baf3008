"""GPUs that are not here: which of them kernels can be compiled for, and the environment that estimates belong to.

It does not know kernels, nor how estimates are made.
"""

from __future__ import annotations

from importlib.metadata import version
from importlib.util import find_spec

import castile
from castile.launch.processes.ranks import UserError
from castile.planner.costs.snapshot import Environment
from castile.runtime.machine import Machine

# As `kernels/estimates` has them: whoever plans by data sheets needs no kernels.
KINDS = ("a100-sxm4-80gb", "h100-sxm5-80gb", "h200-sxm-141gb")


def is_known(machine: Machine) -> bool:
    """Whether kernels can be compiled for all of its processors, none of which is assumed to be here."""
    return all(processor.kind in KINDS for processor in machine.kinds)


def kind_of(machine: Machine) -> str:
    """The kind of its processors. Raises UserError where there are several kinds, or nothing can be compiled here."""
    if len(machine.kinds) > 1:
        raise UserError(f"--machine {machine.name}: its processors are of several kinds, and what kernels take is told "
                        "of one: name a machine that has only these")  # fmt: skip
    if find_spec("triton") is None:
        raise UserError(f"--machine {machine.name}: what kernels would take there is told from what Triton compiles, "
                        "which is not installed: pip install triton==3.6.0")  # fmt: skip
    return machine.kinds[0].kind


def environment(kind: str, kernels: str) -> Environment:
    """The environment of estimates for a kind of processor; `kernels` is the hash of their sources."""
    libraries = f"triton {version('triton')}, castile {castile.__version__}"
    return Environment(kind, threads=0, active_ranks=0, kernels=kernels, libraries=libraries)
