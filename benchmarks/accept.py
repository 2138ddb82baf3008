"""Runs every command and figure that castile promises, and prints figure beside target: met, not met, or not run.

    python benchmarks/accept.py [--only NAME ...] [--with-tests] [--json]

All of it takes about forty minutes, and wants the machine to itself. The results also go to build/accept.json. The
exit status is 1 where a target is not met. A check is a public function of a file of `benchmarks/checks`.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import os
import pkgutil
import platform
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import checks
from benchmarks.figures import Figure
from benchmarks.place import CHECKOUT, CheckFailed, Place
from castile.launch.here.probe import cpu_model

Check = Callable[[Place], list[Figure]]
RESULTS = CHECKOUT / "build" / "accept.json"
VERDICTS = ("met", "not met", "not run", "told")


@dataclass(frozen=True)
class Outcome:
    """What a check found, how long it took, and how busy the machine was when it began (processes that want a core)."""

    check: str
    figures: tuple[Figure, ...]
    seconds: float
    load: float


def every_check() -> dict[str, Check]:
    """All checks by name, in the order in which they stand in their files."""
    result: dict[str, Check] = {}
    for info in pkgutil.iter_modules(checks.__path__):
        module = importlib.import_module(f"benchmarks.checks.{info.name}")
        own = [f for _, f in inspect.getmembers(module, inspect.isfunction) if f.__module__ == module.__name__]
        for function in sorted(own, key=lambda f: f.__code__.co_firstlineno):
            if not function.__name__.startswith("_"):
                assert function.__name__ not in result, f"two checks are named {function.__name__}"
                result[function.__name__] = function
    return result


def main(argv: Sequence[str] | None = None) -> int:
    known = every_check()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=sorted(known), metavar="NAME", help=", ".join(known))
    parser.add_argument("--with-tests", action="store_true", help="run `make test` too")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(argv)
    chosen = {name: check for name, check in known.items() if not options.only or name in options.only}
    with tempfile.TemporaryDirectory(prefix="castile-accept-") as scratch:
        place = Place(Path(scratch), options.with_tests)
        outcomes = [run(name, check, place, options.json) for name, check in chosen.items()]
    facts = summary(outcomes)
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    if options.json:
        print(json.dumps(facts))
    else:
        print(", ".join(f"{facts['counts'][verdict]} {verdict}" for verdict in VERDICTS))
        print(f"written to {RESULTS.relative_to(CHECKOUT)}")
    return 1 if facts["counts"]["not met"] else 0


def run(name: str, check: Check, place: Place, quiet: bool) -> Outcome:
    """Run one check and tell its figures; one that cannot come to its end has not met its target."""
    print(f"{name}: {inspect.getdoc(check)}", file=sys.stderr, flush=True)
    load, began = os.getloadavg()[0], perf_counter()
    try:
        figures = check(place)
    except (CheckFailed, ValueError) as error:
        figures = [Figure(f"{name}_came_to_its_end", 0, least=1, note=str(error))]
    seconds = perf_counter() - began
    if not quiet:
        for figure in figures:
            print(figure.line, flush=True)
    print(f"  {seconds:.0f} s, load {load:.1f} at its beginning", file=sys.stderr, flush=True)
    return Outcome(name, tuple(figures), seconds, load)


def summary(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """All that was found, and of what: the commit, and whether files differ from it."""
    figures = [figure for outcome in outcomes for figure in outcome.figures]
    counted = Counter(figure.verdict for figure in figures)
    return {
        "commit": _git("rev-parse", "HEAD"),
        "changed_files": len(_git("status", "--porcelain").splitlines()),
        "host": {"cpu": cpu_model(), "num_cores": os.cpu_count(), "python": platform.python_version()},
        "counts": {verdict: counted[verdict] for verdict in VERDICTS},
        "checks": [
            {
                "check": outcome.check,
                "seconds": outcome.seconds,
                "load": outcome.load,
                "figures": [{**asdict(f), "target": f.target, "verdict": f.verdict} for f in outcome.figures],
            }
            for outcome in outcomes
        ],
    }


def _git(*words: str) -> str:
    ran = subprocess.run(("git", *words), cwd=CHECKOUT, capture_output=True, text=True, check=False)
    return ran.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
