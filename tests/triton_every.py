"""Every setting of every kernel compiled for chips that are not there, and a table of what came of it.

    python -m tests.triton_every KEPT TABLE [--workers N]

What was compiled is kept in the file KEPT under what decides the code, so that a run that is cut off goes on where it
was, and code that several shapes share is compiled once. The table is printed, and written to TABLE. What spills may
still be worth trying, but not as a default; what a chip has too little memory or registers for would be refused by
every launch. It does not know how fast any is.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from itertools import groupby, product
from math import prod
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import triton

from castile.kernels.choice import setting_text
from castile.kernels.estimates.chips import CHIPS
from castile.kernels.estimates.compiled import Compiled, code, compiled
from castile.kernels.triton.launch import Launch
from tests.triton_cases import NAMES, STEPPED, asked
from tests.triton_chips import adds_a_constant_to_pairs, spills

DTYPES = ("bfloat16", "float32", "float16")
_TELL_SECONDS = 20.0
Found = dict[str, dict[str, Any]]


@dataclass(frozen=True, eq=False)
class Part:
    """One launch of one setting of a kernel on the shapes of a network, asked for in some way."""

    kernel: str
    way: str
    dtype: str
    chip: int
    setting: str
    default: bool
    since: int
    launch: Launch

    @property
    def named(self) -> str:
        return f"{self.kernel} {self.way or 'as it comes'} {self.dtype} sm_{self.chip} {self.setting}"


def parts(chips: Iterable[int] = CHIPS, dtypes: Iterable[str] = DTYPES, names: Iterable[str] = NAMES) -> list[Part]:
    """All there are, defaults before what else may be tried."""
    every = []
    for chip, dtype, name in product(chips, dtypes, names):
        for way, made in asked(name, dtype):
            for number, setting in enumerate(made.settings):
                launches = made.launches(setting)
                since = max((launch.min_capability for launch in launches), default=0)
                text = setting_text(setting)
                every += [Part(name, way, dtype, chip, text, number == 0, since, launch) for launch in launches]
    return sorted(every, key=lambda part: not part.default)


def worth(every: Iterable[Part]) -> list[Part]:
    """The parts that are compiled: those that differ from a default, in bfloat16 or float32 and on whole arrays, in one
    of these at most; and of another setting of a kernel, by chip, launch and dtype, only the one that asks most.
    """
    most: dict[Any, Part] = {}
    for part in every:
        if sum((not part.default, part.dtype == "float16", part.way in STEPPED)) < 2:
            key = part if part.default else (part.kernel, part.chip, part.setting, part.launch.kernel, part.dtype)
            most[key] = max(most.get(key, part), part, key=_asks)
    return list(most.values())


def _asks(part: Part) -> tuple[int, int]:
    """How much a part asks of a chip as far as is told before: by its launch, then by its way."""
    return asks(part.launch), len(part.way.split())


def asks(launch: Launch) -> int:
    """How much a launch asks of a chip, as far as the numbers say that it is compiled for."""
    return prod(1 + abs(one) for one in numbers(tuple(launch.constants.values())))


def numbers(x: Any) -> Iterator[int]:
    """The whole numbers among constants."""
    if isinstance(x, tuple):
        for one in x:
            yield from numbers(one)
    elif isinstance(x, int):
        yield x


def by_code(every: Iterable[Part]) -> dict[str, list[Part]]:
    """The parts that a chip is new enough for, by what decides their code."""
    found: dict[str, list[Part]] = defaultdict(list)
    for part in every:
        if part.since <= part.chip:
            found[code(part.launch, part.chip)].append(part)
    return found


def kept(path: Path) -> Found:
    """What a file holds, which is made if it is not there. A last line that was cut off is taken away, and lines of
    before sums of pairs were looked for are passed over.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    held = path.read_bytes()
    os.truncate(path, held.rfind(b"\n") + 1)
    rows = map(json.loads, held[: held.rfind(b"\n") + 1].splitlines())
    return {row["code"]: row for row in rows if "problem" in row or "adds_a_constant_to_pairs" in row}


def resources(launch: Launch, chip: int) -> dict[str, Any]:
    """What a compiled launch takes of its chip, or why it does not compile."""
    # Else a process would hold all that it has compiled, and a disk some gigabytes of it.
    with TemporaryDirectory() as folder, triton.knobs.cache.scope():
        triton.knobs.cache.dir = folder
        try:
            row = asdict(compiled(launch, chip))
            row["adds_a_constant_to_pairs"] = adds_a_constant_to_pairs(row.pop("ptx"))
        except Exception as problem:
            row = {"problem": f"{type(problem).__name__}: {problem}"[:300]}
        launch.kernel.device_caches.clear()
    return row


# What workers compile, by number: they are forked, for a kernel made from a line of text cannot be sent to them.
_work: list[Part] = []


