"""Cases of the options of `castile explain`."""

from __future__ import annotations

import operator

from tests.option_cases import MLP, PRESET, Case, Ran, becomes, fact, json_of

HERE = f"explain dp.json {PRESET}"
OTHER_BATCH = f"explain reticent-dp24.json {PRESET}"
ALONE = "explain one.json --machine local:procs=1 --json"


def understood(ran: Ran) -> str | int:
    """The batch that is explained, or why none is."""
    return ran.facts["batch_samples"] if ran.status == 0 else ran.err


CASES = {
    "plan": Case(f"{HERE} --json", f"explain fsdp.json {PRESET} --json", fact("layouts")),
    "op": Case(f"{HERE} --json", f"{HERE} --json --op fc1", lambda ran: ran.facts.get("op", {}).get("name"),
               becomes("fc1")),
    "why_not": Case(f"{HERE} --json", f"{HERE} --json --why-not fsdp",
                    lambda ran: ran.facts.get("why_not", {}).get("name"), becomes("fsdp")),
    # The plan is one for eight processors.
    "machine": Case("explain reticent-dp.json --json", f"explain reticent-dp.json {PRESET} --json",
                    lambda ran: ran.status, becomes(0)),
    "model": Case(f"explain nameless.json {PRESET} --json", f"explain nameless.json {PRESET} --json --model {MLP}",
                  lambda ran: ran.status, becomes(0)),
    "forward": Case(f"{HERE} --json", f"{HERE} --json --forward", fact("step_seconds"), operator.gt),
    "batch": Case(f"{OTHER_BATCH} --json", f"{OTHER_BATCH} --json --batch 24", understood, becomes(24)),
    "profile": Case(ALONE, f"{ALONE} --profile known.db", fact("step_seconds")),
    # by itself it is what takes all others of this file together
    "budget": Case(f"{HERE} --op fc1 --json --budget 9", f"{HERE} --op fc1 --json --budget 7",
                   fact("op", "num_simulated"), becomes(7)),
    "picture": Case(HERE, f"{HERE} --picture new/plan.svg", lambda ran: "new/plan.svg" in ran.files, becomes(True)),
    "json": json_of(HERE),
}  # fmt: skip
