"""Cases of the options of `castile validate`."""

from __future__ import annotations

import operator
import sqlite3

import pytest

from castile.launch import validate
from tests.option_cases import MLP, TRAINED, Case, Ran, becomes, fact, json_of, trace_of

FEW = "--batch 8 --plans 4 --rounds 1"
HERE = f"validate {TRAINED} {FEW}"


def drawn(ran: Ran) -> list[tuple[str, float]]:
    """The plans, with what they take before anything is learned."""
    return [(row["name"], row["before_seconds"]) for row in ran.facts["plans"]]


def measurements(ran: Ran) -> int:
    """How often what the database keeps was measured, 0 without one."""
    assert ran.status == 0, ran.err
    if "new.db" not in ran.files:
        return 0
    with sqlite3.connect(ran.folder / "new.db") as found:
        return int(found.execute("SELECT sum(count) FROM measurement").fetchone()[0])


def soon(patch: pytest.MonkeyPatch) -> None:
    """Any step is long enough, or finding a batch for a long one would take long."""
    patch.setattr(validate, "STEP_SECONDS", 1e-9)


KEPT = f"{HERE} --json --profile new.db"

CASES = {
    "model": Case(f"{HERE} --json", f"validate mlp:width=24 {FEW} --json", drawn),
    "machine": Case(f"{HERE} --json", f"{HERE} --json --machine one.toml", drawn),
    "plans": Case(f"{HERE} --json", f"validate {TRAINED} --batch 8 --plans 6 --rounds 1 --json", fact("num_plans"),
                  becomes(6)),
    # Without it the batch is one that takes long enough, and differs from run to run.
    "batch": Case(f"validate {TRAINED} --plans 4 --rounds 1 --json", f"{HERE} --json",
                  lambda ran: ran.facts["batch"] == 8, becomes(True), patch=soon),
    "accumulate": Case(f"{HERE} --json", f"{HERE} --json --accumulate 2", fact("microbatches"), becomes(2)),
    "recompute": Case(f"{HERE} --json", f"{HERE} --json --recompute full", fact("num_recomputed"), operator.lt),
    "rounds": Case(KEPT, KEPT.replace("--rounds 1", "--rounds 4"), measurements, operator.lt),
    # One processor leaves nothing to draw.
    "seed": Case(f"validate {MLP} {FEW} --json", f"validate {MLP} {FEW} --json --seed 3", drawn, ranks=2),
    "trace": trace_of(f"{HERE} --json", {"simulated", "measured"}),
    "picture": Case(f"{HERE} --json", f"{HERE} --json --picture new/step.svg",
                    lambda ran: "new/step.svg" in ran.files, becomes(True)),
    "profile": Case(f"{HERE} --json", KEPT, measurements, operator.lt),
    "json": json_of(HERE),
}  # fmt: skip
