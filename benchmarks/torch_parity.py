"""Trains on two ranks by the command line and the same model in PyTorch, and compares the losses that they come to.

    python benchmarks/torch_parity.py [gpt] [lstm] [--steps N] [--ranks N]

Both begin with the same parameters, see the same samples of the text in the same order, in float32, and update by
momentum. The figure is how far apart the mean losses of the last twenty steps are.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from benchmarks.alone import SEED, workload
from benchmarks.figures import Figure, tell

LAST = 20
MOST = 0.02
CASES = {
    "gpt": ("gpt:layers=4,width=128,heads=4,seq=128", 8),
    "lstm": ("lstm:layers=2,width=128,seq=64", 16),
}
NO_TORCH = "PyTorch is not installed: pip install torch==2.13.0"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(CASES), help=f"of {', '.join(CASES)}; all by default")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--ranks", type=int, default=2)
    options = parser.parse_args()
    figures = []
    for name in options.names:
        if find_spec("torch") is None:
            figures.append(Figure(f"{name}_loss_against_torch_ratio", None, most=MOST, note=NO_TORCH))
        else:
            figures += compare(name, *CASES[name], options.steps, options.ranks)
    tell(figures)


def compare(name: str, model: str, batch: int, steps: int, ranks: int) -> list[Figure]:
    """Train both, and tell both losses and their relative distance."""
    work = workload(model, batch)
    rate, momentum = work.recipe.lr, work.recipe.momentum
    ours = castile(model, batch, steps, ranks, rate, momentum)
    theirs = torch_losses(work, steps, rate, momentum)
    print(f"{model}, batch {batch}: the losses of step 1 differ by {abs(ours[0] / theirs[0] - 1):.1e}")
    mine, other = float(np.mean(ours[-LAST:])), float(np.mean(theirs[-LAST:]))
    return [
        Figure(f"{name}_loss_after_{steps}_steps", mine, note=f"from {ours[0]:.3f}, on {ranks} ranks"),
        Figure(f"{name}_torch_loss_after_{steps}_steps", other),
        Figure(f"{name}_loss_against_torch_ratio", abs(mine / other - 1), most=MOST),
    ]


def castile(model: str, batch: int, steps: int, ranks: int, rate: float, momentum: float) -> list[float]:
    """The loss of each step of `castile train` on ranks of its own."""
    with tempfile.TemporaryDirectory(prefix="castile-parity-") as scratch:
        metrics = Path(scratch) / "metrics.jsonl"
        words = [
            "launch", "-n", str(ranks), "train", model, "--batch", str(batch), "--steps", str(steps),
            "--seed", str(SEED),
            "--optimizer", f"sgd:momentum={momentum}", "--lr", str(rate), "--clip", "0", "--budget", "100",
            "--profile", f"{scratch}/profile.db", "--metrics", str(metrics),
        ]  # fmt: skip
        subprocess.run([str(Path(sys.executable).with_name("castile")), *words], check=True, stdout=subprocess.DEVNULL)
        records = map(json.loads, metrics.read_text().splitlines())
        return [record["loss"] for record in records if record["kind"] == "step"]


def torch_losses(work, steps: int, rate: float, momentum: float) -> list[float]:  # type: ignore[no-untyped-def]
    """The loss of each step in PyTorch."""
    import torch

    from benchmarks.torch_model import TorchStep

    # Losses are compared, not times: threads that wait for each other hardly get on where the host is busy.
    torch.set_num_threads(1)
    theirs = TorchStep(work.graph, SEED, rate, momentum)
    losses = []
    for step in range(steps):
        theirs.feed(work.dataset.batch(step, work.graph.batch))
        theirs.run()
        losses.append(float(theirs.loss.detach()))
    return losses


if __name__ == "__main__":
    main()
