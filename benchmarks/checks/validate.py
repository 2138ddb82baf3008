"""`castile validate` on two ranks: how well plans are predicted that nothing was learned from.

It does not know how predictions are made.
"""

from __future__ import annotations

from benchmarks.figures import Figure
from benchmarks.place import Place

RANKS = 2


def validate_convnet(place: Place) -> list[Figure]:
    """Predictions for convnet."""
    return _validate(place, "convnet")


def validate_gpt(place: Place) -> list[Figure]:
    """Predictions for gpt."""
    return _validate(place, "gpt")


def _validate(place: Place, model: str) -> list[Figure]:
    words = ("launch", "-n", str(RANKS), "validate", model, "--json")
    facts = place.run(place.castile, *words, user="validate", timeout=900).object()
    before, after = facts["before_learning"], facts["after_learning"]
    fastest = min(row["measured_seconds"] for row in facts["plans"])
    learned = sum(row["learned_from"] for row in facts["plans"])
    return [
        Figure(f"validate_{model}_num_plans", facts["num_plans"], least=16, note=f"{learned} of them learned from"),
        Figure(f"validate_{model}_fastest_step_seconds", fastest, least=0.02, note=f"batch {facts['batch']}"),
        Figure(f"validate_{model}_measured_spread_ratio", facts["measured_spread"], least=1.5),
        Figure(f"validate_{model}_mean_error_share", after["mean_error"], most=0.15),
        Figure(f"validate_{model}_kendall_tau", after["kendall_tau"], least=0.7, note=f"{after['num_pairs']} pairs"),
        Figure(f"validate_{model}_largest_error_share", after["largest_error"]),
        Figure(f"validate_{model}_regret_share", after["regret"]),
        Figure(f"validate_{model}_untaught_mean_error_share", before["mean_error"]),
        Figure(f"validate_{model}_untaught_kendall_tau", before["kendall_tau"]),
    ]
