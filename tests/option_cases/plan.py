"""Cases of the options of `castile plan`."""

from __future__ import annotations

import operator

from tests.option_cases import MLP, PRESET, Case, Ran, becomes, fact, json_of, profile_of, trace_of

# Of few processors and samples, so that little is tried.
HERE = f"plan {MLP} {PRESET} --without 2-7 --batch 4 --budget 20"
# For what does not depend on how a plan is found.
KNOWN = f"plan {MLP} {PRESET} --search data_parallel"
TWO = f"plan {MLP} --machine local:procs=2 --batch 4 --budget 20 --json"
ONE = f"plan {MLP} --machine local:procs=1 --budget 20 --json"
# Of which what a short search finds is chance.
WALKED = "--accumulate 1 --budget 20 --search mcmc"
LONG = f"plan mlp:layers=3,width=4096 {PRESET} --without 4-7 --batch 1024 {WALKED} --json"
# So many samples that products take most of the time.
MANY = f"plan mlp:layers=2,width=2048 {PRESET} --search data_parallel --batch 65536 --json"


def found(ran: Ran) -> object:
    """The plan as it is told, and what it takes."""
    return ran.facts["layouts"], ran.facts["found"]["step_seconds"]


def config_of(ran: Ran, node: str) -> str:
    """A node's Config in words."""
    return next(row["config"] for row in ran.facts["layouts"] if node in row["nodes"])


CASES = {
    "model": Case(f"{KNOWN} --json", f"{KNOWN} --json".replace(MLP, "mlp:layers=2,width=16"), fact("num_tasks")),
    "machine": Case(f"plan {MLP} --search data_parallel --json", f"{KNOWN} --json", fact("num_procs"), becomes(8)),
    "each_search": Case(TWO, f"{TWO} --search data_parallel", fact("equals"), becomes("data_parallel")),
    "objective": Case(TWO, f"{TWO} --objective memory", fact("found", "live_bytes"), operator.gt),
    "front": Case(TWO, f"{TWO} --front", lambda ran: len(ran.facts.get("front", ())), operator.lt),
    "pin": Case(TWO, f"{TWO} --pin 'fc1: {{o: 2}}' --pin 'head: {{b: 2}}'",
                lambda ran: ["o:2" in config_of(ran, "fc1"), "b:2" in config_of(ran, "head")], becomes([True, True])),
    "without": Case(f"{KNOWN} --json", f"{KNOWN} --json --without 1,3-4",
                    lambda ran: config_of(ran, "fc1"), becomes("b:5 on 0,2,5-7")),
    "seeds": Case(f"{HERE} --json", f"{HERE} --json --seeds fsdp", lambda ran: sorted(ran.facts["seeds"]),
                  becomes(["data_parallel", "fsdp"])),
    "from_": Case(ONE, f"{ONE} --from one.json", lambda ran: "given" in ran.facts["seeds"]),
    "budget": Case(f"{HERE} --json", f"{HERE} --json".replace("20", "7"), fact("num_proposals"), becomes(7)),
    "processes": Case(f"{TWO} --search tempering", f"{TWO} --search tempering --processes 2",
                      lambda ran: ran.child_seconds > 0, becomes(True)),
    "each_seed": Case(LONG, f"{LONG} --seed 3", found),
    "batch": Case(f"{KNOWN} --json", f"{KNOWN} --json --batch 24", fact("batch_samples"), becomes(24)),
    "accumulate": Case(MANY, f"{MANY} --accumulate 4", fact("found", "live_bytes"), operator.gt),
    "recompute": Case(f"{HERE} --json", f"{HERE} --json --recompute selective", fact("num_recomputed"), operator.lt),
    "dtype": Case(MANY, f"{MANY} --dtype bfloat16", fact("found", "step_seconds"), operator.gt),
    "optimizer": Case(f"{KNOWN} --json", f"{KNOWN} --json --optimizer adamw", fact("found", "live_bytes"), operator.lt),
    "clip": Case(f"{KNOWN} --json", f"{KNOWN} --json --clip 0.5", fact("num_tasks"), operator.lt),
    "profile": profile_of(f"plan {MLP} --machine local:procs=1 --search data_parallel --json"),
    "out": Case(KNOWN, f"{KNOWN} --out new/plan.json", lambda ran: (ran.read("new/plan.json") or {}).get("model"),
                becomes(MLP)),
    "trace": trace_of(KNOWN, {"simulated"}),
    "picture": Case(KNOWN, f"{KNOWN} --picture new/plan.svg", lambda ran: "new/plan.svg" in ran.files, becomes(True)),
    "json": json_of(KNOWN),
}  # fmt: skip
