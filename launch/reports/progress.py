"""Progress bars on rank 0's terminal, if it is one: of how much is done, or of a search and its best plan.

It does not know what is being done.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator

from castile.launch.reports import report
from castile.planner.search import Evaluated, Progress

# What is drawn more often takes the core from what is being done.
REFRESH_SECONDS = 0.2

Advance = Callable[[str, int, int], None]


def is_watched() -> bool:
    """Whether standard error is a terminal that can draw a bar; a dumb one shows lines, as a file does."""
    return sys.stderr.isatty() and os.environ.get("TERM", "").lower() not in ("dumb", "unknown")


@contextlib.contextmanager
def bar(leads: bool, what: str) -> Iterator[Advance]:
    """Show a bar while the block runs; yields the function that moves it.

    That takes what is being done now, in words, how much is done, and how much there is in all.
    """
    if not leads or not is_watched():
        yield lambda text, done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, Task, TextColumn, TimeRemainingColumn
    from rich.table import Column
    from rich.text import Text

    class Count(MofNCompleteColumn):
        """Nothing where it is not known yet how much there is: the bar alone says that work is under way."""

        def render(self, task: Task) -> Text:
            return Text() if task.total is None else super().render(task)

    # of a narrow terminal the bar itself has what figures leave
    whole = Column(no_wrap=True)
    figures = (Count(table_column=whole), TimeRemainingColumn(table_column=whole))
    columns = (TextColumn("{task.description}"), BarColumn(), *figures)
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task(what, total=None)
        drawn = 0.0

        def advance(text: str, done: int, total: int) -> None:
            nonlocal drawn
            shown.update(task, description=f"{what} {text}".rstrip(), completed=done, total=total)
            if (now := time.perf_counter()) - drawn > REFRESH_SECONDS:
                drawn = now
                shown.refresh()

        yield advance


@contextlib.contextmanager
def searching(which: str = "") -> Iterator[Progress | None]:
    """Show a bar while the block searches; yields the function to call with the share of the budget that is spent and
    the best plan so far.

    which   of several searches, in words: 2 of 3
    """
    if not is_watched():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    what, best = TextColumn(f"searching {which}".rstrip()), TextColumn("{task.description}")
    columns = (what, BarColumn(), best, TimeElapsedColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as shown:
        # before the first proposal there is a while of known plans and sketches, of which no share can be told
        task = shown.add_task("", total=None)

        def show(spent: float, best: Evaluated, _: int) -> None:
            shown.update(task, completed=spent, total=1.0, description=report.duration(best.seconds))

        yield show
