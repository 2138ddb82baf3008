"""Castile on this GPU: checks, then kernels and steps beside the libraries', and the figures that are promised of them.

    python -m benchmarks.gpu [KIND ...] [--seconds SECONDS] [--out FILE]

What does not compute as it should is not timed. What is promised comes first, by the settings that castile takes by
itself; what tuning finds, and what is told beside, come last. It ends when its time is up and tells what it left.

FILE (by default benchmarks/results/DEVICE-figures.json) holds every number, the device and the versions. Beside it, in
a file that ends in .jsonl, is what was found, line by line: the next run goes on there, and does again only what has
other sources since. What tuning of steps finds is kept in files that end in .db.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import metadata
from math import inf
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure, tell
from benchmarks.gpu import cases, checks
from benchmarks.gpu.errands import Errands, best_peer, share
from benchmarks.gpu.record import Record
from benchmarks.gpu.sides import Row
from castile.launch.here import gpus

RESULTS = Path(__file__).resolve().parents[1] / "results"
PACKAGES = ("castile", "triton", "cupy-cuda13x", "numpy", "nvidia-nccl-cu13", "cuda-bindings", "torch")
CHECKS = "checks"
# Of a lease of ten minutes something is left for what is installed and copied.
SECONDS = 540.0
# Kinds of which a figure is promised of some cases only.
_SOME = ("products", "losses")
# So often all numbers are written in one piece; the record has each at once.
WRITTEN_SECONDS = 10.0


def main() -> int:
    """Check, measure, tell, keep; the status is 1 where a check failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", default=[CHECKS, *cases.KINDS], help=", ".join((CHECKS, *cases.KINDS)))
    parser.add_argument("--seconds", type=float, default=SECONDS, help="how long it may take (default: %(default)s)")
    parser.add_argument("--out", default="", help="where the numbers go")
    parser.add_argument("--json", action="store_true", help="print them as one JSON object instead of tables")
    arguments = parser.parse_args()
    until = time.time() + arguments.seconds
    about = {"device": device(), "versions": versions()}
    out = Path(arguments.out or RESULTS / f"{short(about['device']['name'])}-figures.json")
    record = Record(out.with_suffix(".jsonl"), about)
    kinds = [kind for kind in cases.KINDS if kind in arguments.kinds]
    with Errands(record, (), kinds).made_ready(until):
        if CHECKS in arguments.kinds:
            checks.run(record, until)
    verdict = checks.verdict(record)
    print(verdict, file=sys.stderr, flush=True)
    errands = Errands(record, verdict.kernels, kinds)

    def facts() -> dict[str, Any]:
        rows = errands.rows()
        return about | {"figures": [vars(f) for f in figures(rows)], "left": errands.left(), "rows": rows}

    def write() -> float:
        out.write_text(json.dumps(facts(), indent=1) + "\n")
        return time.time()

    written = write()
    try:
        for name in errands.measured(until):
            print(line(errands.row(name)), file=sys.stderr, flush=True)
            if time.time() > written + WRITTEN_SECONDS:
                written = write()
    finally:
        write()
    if arguments.json:
        print(json.dumps(facts()))
    else:
        print("\n".join(map(line, errands.rows())))
        print(f"{verdict}\n{errands.left()}")
        tell(figures(errands.rows()))
    return 1 if verdict.failed else 0


def line(row: Row) -> str:
    """A case, our time, each of the others', and the share of the best of them that ours reaches."""
    if "seconds" not in row:
        return f"{row['name']:62} {row.get('failed', 'not measured')}"
    told = [f"{row['seconds'] * 1e6:9.1f} us"]
    told += [f"{key.removesuffix('_seconds')} {row[key] * 1e6:.1f}" for key in row if key.endswith("_seconds")]
    reached = share(row)
    told_share = f"{reached:6.2f}" if reached else ""
    error = f"error {row['error']:.1e}" if "error" in row else ""
    return f"{row['name']:62} {told_share:6} {'  '.join(told)}  {error} {row.get('failed', '')}".rstrip()


def figures(rows: list[Row]) -> list[Figure]:
    """The figures of the kinds that were measured."""
    by_kind: dict[str, list[Row]] = {}
    for row in rows:
        by_kind.setdefault(row["kind"], []).append(row)
    promised = {case.name for case in (*cases.products(), *cases.losses()) if cases.is_promised(case)}
    squares, losses = ([row for row in by_kind.get(kind, []) if row["name"] in promised] for kind in _SOME)
    forward = [row for row in by_kind.get("attentions", []) if "forward" in row["name"]]
    backward = [row for row in by_kind.get("attentions", []) if "backward" in row["name"]]
    told = [
        _least("product_over_cublas_ratio", squares, 0.9, best_peer),
        _least("attention_forward_over_best_sdpa_ratio", forward, 0.75, best_peer),
        _least("attention_backward_over_best_sdpa_ratio", backward, 0.65, best_peer),
        _least("memory_bound_over_copy_ratio", by_kind.get("streams", []), 0.9, best_peer),
        _least("cross_entropy_over_compiled_ratio", losses, 1.0, _key("compiled_seconds")),
        _least("adamw_over_compiled_ratio", by_kind.get("updates", []), 1.0, _key("compiled_seconds")),
        *_convolutions(by_kind.get("convolutions", [])),
        *_steps(by_kind.get("steps", [])),
        _most("virtual_step_prediction_error", by_kind.get("virtual_steps", []), 0.1, _key("prediction_error", "own")),
    ]
    return [figure for figure in told if figure is not None]


def _key(name: str, within: str = "") -> Callable[[Row], float | None]:
    return lambda row: (row.get(within, {}) if within else row).get(name)


