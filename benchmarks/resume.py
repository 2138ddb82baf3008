"""Trains in four parts on 4, 2, 3 and 1 ranks, each with a strategy of its own, beside the unbroken run on one rank.

    python benchmarks/resume.py [--model MODEL] [--steps N]

In float64, from checkpoints: the losses of all steps must agree to rounding, which they do only where the samples of
every step are the same.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.figures import Figure, tell
from castile.launch import models
from castile.planner import strategy as strategies
from castile.planner.graph import Graph, Node
from castile.planner.strategy import Config, Strategy

# Ranks, and the axes along which nodes are cut there: the first that a node has.
PARTS = ((4, "b"), (2, "oc"), (3, "hdib"), (1, ""))
BATCH = 48
MOST = 1e-10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="convnet")
    parser.add_argument("--steps", type=int, default=80, help="in all; a multiple of four")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="castile-resume-") as scratch:
        tell(compare(options.model, options.steps, Path(scratch)))


def compare(model: str, steps: int, scratch: Path) -> list[Figure]:
    """The largest relative difference of the losses of one step."""
    graph = models.parse(model).graph(BATCH, "float64")
    train(1, model, steps, scratch / "whole", plan(graph, 1, ""))
    for number, (ranks, axes) in enumerate(PARTS):
        train(ranks, model, steps * (number + 1) // len(PARTS), scratch / "parts", plan(graph, ranks, axes))
    one, many = (losses(scratch / name) for name in ("whole", "parts"))
    assert len(one) == len(many) == steps, f"{len(one)} and {len(many)} steps were trained, not {steps}"
    worst = max(abs(b / a - 1) for a, b in zip(one, many, strict=True))
    return [
        Figure("resume_steps", steps, note="on 4, 2, 3 and 1 ranks"),
        Figure("resume_loss_difference", worst, most=MOST),
    ]


def plan(graph: Graph, ranks: int, axes: str) -> Strategy:
    """Every node cut along one of these axes, or done by all alike."""
    return Strategy({name: _config(node, ranks, axes) for name, node in graph.nodes.items()}, num_procs=ranks)


def _config(node: Node, ranks: int, axes: str) -> Config:
    a, every = node.alignment, tuple(range(ranks))
    fits = [axis for axis in axes if axis not in a.frozen and a.extents.get(axis, 0) >= ranks]
    return Config({fits[0]: ranks}, 1, every) if fits and ranks > 1 else Config({}, ranks, every)


def train(ranks: int, model: str, steps: int, folder: Path, chosen: Strategy) -> None:
    """The command line; it goes on from what is in the folder."""
    folder.mkdir(exist_ok=True)
    (folder / f"plan{ranks}.json").write_bytes(strategies.encode(chosen))
    words: Sequence[str] = (
        "launch", "-n", str(ranks), "train", model, "--dtype", "float64", "--steps", str(steps), "--resume",
        "--schedule", "constant", "--plan", str(folder / f"plan{ranks}.json"), "--seed", "3", "--batch", str(BATCH),
        "--checkpoint", str(folder), "--metrics", str(folder / "metrics.jsonl"),
        "--profile", str(folder / "profile.db"),
    )  # fmt: skip
    subprocess.run([str(Path(sys.executable).with_name("castile")), *words], check=True, stdout=subprocess.DEVNULL)


def losses(folder: Path) -> list[float]:
    """Of each step, in the order of the steps."""
    records = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [record["loss"] for record in records if record["kind"] == "step"]


if __name__ == "__main__":
    main()
