"""`castile validate` on two ranks: how well plans are predicted that nothing was learned from.

It does not know how predictions are made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from statistics import median

from benchmarks.figures import Figure
from benchmarks.place import Place

RANKS = 2
# A figure is the middle one of so many draws of plans: of the 28 pairs of one, two the other way round are 0.14 of tau.
DRAWS = 3


def validate_convnet(place: Place) -> list[Figure]:
    """Predictions for convnet."""
    return _validate(place, "convnet")


def validate_gpt(place: Place) -> list[Figure]:
    """Predictions for gpt."""
    return _validate(place, "gpt")


def _validate(place: Place, model: str) -> list[Figure]:
    words = ("launch", "-n", str(RANKS), "validate", model, "--json", "--seed")
    runs = [place.run(place.castile, *words, str(n), user="validate", timeout=900).object() for n in range(DRAWS)]
    before, after = ([facts[when] for facts in runs] for when in ("before_learning", "after_learning"))
    plans = [facts["plans"] for facts in runs]
    num_plans, learned = min(map(len, plans)), sum(row["learned_from"] for row in plans[0])
    fastest, spread = min(row["measured_seconds"] for row in chain(*plans)), min(f["measured_spread"] for f in runs)
    taus = ", ".join(f"{of['kendall_tau']:.2f} ({of['num_pairs']} pairs)" for of in after)
    return [
        Figure(f"validate_{model}_num_plans", num_plans, least=16, note=f"{learned} of them learned from"),
        Figure(f"validate_{model}_fastest_step_seconds", fastest, least=0.02, note=f"batch {runs[0]['batch']}"),
        Figure(f"validate_{model}_measured_spread_ratio", spread, least=1.5),
        Figure(f"validate_{model}_mean_error_share", _middle(after, "mean_error"), most=0.15),
        Figure(f"validate_{model}_kendall_tau", _middle(after, "kendall_tau"), least=0.7, note=f"the middle of {taus}"),
        Figure(f"validate_{model}_largest_error_share", _middle(after, "largest_error")),
        Figure(f"validate_{model}_regret_share", _middle(after, "regret")),
        Figure(f"validate_{model}_untaught_mean_error_share", _middle(before, "mean_error")),
        Figure(f"validate_{model}_untaught_kendall_tau", _middle(before, "kendall_tau")),
    ]


def _middle(runs: Sequence[Mapping[str, float]], name: str) -> float:
    return median(facts[name] for facts in runs)
