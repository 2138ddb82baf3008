"""How long kernels would take, told from what was compiled: `python -m tests.triton_estimate [KIND ...]`.

For each case that `make gpu` times, by its kind, and for each form on shapes of networks (`forms`): what the default
setting would take on an H200, what of that binds it, and what the fastest setting took there, where that was measured.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from math import prod
from pathlib import Path

from benchmarks.gpu import cases
from benchmarks.gpu.calls import calls
from castile.kernels.estimates.chips import CHIPS, H200
from castile.kernels.estimates.compiled import WARPS, Compiled
from castile.kernels.estimates.estimate import Estimate, least_seconds, moved_bytes, of_call, of_plan
from castile.kernels.triton.launch import Launch
from tests.triton_cases import NAMES, fake_plan, has_network_shapes, large

FORMS = "forms"
MEASURED = Path(__file__).resolve().parents[1] / "benchmarks/results/h200-figures.json"


def told(launch: Launch, made: Compiled) -> str:
    """A line on what a launch takes of its chip, and how long at least."""
    waves = prod(launch.grid) * made.warps / (CHIPS[made.chip].processors * max(made.warps, made.warps_at_once))
    return (
        f"sm_{made.chip} {made.name:24} {moved_bytes(launch) / 1e6:9.2f} MB {launch.flops / 1e9:9.2f} GF "
        f"{least_seconds(launch, CHIPS[made.chip]) * 1e6:8.1f} us at least; {made.registers:3} registers, "
        f"{made.shared / 1024:5.1f} KB, {made.warps_at_once:2} of {WARPS} warps, {waves:7.2f} waves"
    )


def measured() -> dict[str, float]:
    """Seconds of the fastest setting, by the case's name."""
    rows = json.loads(MEASURED.read_text(encoding="utf-8"))["rows"]
    return {row["name"]: row["seconds"] for row in rows if "seconds" in row}


def lines(kind: str) -> Iterator[tuple[str, list[Estimate]]]:
    """What a kind has, in words, and the estimates of its launches."""
    if kind == FORMS:
        for name in filter(has_network_shapes, NAMES):
            for args, params in large(name, "bfloat16"):
                shapes = " ".join(str(list(x.shape)) if hasattr(x, "shape") else str(x) for x in args[:4])
                made = fake_plan(name, (args, params))
                assert made is not None, f"{name} falls back to its definition"
                yield f"{name} {shapes}", of_plan(made, H200)
    else:
        for case in getattr(cases, kind)():
            yield case.name, [one for call in calls(case) for one in of_call(call.named, H200)]


def main(kinds: list[str]) -> None:
    """Print a line a case."""
    took = measured()
    for name, found in (line for kind in kinds for line in lines(kind)):
        seconds, least = sum(one.seconds for one in found), sum(one.least for one in found)
        longest = max(found, key=lambda one: one.seconds, default=None)
        binds = f"({longest.made.name}: {longest.binds})" if longest else ""
        beside = f"{took[name] * 1e6:9.1f} measured {seconds / took[name]:5.2f}" if name in took else ""
        print(f"{name[:70]:70} {least * 1e6:8.1f} us at least {seconds * 1e6:9.1f} likely {beside} {binds}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:] or [*cases.KERNELS, FORMS])
