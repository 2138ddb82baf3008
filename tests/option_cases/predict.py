"""Cases of the options of `castile predict`."""

from __future__ import annotations

import numpy as np

from tests.option_cases import TRAINED, Case, Ran, becomes, fact, json_of

LINE = f"predict {TRAINED} --checkpoint run"
HERE = f"{LINE} --json"
WRITTEN = f"{HERE} --out p.npz"


def predicted(ran: Ran) -> str:
    """What it wrote, "" where it refused."""
    if ran.status:
        return ""
    with np.load(ran.folder / "p.npz") as found:
        return str({name: (found[name].dtype, found[name].tolist()) for name in found})


CASES = {
    "model": Case(WRITTEN, WRITTEN.replace(TRAINED, "mlp:width=24"), predicted, becomes("")),
    "checkpoint": Case(WRITTEN, WRITTEN.replace("run", "run/step-00000001"), predicted),
    "weights": Case(f"predict {TRAINED}", f"predict {TRAINED} --weights weights.safetensors", lambda ran: ran.status,
                    becomes(0)),
    "data": Case(WRITTEN, f"{WRITTEN} --data noise:size=8,channels=1,classes=10,samples=99", predicted),
    "samples": Case(HERE, f"{HERE} --samples all", fact("samples"), becomes(1797)),
    "seed": Case(WRITTEN, f"{WRITTEN} --seed 3", predicted),
    "batch": Case(HERE, f"{HERE} --batch 24", fact("batch"), becomes(24)),
    "dtype": Case(WRITTEN, f"{WRITTEN} --dtype float64", predicted, lambda a, b: "float64" in b and "float64" not in a),
    "machine": Case(HERE, f"{HERE} --machine one.toml",
                    lambda ran: ran.facts["simulated_seconds"] > 1e-3, becomes(True)),
    "plan": Case(HERE, f"{HERE} --plan trained.json", fact("plan"), becomes("of trained.json")),
    "search": Case(HERE, f"{HERE} --search data_parallel", fact("plan"), becomes("found by data_parallel")),
    "budget": Case(f"{HERE} --search random", f"{HERE} --search random --budget 7", fact("num_proposals")),
    "out": Case(HERE, WRITTEN, lambda ran: "p.npz" in ran.files, becomes(True)),
    "losses": Case(HERE, f"{HERE} --losses l.npz", lambda ran: "l.npz" in ran.files, becomes(True)),
    "profile": Case(HERE, f"{HERE} --profile new.db", lambda ran: "new.db" in ran.files, becomes(True)),
    "json": json_of(LINE),
}  # fmt: skip
