"""Every command and every way to start one, as a user types them.

It does not know what the commands do, but that each explains itself and prints one JSON object when asked.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial

from benchmarks.figures import Figure
from benchmarks.place import CheckFailed, Place
from castile.launch import launch
from castile.runtime.machine import num_cores

# The words that make each command run for a moment.
COMMANDS = {
    "train": ("mlp", "--steps", "4", "--budget", "20", "--checkpoint", "checkpoints"),
    "checkpoint": ("ls", "checkpoints"),
    "predict": ("mlp", "--checkpoint", "checkpoints", "--out", "predicted.npz"),
    "plan": ("mlp", "--machine", "local:procs=2", "--budget", "50", "--out", "plan.json"),
    "explain": ("plan.json", "--machine", "local:procs=2", "--why-not", "data_parallel"),
    "diff": ("plan.json", "plan.json"),
    "simulate": ("mlp", "--machine", "local:procs=2"),
    "profile": ("mlp",),
    "validate": ("mlp", "--plans", "4", "--rounds", "2", "--batch", "64"),
    "doctor": (),
    "list": ("models", "gpt"),
    "completion": (),
    "launch": ("-n", "2", "train", "mlp", "--steps", "2", "--budget", "20"),
}
# These need two ranks to have anything to do.
ON_RANKS = ("validate",)
# What this prints is for a shell.
SCRIPTS = ("completion",)
TRAIN = ("train", "mlp", "--steps", "2", "--budget", "5", "--json")


def helps(place: Place) -> list[Figure]:
    """`--help` of castile and of each command says what it is for."""

    def explains(*words: str) -> None:
        out = place.run(place.castile, *words, "--help", user="commands").ok().out
        if len(out.split()) < 20:
            raise CheckFailed(f"castile {' '.join(words)} --help is too short to explain anything: {out!r}")

    trials = {name: partial(explains, name) for name in COMMANDS}
    return [_all("commands_with_help", {"castile": explains, **trials})]


def json(place: Place) -> list[Figure]:
    """`--json` of each command that tells anything prints one JSON object and nothing else."""

    def prints(name: str) -> None:
        start = ("launch", "-n", "2") if name in ON_RANKS else ()
        own = ("--json", *COMMANDS[name]) if name == "launch" else (*COMMANDS[name], "--json")
        place.run(place.castile, *start, name, *own, user="commands", cwd=place.scratch).object()

    return [_all("commands_with_json", {name: partial(prints, name) for name in COMMANDS if name not in SCRIPTS})]


def starts(place: Place) -> list[Figure]:
    """The ways to start castile, with more ranks than cores too: each trains on as many ranks as it says."""
    many, mpirun = num_cores() + 2, str(launch.mpirun_path())

    def trains(num_ranks: int, *words: str) -> None:
        found = place.run(*words, *TRAIN, user="commands").object()["num_ranks"]
        if found != num_ranks:
            raise CheckFailed(f"{' '.join(words)} trained on {found} ranks")

    ways: Mapping[str, tuple[int, tuple[str, ...]]] = {
        "castile": (1, (place.castile,)),
        "python -m castile": (1, (sys.executable, "-m", "castile")),
        "castile launch -n 4": (4, (place.castile, "launch", "-n", "4")),
        "mpirun -n 4 castile": (4, (mpirun, "-n", "4", place.castile)),
        "mpirun -n 4 python -m castile": (4, (mpirun, "-n", "4", sys.executable, "-m", "castile")),
        f"mpirun -n {many} castile, more than cores": (many, (mpirun, "-n", str(many), place.castile)),
        f"castile launch -n {many}, more than cores": (many, (place.castile, "launch", "-n", str(many))),
    }
    return [_all("ways_to_start", {way: partial(trains, ranks, *words) for way, (ranks, words) in ways.items()})]


def _all(name: str, trials: Mapping[str, Callable[[], None]]) -> Figure:
    """How many of the trials succeed; all must."""
    failures = {}
    for what, trial in trials.items():
        try:
            trial()
        except CheckFailed as error:
            failures[what] = str(error)
    note = "; ".join(f"{what}: {error}" for what, error in failures.items())
    return Figure(f"num_{name}", len(trials) - len(failures), least=len(trials), note=note)
