"""Cases of the options of `castile train`."""

from __future__ import annotations

from castile.launch.jobs import runfile
from castile.launch.reports.report import AGAIN
from castile.launch.train import Train
from castile.planner import strategy as strategies
from tests.option_cases import TRAINED, Case, Ran, becomes, fact, json_of, trace_of

# Which plan is chosen depends on what the host is measured to do, and to measure takes longer than to train.
SEARCHED = f"train {TRAINED} --steps 3"
INSISTED = f"{SEARCHED} --search data_parallel"
OTHERWISE = f"{INSISTED} --json"
# Where the plan may be that of a file nothing is measured.
LINE = f"{SEARCHED} --plan trained.json"
HERE = f"{LINE} --json"
EPOCH = f"train {TRAINED} --batch 700 --search data_parallel --json"
RECORDED = f"{HERE} --metrics m.jsonl"
SAVED = f"{HERE} --checkpoint new"
JUDGED = f"{HERE} --evaluate-every 1"
DECAYED = f"{HERE} --optimizer sgd:decay=0.5"


losses = fact("losses")


def rates(ran: Ran) -> list[float]:
    """The learning rate of each step."""
    return ran.records("m.jsonl", "step", "rate")


def chosen(ran: Ran) -> str:
    """Why this plan."""
    return next(line for line in ran.out.splitlines() if line.startswith("chosen ")).partition(": ")[2]


def evaluated(ran: Ran) -> list[int]:
    """After which steps it was evaluated."""
    return [found["step"] for found in ran.facts["evaluations"]]


def saved(ran: Ran) -> list[str]:
    """The checkpoints that stay."""
    return sorted({name.split("/")[1] for name in ran.files if name.startswith("new/step-")})


def begun(ran: Ran) -> int | str:
    """After which step it began, or why it did not: what is saved there is not trained over."""
    return int(ran.facts["first_step"]) if ran.status == 0 else ran.err


def printed(ran: Ran) -> str:
    """The model of the run file that it printed, "" where it printed none."""
    assert ran.status == 0, ran.err
    try:
        return runfile.read(ran.out.encode(), Train, "what is printed").model
    except ValueError:
        return ""


def planned(ran: Ran) -> str:
    """The model of the plan that it wrote."""
    return strategies.read(str(ran.folder / "new.json")).model if "new.json" in ran.files else ""


CASES = {
    # With which buckets its tasks and bytes are told depends on what was measured, so nothing is told to the last one.
    "model": Case(OTHERWISE, OTHERWISE.replace(TRAINED, "mlp:width=24"), losses),
    "machine": Case(OTHERWISE, f"{OTHERWISE} --machine one.toml",
                    lambda ran: ran.facts["untaught_step_seconds"] > 1e-3, becomes(True)),
    "plan": Case(f"{SEARCHED} --json", f"{SEARCHED} --json --plan trained.json",
                 lambda ran: len(ran.facts["candidates"]) > 0, becomes(False)),
    "search": Case(SEARCHED, INSISTED, lambda ran: chosen(ran) == "data_parallel, as asked", becomes(True)),
    # It searches again, with as many, where measuring says otherwise than the search.
    "budget": Case(f"{SEARCHED} --json", f"{SEARCHED} --json --budget 7",
                   lambda ran: ran.facts["num_proposals"] % 500 == 0, becomes(False)),
    "seed": Case(HERE, f"{HERE} --seed 3", losses),
    "data": Case(HERE, f"{HERE} --data noise:size=8,channels=1,classes=10", losses),
    "batch": Case(OTHERWISE, f"{OTHERWISE} --batch 24", fact("batch"), becomes(24)),
    "epochs": Case(EPOCH, f"{EPOCH} --epochs 3", fact("num_steps"), becomes(6)),
    "steps": Case(EPOCH, f"{EPOCH} --steps 3", fact("num_steps"), becomes(3)),
    "optimizer": Case(HERE, f"{HERE} --optimizer adamw", losses),
    "lr": Case(RECORDED, f"{RECORDED} --lr 0.25", rates, becomes([0.25] * 3)),
    "schedule": Case(RECORDED, f"{RECORDED} --schedule linear", rates,
                     lambda without, given: min(given) < max(given) and min(without) == max(without)),
    "clip": Case(RECORDED, f"{RECORDED} --clip 0.01", lambda ran: (ran.records("m.jsonl", "step", "norm"), losses(ran)),
                 lambda without, given: None not in given[0] and without[1] != given[1]),
    "undecayed": Case(DECAYED, f"{DECAYED} --undecayed *.weight", losses),
    "accumulate": Case(OTHERWISE, f"{OTHERWISE} --accumulate 4", lambda ran: ran.facts["num_tasks"] > 24,
                       becomes(True)),
    "recompute": Case(INSISTED, f"{INSISTED} --recompute relu*", lambda ran: f"{AGAIN}relu" in ran.out,
                      becomes(True)),
    "dtype": Case(OTHERWISE, f"{OTHERWISE} --dtype float64", losses),
    "weights": Case(HERE, f"{HERE} --weights weights.safetensors", losses),
    "evaluate_every": Case(HERE, f"{HERE} --evaluate-every 1", evaluated, becomes([1, 2, 3])),
    # of a rate that leads nowhere no evaluation is better than the first
    "patience": Case(f"{JUDGED} --lr 1e-30", f"{JUDGED} --lr 1e-30 --patience 1", evaluated, becomes([1, 2])),
    "best": Case(f"{JUDGED} --checkpoint new", f"{JUDGED} --checkpoint new --best", fact("best"),
                 lambda without, given: not without and given["step"] in (1, 2, 3)),
    "checkpoint": Case(HERE, SAVED, saved, becomes(["step-00000003"])),
    "checkpoint_every": Case(SAVED, f"{SAVED} --checkpoint-every 2", saved,
                             becomes(["step-00000002", "step-00000003"])),
    "keep": Case(f"{SAVED} --checkpoint-every 1", f"{SAVED} --checkpoint-every 1 --keep 1", saved,
                 becomes(["step-00000003"])),
    "resume": Case(f"{HERE} --checkpoint run", f"{HERE} --checkpoint run --resume", begun, becomes(2)),
    "metrics": Case(HERE, RECORDED, lambda ran: "m.jsonl" in ran.files and ran.records("m.jsonl", "step", "step"),
                    becomes([1, 2, 3])),
    "tensorboard": Case(HERE, f"{HERE} --tensorboard events",
                        lambda ran: any(name.startswith("events/events.out.tfevents.") for name in ran.files),
                        becomes(True)),
    "watch": Case(HERE, f"{HERE} --watch", lambda ran: len(ran.facts["gradients"]) > 0, becomes(True)),
    "out": Case(HERE, f"{HERE} --out new.json", planned, becomes(TRAINED)),
    "trace": trace_of(HERE, {"simulated", "measured"}),
    "picture": Case(HERE, f"{HERE} --picture new/step.svg", lambda ran: "new/step.svg" in ran.files, becomes(True)),
    "profile": Case(HERE, f"{HERE} --profile new.db", lambda ran: "new.db" in ran.files, becomes(True)),
    "print": Case(LINE, f"{LINE} --print", printed, becomes(TRAINED)),
    "json": json_of(LINE),
}  # fmt: skip
