"""`make demo` in a fresh clone by a user who has never run castile: what it reaches, how long it takes, what it tells.

It does not know how the demonstration works: it reads what is printed.
"""

from __future__ import annotations

import re

from benchmarks.figures import Figure
from benchmarks.place import CheckFailed, Place, Ran

SEEDS = (0, 1, 2)
ACCURACY = 0.97
SECONDS = 60
# What the demonstration has to tell, and how one recognises that it does.
TOLD = {
    "the plan": r"(?m)^  \S+.* on 0",
    "one rank, simulated and measured": r"one_processor +[\d.]+ ms +[\d.]+ ms",
    "data parallel, simulated and measured": r"data_parallel +[\d.]+ ms +[\d.]+ ms",
    "what was chosen": r"chosen",
    "step lines with both times": r"(?m)^step +\d+ +loss [\d.]+ \| [\d.]+ ms \(sim [\d.]+, [+-][\d.]+ %\)",
    "the prediction error before and after": r"[\d.]+ % before learning, [\d.]+ % after",
    "the accuracy": r"[\d.]+ % of \d+ samples right",
    "the plan's file": r"plan: \S+",
    "the profile database": r"profile: \S+",
    "the trace": r"trace: \S+",
}


def demo(place: Place) -> list[Figure]:
    """Accuracy and time for each seed, everything after the installation included."""
    figures = [Figure("demo_installation_seconds", place.clone.installation_seconds)]
    for seed in SEEDS:
        words = ("make", "demo", f"SEED={seed}", f"PYTHON={place.clone.python}")
        ran = place.run(*words, user=f"demo {seed}", cwd=place.clone.folder).ok()
        figures += _figures(f"demo_seed{seed}", ran)
    return figures


def _figures(name: str, ran: Ran) -> list[Figure]:
    missing = [what for what, pattern in TOLD.items() if not re.search(pattern, ran.out)]
    note = f"missing: {', '.join(missing)}" if missing else ""
    equals = re.search(r"which is the known plan (\w+)", ran.out)
    chosen = f"it chose {equals[1]}" if equals else "it chose a plan that is none of the known"
    before, after = _numbers(r"([\d.]+) % before learning, ([\d.]+) % after", ran)
    accuracy, samples = _numbers(r"([\d.]+) % of (\d+) samples right", ran)
    return [
        Figure(f"{name}_accuracy_share", accuracy / 100, least=ACCURACY, note=f"{samples:.0f} samples"),
        Figure(f"{name}_seconds", ran.seconds, most=SECONDS, note=chosen),
        Figure(f"{name}_num_told", len(TOLD) - len(missing), least=len(TOLD), note=note),
        Figure(f"{name}_error_before_learning_share", before / 100),
        Figure(f"{name}_error_after_learning_share", after / 100),
    ]


def _numbers(pattern: str, ran: Ran) -> tuple[float, float]:
    found = re.search(pattern, ran.out)
    if found is None:
        raise CheckFailed(f"{' '.join(ran.words)} does not tell {pattern!r}: {ran.tail}")
    return float(found[1]), float(found[2])
