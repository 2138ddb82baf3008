"""Errands: what each side is sent to find out of the cases, the most important first, and what is known of each since.

It does not know what is promised of the numbers.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from math import inf
from threading import Thread
from time import time
from typing import NamedTuple

from benchmarks.gpu import cases, sides, sources
from benchmarks.gpu.calls import calls
from benchmarks.gpu.record import Finding, Record
from benchmarks.gpu.sides import Row

# Beyond this share of the time nothing more is made ready: what is measured compiles what it lacks.
READY_SHARE = 0.3
_TO_HAVE_PEERS = f"{sys.executable} -m pip install torch"


class Part(NamedTuple):
    """What one process of a side does in one go."""

    side: str
    errand: str
    names: Sequence[str]


def best_peer(row: Row) -> float | None:
    """Seconds of the fastest of the others."""
    others = [value for key, value in row.items() if key.endswith("_seconds") and key != "forward_seconds"]
    return min(others, default=None)


def share(row: Row) -> float | None:
    """What ours reaches of the speed of the fastest of the others."""
    peer = best_peer(row)
    return peer / row["seconds"] if peer and "seconds" in row else None


class Errands:
    """What is known of the cases of some kinds, and how what is not known yet is found out.

    wrong: kernels of which a check failed. Cases with any of them are left out.
    """

    def __init__(self, record: Record, wrong: Collection[str], kinds: Sequence[str]) -> None:
        self._record = record
        self._kinds = {case.name: kind for kind in kinds for case in cases.listed(kind)}
        self._every = cases.named()
        self._cases = {name: case for name, case in self._every.items() if name in self._kinds}
        self._wrong = {name for name, case in self._cases.items()
                       if any(call.kernel in wrong for call in calls(case))}  # fmt: skip
        self._found, self._digests = record.read(), dict[tuple[str, str], str]()

    def measured(self, until: float) -> Iterator[str]:
        """Find out what is missing, the most important first, until time is up: the name of each case as it comes."""
        for part in self._missing():
            if part.errand == "tuned":
                # Of what is furthest behind others first, as there may not be time for all.
                part = part._replace(names=sorted(part.names, key=lambda name: share(self.row(name)) or inf))
            for row in self._told(part, until):
                name = row.pop("name")
                finding = Finding(part.errand, name, self._digest(part.errand, name), row)
                self._record.add(finding)
                self._found[finding[:3]] = row
                yield from (one for one, case in self._cases.items() if name in (one, cases.peer(case)))

    def row(self, name: str) -> Row:
        """What is known of a case: ours as it is tuned, if it is, and what is beside it."""
        case, peer = self._cases[name], cases.peer(self._cases[name])
        row = {"kind": self._kinds[name], "name": name}
        if name in self._wrong:
            return row | {"failed": "a check of its kernel failed"}
        default, tuned = (self._of(errand, name) or {} for errand in ("default", "tuned"))
        if "seconds" in default and not isinstance(case, cases.Step):
            row["seconds_by_default"] = default["seconds"]
        for found in (default, tuned, (peer and self._of("peers", peer)) or {}):
            row |= found
        return row

    def rows(self) -> list[Row]:
        """What is known of all cases."""
        return [self.row(name) for name in self._cases]

    def left(self) -> str:
        """What there was no time for, in a line."""
        missing = [f"{len(part.names)} of {part.side}, {part.errand}" for part in self._missing()]
        again = "run it again, and it goes on there"
        alone = "" if sides.is_there("theirs") else f"; nothing is beside it, as PyTorch is not there: {_TO_HAVE_PEERS}"
        return (f"left for want of time: {'; '.join(missing)}: {again}" if missing else "nothing was left out") + alone

    @contextmanager
    def made_ready(self, until: float) -> Iterator[None]:
        """Meanwhile what will be measured of theirs is compiled, which takes as long as checks do; then ours is."""
        missing = self._missing()
        theirs = [name for part in missing if part.side == "theirs" for name in part.names
                  if cases.is_compiled(self._every[name])]  # fmt: skip
        ours = dict.fromkeys(name for part in missing if part.side == "ours" for name in part.names
                             if not isinstance(self._cases[name], cases.Step))  # fmt: skip
        thread = Thread(target=self._compiled, args=(Part("theirs", "ready", theirs), until))
        thread.start()
        try:
            yield
            self._compiled(Part("ours", "compile", [*ours]), until)
        finally:
            thread.join()

    def _compiled(self, part: Part, until: float) -> None:
        if part.names:
            list(self._told(part, time() + READY_SHARE * (until - time())))

    def _missing(self) -> list[Part]:
        """What is not known yet, in the order in which it is found out: a process for each part.

        What is beside cases of which nothing is promised is beside others of which something is.
        """
        kernels = [name for name in self._cases if self._kinds[name] in cases.KERNELS and name not in self._wrong]
        first = [name for name in kernels if cases.is_promised(self._cases[name])]
        rest = [name for name in kernels if name not in first]
        steps = [name for name in self._cases if self._kinds[name] == "steps"]
        by_default = [name for name in steps if cases.peer(self._cases[name]) == name]
        # A device that was divided stays so.
        virtual = [name for name in self._cases if self._kinds[name] == "virtual_steps"]
        parts = [
            Part("ours", "default", first), Part("theirs", "peers", self._peers(first)),
            Part("ours", "default", by_default), Part("theirs", "peers", self._peers(steps)),
            Part("ours", "tuned", virtual), Part("ours", "tuned", first),
            Part("ours", "tuned", [name for name in steps if name not in by_default]),
            Part("ours", "default", rest), Part("ours", "tuned", rest),
        ]  # fmt: skip
        found = [Part(side, errand, [name for name in names if self._of(errand, name) is None])
                 for side, errand, names in parts]  # fmt: skip
        return [part for part in found if part.names and sides.is_there(part.side)]

    def _peers(self, names: Sequence[str]) -> list[str]:
        return list(dict.fromkeys(peer for name in names if (peer := cases.peer(self._cases[name]))))

    def _of(self, errand: str, name: str) -> Row | None:
        found = self._found.get((errand, name, self._digest(errand, name)))
        return None if found is None else dict(found)

    def _digest(self, errand: str, name: str) -> str:
        if (errand, name) not in self._digests:
            self._digests[errand, name] = sources.of_case(self._every[name], errand)
        return self._digests[errand, name]

    def _told(self, part: Part, until: float) -> Iterator[Row]:
        kept = str(self._record.path.with_suffix(""))
        return sides.rows(part.side, part.errand, kept, part.names, until)
