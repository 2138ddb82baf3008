"""The output of a run: lines as they come and a progress bar, or one JSON object at its end.

It does not know what is reported.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column

from castile.launch.processes.streams import UNHEARD
from castile.launch.reports import progress, report
from castile.launch.reports.progress import REFRESH_SECONDS, Advance


class Bar:
    """How far the steps have come: steps, loss, samples a second, time left; nothing where `shown` is None."""

    def __init__(self, shown: Progress | None, first: int, total: int) -> None:
        self._shown, self._drawn = shown, 0.0
        if shown is not None:
            self._task = shown.add_task("", total=total, completed=first, loss="", pace="")

    def step(self, done: int, loss: float, samples_per_second: float) -> None:
        """Show that so many steps are done."""
        now = time.perf_counter()
        if self._shown is None:
            return
        pace = report.pace(samples_per_second)
        self._shown.update(self._task, completed=done, loss=f"loss {loss:.4f}", pace=pace)
        # drawn here and not by a thread of its own, which would take the core from the kernels
        if now - self._drawn > REFRESH_SECONDS:
            self._drawn = now
            self._shown.refresh()


@dataclass
class Speaker:
    """Prints lines as they come, or one JSON object at the end with these lines as "told", without those of steps and
    progress; only rank 0 speaks.

    A full disk under a line on the way does not end a run: that is warned of once.
    """

    leads: bool
    json: bool
    _told: list[str] = field(default_factory=list, init=False)
    _has_lost: bool = field(default=False, init=False)

    @property
    def has_bar(self) -> bool:
        """Whether somebody watches a terminal."""
        return self.leads and not self.json and progress.is_watched()

    def line(self, text: str) -> None:
        if self.json:
            self._told.append(text)
        else:
            self._show(text)

    def _show(self, text: str) -> None:
        if not self.leads or self.json:
            return
        why = _lost(text, sys.stdout)
        if why and not self._has_lost:
            self._has_lost = True
            self.warn(f"standard output: {why}; the run goes on, and lines are lost until you make room")

    def note(self, text: str) -> None:
        """Print what is being done, for people who wait; stderr is for what went wrong."""
        self._show(f"{text} ...")

    def warn(self, text: str) -> None:
        """Print what went wrong while the run goes on."""
        if self.leads:
            # where nobody can be told, the run is worth more than the words
            _lost(f"castile: {text}", sys.stderr)

    def step_line(self, text: Callable[[], str]) -> None:
        """Print a line on a step, which is made only if somebody reads it."""
        if self.leads and not self.json:
            self._show(text())

    @contextmanager
    def bar(self, first: int, total: int) -> Iterator[Bar]:
        """A bar of the steps from `first` to `total` on rank 0's terminal; lines printed meanwhile stand above it."""
        if not self.has_bar:
            yield Bar(None, first, total)
            return
        texts = (TextColumn("{task.fields[loss]}"), TextColumn("{task.fields[pace]}"))
        # of a narrow terminal the bar itself has what figures leave
        whole = Column(no_wrap=True)
        figures = (MofNCompleteColumn(table_column=whole), BarColumn(), *texts, TimeRemainingColumn(table_column=whole))
        console, ours = Console(stderr=True), sys.stdout.isatty()
        # lines go through the bar's console only where they go to its terminal anyway
        with Progress(*figures, console=console, auto_refresh=False, transient=True, redirect_stdout=ours) as shown:
            yield Bar(shown, first, total)

    @contextmanager
    def under_way(self, what: str) -> Iterator[Advance]:
        """A context for work that takes a while: a bar on a terminal, elsewhere a line at its beginning."""
        if not self.has_bar:
            self.note(what)
        with progress.bar(self.has_bar, what) as advance:
            yield advance

    def close(self, text: Callable[[dict[str, Any]], str], facts: dict[str, Any]) -> None:
        if self.leads:
            print(json.dumps({**facts, "told": self._told}) if self.json else text(facts), flush=True)


def _lost(text: str, file: TextIO) -> str:
    """Write a line; returns why nobody got it, "" if somebody did."""
    try:
        print(text, file=file, flush=True)
    except OSError as error:
        if error.errno not in UNHEARD:
            raise
        return error.strerror or "no room"
    return ""
