"""The record: what runs have found on this device, a line each in a file, so that the next run goes on where one ended.

It does not know what a finding means.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

Row = dict[str, Any]


class Finding(NamedTuple):
    """What was found of something that has a name, on an errand, when its sources had that digest."""

    errand: str
    name: str
    digest: str
    found: Row


class Record:
    """The findings in a file; of two with one errand, name and digest the later counts.

    about: the device and the libraries; a file that is of others is begun anew.
    """

    def __init__(self, path: Path, about: Row) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        if not _lines(path) or _lines(path)[0] != about:
            path.write_text(json.dumps(about) + "\n")

    @property
    def num_lines(self) -> int:
        """How long it is."""
        return len(_lines(self.path))

    def read(self) -> dict[tuple[str, str, str], Row]:
        """All that was found, by errand, name and digest; also what others have added."""
        return known(self.path)

    def add(self, finding: Finding) -> None:
        """See `add`."""
        add(self.path, finding)


def known(path: Path, num_lines: int | None = None) -> dict[tuple[str, str, str], Row]:
    """What the file of a record holds in its first lines, by errand, name and digest."""
    findings = [Finding(**line) for line in _lines(path)[:num_lines][1:]]
    return {(one.errand, one.name, one.digest): one.found for one in findings}


def add(path: Path, finding: Finding) -> None:
    """Keeps it at once, in the file of a record: whatever ends the run, it is there."""
    with path.open("a") as file:
        file.write(json.dumps(finding._asdict()) + "\n")


def _lines(path: Path) -> list[Row]:
    """The lines that are whole: whatever ended a run may have ended it within one."""
    found = []
    for text in path.read_text().splitlines() if path.exists() else ():
        try:
            found.append(json.loads(text))
        except ValueError:
            continue
    return found
