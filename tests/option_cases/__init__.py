"""Cases of command-line options: a file for each command, whose CASES has an entry for every option, by its field.

A case is two command lines that differ in the option alone, and what of a run the option is for. Nothing else is needed
to hold a new option to the law that it changes what it says. This does not know which commands and options there are.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import pytest

# Figures of a preset never depend on the host that the tests run on.
PRESET = "--machine dgx-h100:nodes=1"
MLP = "mlp:layers=1,width=16"
TRAINED = "mlp:width=16"

# What lies in the folder of every run: texts, and what castile writes when it is told these words in this order.
TEXTS = {
    "hosts": "localhost slots=2\n",
    "one.toml": 'nodes = 1\n\n[[processor]]\nkind = "cpu"\nflops_per_second = 1e9\nbytes_per_second = 1e9\n'
    "memory_bytes = 1_000_000_000\ntask_overhead_seconds = 1e-3\n",
    # All that can be measured of these two, and between them, is little.
    "two.toml": '[[processor]]\nkind = "cpu"\ncount = 2\nflops_per_second = 1e9\nbytes_per_second = 1e9\n'
    "memory_bytes = 100_000\ntask_overhead_seconds = 1e-6\n\n"
    '[[level]]\nname = "memory"\nlatency_seconds = 1e-6\nbytes_per_second = 1e9\n',
    "tiny.py": """
from castile.planner.graph import Graph

def build(batch=None, dtype="float32"):
    g = Graph("tiny", dtype)
    x, label = g.input("x", (batch or 8, 4), "b i"), g.input("label", (batch or 8,), "b", "int32")
    g.minimise(g.cross_entropy("loss", g.linear("fc", x, features=3), label))
    return g
""",
}
WORDS = (
    f"plan {MLP} {PRESET} --search data_parallel --out dp.json",
    f"plan {MLP} {PRESET} --search fsdp --out fsdp.json",
    f"plan {MLP} {PRESET} --search data_parallel --batch 24 --out dp24.json",
    f"plan {MLP} {PRESET} --search fsdp --batch 24 --out fsdp24.json",
    f"plan {MLP} --machine local:procs=1 --search data_parallel --out one.json",
    f"profile {MLP} --profile known.db",
    f"train {TRAINED} --steps 2 --checkpoint run --checkpoint-every 1 --out trained.json --profile trained.db",
    "checkpoint export run --out weights.safetensors",
)


@dataclass(frozen=True)
class Ran:
    """What came of a command line: its status, what it said, the folder that it ran in, and by whom it was worked.

    files           those that were not in the folder before
    child_seconds   processor seconds of processes that it started and waited for
    """

    status: int
    out: str
    err: str
    folder: Path
    files: frozenset[str]
    child_seconds: float

    @cached_property
    def facts(self) -> dict[str, Any]:
        """The JSON object that it printed."""
        assert self.status == 0, self.err
        found = json.loads(self.out)
        assert isinstance(found, dict)
        return found

    @property
    def is_json(self) -> bool:
        """Whether what it printed is one JSON object."""
        assert self.status == 0, self.err
        try:
            return isinstance(json.loads(self.out), dict)
        except ValueError:
            return False

    def read(self, name: str) -> Any:
        """The JSON of a file that it wrote, None where there is none."""
        return json.loads((self.folder / name).read_text()) if name in self.files else None

    def records(self, name: str, kind: str, fact: str) -> list[Any]:
        """A fact of each record of one kind in a file of lines."""
        lines = map(json.loads, (self.folder / name).read_text().splitlines())
        return [line.get(fact) for line in lines if line["kind"] == kind]


@dataclass(frozen=True)
class Case:
    """An option: a command line without it (or with another word in its place), and one with it.

    without, given   the lines, without `castile`
    sees             what of a run the option is for; alike in two runs of the line without it
    differs          asked with what is seen without and with the option
    ranks            0 for a run in this process, else so many MPI ranks
    patch            what stands in for something that a test must not touch or cannot have
    """

    without: str
    given: str
    sees: Callable[[Ran], Any]
    differs: Callable[[Any, Any], bool] = operator.ne
    ranks: int = 0
    patch: Callable[[pytest.MonkeyPatch], None] | None = None
    mpi: bool = False


def cases_of(command: str) -> dict[str, Case]:
    """The cases of a command by the field of its dataclass; none where it has no file here."""
    if command not in files():
        return {}
    found: dict[str, Case] = import_module(f"{__name__}.{command}").CASES
    return found


def files() -> tuple[str, ...]:
    """The commands that have a file here."""
    return tuple(sorted(module.name for module in iter_modules(__path__)))


def fact(*path: str) -> Callable[[Ran], Any]:
    """Sees one value of the JSON object that a command prints."""

    def sees(ran: Ran) -> Any:
        found: Any = ran.facts
        for key in path:
            found = found[key]
        return found

    return sees


def becomes(value: Any) -> Callable[[Any, Any], bool]:
    """With the option it is just this, and without it something else."""
    return lambda without, given: given == value != without


def json_of(line: str) -> Case:
    """The case of --json: one object where there were words."""
    return Case(line, f"{line} --json", lambda ran: ran.is_json, becomes(True))


def trace_of(line: str, lanes: set[str]) -> Case:
    """The case of --trace: a Chrome trace with these processes."""

    def sees(ran: Ran) -> set[str]:
        events = (ran.read("trace.json") or {"traceEvents": []})["traceEvents"]
        return {e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "process_name"}

    return Case(line, f"{line} --trace trace.json", sees, becomes(lanes))


def profile_of(line: str) -> Case:
    """The case of --profile where it is read: prices that were measured."""
    return Case(line, f"{line} --profile known.db", lambda ran: ran.facts["prices"].get("measured", 0), operator.lt)
