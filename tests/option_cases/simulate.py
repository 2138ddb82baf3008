"""Cases of the options of `castile simulate`."""

from __future__ import annotations

import operator

from tests.option_cases import MLP, PRESET, Case, becomes, fact, json_of, profile_of, trace_of

HERE = f"simulate {MLP} {PRESET}"

CASES = {
    "what": Case(f"{HERE} --json", f"simulate fsdp.json {PRESET} --json", fact("plan"), becomes("fsdp.json")),
    "machine": Case(f"simulate {MLP} --json", f"{HERE} --json", fact("num_procs"), becomes(8)),
    "plan": Case(f"{HERE} --json", f"{HERE} --json --plan fsdp.json", fact("num_tasks")),
    "forward": Case(f"{HERE} --json", f"{HERE} --json --forward", fact("step_seconds"), operator.gt),
    "batch": Case(f"{HERE} --json", f"{HERE} --json --batch 24", fact("batch_samples"), becomes(24)),
    "profile": profile_of(f"simulate {MLP} --machine local:procs=1 --json"),
    "trace": trace_of(HERE, {"simulated"}),
    "picture": Case(HERE, f"{HERE} --picture new/step.svg", lambda ran: "new/step.svg" in ran.files, becomes(True)),
    "json": json_of(HERE),
}
