"""Cases of the options of `castile diff`."""

from __future__ import annotations

import operator

from tests.option_cases import PRESET, Case, Ran, becomes, fact, json_of

HERE = "diff dp.json fsdp.json"
ALONE = "diff one.json one.json --machine local:procs=1 --json"
OTHER_BATCH = f"diff reticent-dp24.json reticent-fsdp24.json {PRESET} --json"


def understood(ran: Ran) -> str | float:
    """What both plans move, or why they are not compared."""
    return ran.facts["figures"]["moved_bytes"]["a"] if ran.status == 0 else ran.err


CASES = {
    "a": Case(f"{HERE} --json", "diff fsdp.json fsdp.json --json", fact("num_moved"), becomes(0)),
    "b": Case(f"{HERE} --json", "diff dp.json dp.json --json", fact("num_moved"), becomes(0)),
    "machine": Case(f"{HERE} --json", f"{HERE} --json {PRESET}", fact("simulated_on"), becomes("dgx-h100:nodes=1")),
    "forward": Case(f"{HERE} --json {PRESET}", f"{HERE} --json {PRESET} --forward",
                    fact("figures", "step_seconds", "a"), operator.gt),
    "batch": Case(OTHER_BATCH, f"{OTHER_BATCH} --batch 24", lambda ran: ran.status, becomes(0)),
    "profile": Case(ALONE, f"{ALONE} --profile known.db", fact("figures", "step_seconds", "a")),
    "json": json_of(HERE),
}  # fmt: skip
