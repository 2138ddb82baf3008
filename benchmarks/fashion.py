"""Trains resnet (small) on Fashion-MNIST on two ranks as a newcomer would, and judges it on the 10,000 held-out images.

    python benchmarks/fashion.py [--folder PATH] [--epochs N]

Without a folder of idx files the Debian package `dataset-fashion-mnist` is taken, or fetched with apt-get.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.figures import Figure, tell

INSTALLED = Path("/usr/share/datasets/fashion-mnist")
PACKAGE = "dataset-fashion-mnist"
LEAST, MOST_SECONDS, MOST_WAITING = 0.90, 900.0, 0.02


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", default="", help="a folder of idx files, gzipped or not")
    parser.add_argument("--epochs", type=int, default=0, help="passes over the images; by default the model's own")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="castile-fashion-") as scratch:
        folder = Path(options.folder) if options.folder else INSTALLED if INSTALLED.exists() else fetch(Path(scratch))
        if folder is None:
            note = f"no images: apt-get install {PACKAGE}"
            tell([Figure("fashion_accuracy", None, least=LEAST, note=note)])
        else:
            tell(train(folder, options.epochs, Path(scratch)))


def fetch(scratch: Path) -> Path | None:
    """The package's files unpacked in a folder of our own; None where it cannot be had."""
    try:
        subprocess.run(["apt-get", "download", PACKAGE], cwd=scratch, check=True, capture_output=True)
        package = next(scratch.glob(f"{PACKAGE}*.deb"))
        subprocess.run(["dpkg-deb", "-x", package.name, "."], cwd=scratch, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError, StopIteration):
        return None
    return scratch / INSTALLED.relative_to("/")


def train(folder: Path, epochs: int, scratch: Path) -> list[Figure]:
    """The command line, with a profile of its own, and what it says."""
    words = ["launch", "-n", "2", "train", "resnet", "--data", f"idx:folder={folder}", "--json"]
    words += ["--profile", str(scratch / "profile.db"), *(["--epochs", str(epochs)] if epochs else [])]
    begun = perf_counter()
    ran = subprocess.run([str(Path(sys.executable).with_name("castile")), *words], stdout=subprocess.PIPE, check=True)
    seconds, facts = perf_counter() - begun, json.loads(ran.stdout)
    waiting = facts["waited_seconds"] / (facts["num_steps"] * facts["step_seconds"])
    plan = facts["equals_seed"] or "found by search"
    return [
        Figure("fashion_accuracy", facts["held_out_accuracy"], least=LEAST, note=f"{facts['num_steps']} steps, {plan}"),
        Figure("fashion_seconds", seconds, most=MOST_SECONDS, note="planning, training and evaluation"),
        Figure("fashion_step_seconds", facts["step_seconds"]),
        Figure("fashion_waiting_for_samples_ratio", waiting, most=MOST_WAITING, note="of the steps' time"),
    ]


if __name__ == "__main__":
    main()