def _least(name: str, rows: list[Row], target: float, peer: Callable[[Row], float | None]) -> Figure | None:
    """The worst share of a peer that any of the rows reaches; nothing where one of them or its peer failed."""
    if not rows:
        return None
    lacking = {
        "failed": [row["name"] for row in rows if "seconds" not in row and "failed" in row],
        "not measured": [row["name"] for row in rows if "seconds" not in row],
        "nothing beside": [row["name"] for row in rows if peer(row) is None],
    }
    for why, some in lacking.items():
        if some:
            return Figure(name, None, least=target, note=f"{why}: {', '.join(some)[:200]}")
    shares = {row["name"]: (peer(row) or 0.0) / row["seconds"] for row in rows}
    worst = min(shares, key=lambda one: shares[one])
    return Figure(name, shares[worst], least=target, note=f"worst of {len(shares)}: {worst}")


def _steps(rows: list[Row]) -> list[Figure]:
    """Of whole steps: their time and memory beside PyTorch's, what the host does for one, and what was predicted; of
    each that which is the fastest of its settings.
    """
    every = {case.name: case for case in cases.steps()}
    by_peer: dict[str | None, list[Row]] = {}
    for row in rows:
        by_peer.setdefault(cases.peer(every[row["name"]]), []).append(row)
    rows = [min(some, key=lambda row: row.get("seconds", inf)) for some in by_peer.values()]
    found = [
        _least("step_over_compiled_ratio", rows, 1.0, _key("compiled_seconds")),
        _least("step_over_eager_ratio", rows, 1.0, _key("eager_seconds")),
        _most("step_host_seconds", rows, 1e-4, _key("host_seconds", "own")),
        _most("step_bytes_over_compiled_ratio", rows, None, _quotient("nbytes", "compiled_nbytes")),
        _most("step_prediction_error", rows, 0.05, _key("prediction_error", "own")),
    ]
    return [figure for figure in found if figure is not None]


def _most(name: str, rows: list[Row], most: float | None, of: Callable[[Row], float | None]) -> Figure | None:
    """The largest value of any of the rows; none where one of them has none."""
    if not rows:
        return None
    values = {row["name"]: of(row) for row in rows}
    lacking = [one for one, value in values.items() if value is None]
    if lacking:
        return Figure(name, None, most=most, note=f"not known: {', '.join(lacking)[:200]}")
    worst = max(values, key=lambda one: values[one] or 0.0)
    return Figure(name, values[worst], most=most, note=f"worst of {len(values)}: {worst}")


def _quotient(ours: str, theirs: str) -> Callable[[Row], float | None]:
    return lambda row: row["own"][ours] / row[theirs] if "own" in row and theirs in row else None


def _convolutions(rows: list[Row]) -> list[Figure]:
    """Of all convolutions of a ResNet-50 step together, and the worst one, in each layout of ours."""
    last = {case.name for case in cases.convolutions() if case.innermost}
    apart, inner = ([row for row in rows if (row["name"] in last) == innermost] for innermost in (False, True))
    return [*_in_layout(apart, "", "nchw", ("nchw", "nhwc")), *_in_layout(inner, "channels_last_", "nhwc", ("nhwc",))]


def _in_layout(rows: list[Row], word: str, own: str, layouts: tuple[str, ...]) -> list[Figure]:
    """Figures of convolutions in one layout beside cuDNN in some, its `own` among them; `word` begins each name."""
    if any(key not in row for row in rows for key in ("seconds", *(f"{one}_seconds" for one in layouts))) or not rows:
        return [figure for figure in [_least(f"{word}convolution_over_cudnn_ratio", rows, 0.7, best_peer)] if figure]
    counts = {case.name: case.count for case in cases.convolutions()}
    total = sum(row["seconds"] * counts[row["name"]] for row in rows)
    found = []
    for layout in layouts:
        peer = sum(row[f"{layout}_seconds"] * counts[row["name"]] for row in rows)
        found.append(Figure(f"{word}convolutions_of_a_step_over_cudnn_{layout}_ratio", peer / total, least=0.7))
    worst = _least(f"{word}convolution_over_cudnn_{own}_ratio", rows, 0.7, _key(f"{own}_seconds"))
    return [*found, *([worst] if worst else [])]


def device() -> dict[str, Any]:
    """What the GPU in use calls itself, its driver, and its memory's bytes: of several the first that CUDA may show."""
    words = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader,nounits"]
    shown = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip()
    # parts of GPUs have names that it does not take
    words += [] if not shown or shown.startswith("MIG-") else ["-i", shown]
    if not gpus.count():
        raise SystemExit(f"no GPU can be used here: {gpus.unused() or 'none is seen'}")
    try:
        told = subprocess.run(words, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise SystemExit("there is no GPU here: nvidia-smi is not found") from None
    if told.returncode:
        raise SystemExit(f"there is no GPU to be used here: {(told.stderr + told.stdout).strip()}")
    name, driver, memory = told.stdout.splitlines()[0].split(", ")
    return {"name": name, "driver": driver, "memory_bytes": int(memory) * 2**20}


def short(name: str) -> str:
    """A GPU's name as that of a file: the word that tells it from others, as in "NVIDIA H100 80GB HBM3"."""
    found = re.search(r"\b[A-Z]+\d+\w*", name)
    return (found[0] if found else "-".join(name.split())).lower()


def versions() -> dict[str, str]:
    """Of the libraries that decide the numbers."""
    known = {name.metadata["Name"] for name in metadata.distributions()}
    return {name: metadata.version(name) for name in PACKAGES if name in known}


if __name__ == "__main__":
    sys.exit(main())
