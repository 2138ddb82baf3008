"""Progress: a bar with an estimate of the time left on rank 0's terminal, where there is one.

It does not know what is being done.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

Advance = Callable[[str, int, int], None]


@contextlib.contextmanager
def bar(leads: bool, what: str) -> Iterator[Advance]:
    """Show a bar while the block runs; gives the function that moves it.

    That takes what is being done now, in words, how much is done, and how much there is in all.
    """
    if not leads or not sys.stderr.isatty():
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
        yield lambda text, done, total: shown.update(
            task, description=f"{what} {text}", completed=done, total=total, refresh=True
        )