def _worked(number: int) -> dict[str, Any]:
    return resources(_work[number].launch, _work[number].chip)


def compile_all(wanted: Mapping[str, list[Part]], path: Path, workers: int) -> Found:
    """What all of `wanted` take, that from the file first; what is not there yet is added to it."""
    found = kept(path)
    left = [(key, same[0]) for key, same in wanted.items() if key not in found]
    _work[:] = [part for _, part in left]
    start = told = perf_counter()
    with path.open("a", encoding="utf-8") as out, ProcessPoolExecutor(workers, get_context("fork")) as pool:
        running = {pool.submit(_worked, number): key for number, (key, _) in enumerate(left)}
        for done, ended in enumerate(as_completed(running), start=1):
            found[running[ended]] = row = {"code": running[ended]} | ended.result()
            out.write(json.dumps(row) + "\n")
            out.flush()
            now = perf_counter()
            if now - told > _TELL_SECONDS or done == len(left):
                told, rest = now, (now - start) / done * (len(left) - done)
                print(f"{done} of {len(left)} compiled, {rest / 60:.0f} min left", flush=True)
    return {key: found[key] for key in wanted}


def faults(wanted: Mapping[str, list[Part]], found: Found) -> list[str]:
    """A line for all that no launch could use, for what ptxas gets wrong, and for defaults that spill."""
    told = []
    for key, same in wanted.items():
        part = next((one for one in same if one.default), same[0])
        if "problem" in found[key]:
            told.append(f"{part.named}: {found[key]['problem']}")
            continue
        made, limit = _compiled(found[key]), CHIPS[part.chip].shared_bytes
        if made.shared > limit:
            told.append(f"{part.named}: {made.name} wants {made.shared} bytes of shared memory of {limit}")
        elif made.warps_at_once < made.warps:
            told.append(f"{part.named}: {made.name} wants {made.registers} registers for each of {made.warps} warps")
        elif found[key]["adds_a_constant_to_pairs"]:
            told.append(f"{part.named}: {made.name} adds a constant to several pairs of 16 bits, and ptxas may not")
        elif part.default and spills(made):
            told.append(f"{part.named}: {made.name} spills registers: {made.stack} bytes of stack")
    return told


def _compiled(row: Mapping[str, Any]) -> Compiled:
    return Compiled(ptx="", **{key: value for key, value in row.items() if key in Compiled.__dataclass_fields__})


def table(every: Iterable[Part], wanted: Mapping[str, list[Part]], found: Found) -> str:
    """By chip: how many there are, and the worst of what they take, defaults apart."""
    lines = [f"Triton {triton.__version__}"]
    for chip, group in groupby(sorted(every, key=lambda part: part.chip), key=lambda part: part.chip):
        here = list(group)
        kernels, settings = {part.kernel for part in here}, {part.named for part in here}
        newer = {part.named for part in here if part.since > chip}
        some = {key: same for key, same in wanted.items() if same[0].chip == chip and "problem" not in found[key]}
        made = {key: _compiled(found[key]) for key in some}
        of_defaults = [made[key] for key, same in some.items() if any(part.default for part in same)]
        lines.append(
            f"  sm_{chip}: {len(kernels)} kernels, {len(settings)} settings, {len(newer)} of them for newer chips; "
            f"{len(made)} programs"
        )
        lines += [f"    {_worst('defaults', of_defaults, chip)}", f"    {_worst('all', list(made.values()), chip)}"]
    return "\n".join(lines)


def _worst(word: str, made: list[Compiled], chip: int) -> str:
    registers, shared = (max((getattr(one, field) for one in made), default=0) for field in ("registers", "shared"))
    spilling = sorted((one.stack, one.name) for one in made if one.stack)
    most = f", most {' bytes of stack by '.join(map(str, spilling[-1]))}" if spilling else ""
    return (
        f"{word:9} registers {registers:3}, shared memory {shared / 1024:5.1f} of "
        f"{CHIPS[chip].shared_bytes / 1024:.1f} KB, {len(spilling)} of {len(made)} programs spill{most}"
    )


def main() -> int:
    """Compile what is not kept, tell, and fail where something cannot be used."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kept", type=Path, help="file of what was compiled")
    parser.add_argument("table", type=Path, help="file that gets the table")
    parser.add_argument("--workers", type=int, default=2, help="processes that compile")
    arguments = parser.parse_args()
    every = worth(parts())
    wanted = by_code(every)
    found = compile_all(wanted, arguments.kept, arguments.workers)
    wrong = faults(wanted, found)
    arguments.table.write_text(table(every, wanted, found) + "\n", encoding="utf-8")
    print("\n".join(wrong), arguments.table.read_text(encoding="utf-8"), sep="\n", end="")
    return len(wrong) > 0


if __name__ == "__main__":
    sys.exit(main())
