"""Cases of the options of `castile checkpoint`."""

from __future__ import annotations

import operator

from tests.option_cases import Case, Ran, becomes, fact, json_of

EXPORT = "checkpoint export run --out all.safetensors --json"


def names(ran: Ran) -> list[str]:
    """The checkpoints that are listed."""
    return [row["name"] for row in ran.facts["checkpoints"]]


CASES = {
    "action": Case("checkpoint ls run --json", "checkpoint verify run --json", lambda ran: ran.facts.get("sound"),
                   becomes(["step-00000001", "step-00000002"])),
    "path": Case("checkpoint ls run --json", "checkpoint ls run/step-00000001 --json", names,
                 becomes(["step-00000001"])),
    # Without a name for its file nothing is exported.
    "out": Case("checkpoint export run", "checkpoint export run --out new/w.safetensors",
                lambda ran: (ran.status, sorted(ran.files)), becomes((0, ["new/w.safetensors"]))),
    "state": Case(EXPORT, EXPORT.replace(" --json", " --state --json"), fact("num_tensors"), operator.lt),
    "json": json_of("checkpoint ls run"),
}  # fmt: skip
