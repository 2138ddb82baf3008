"""Tells the user once, when Numba compiles loops for the first time, which takes seconds.

It does not know what the loops compute, nor where they are kept.
"""

from __future__ import annotations

import sys
import threading
import time
from functools import cache

from castile.runtime.compiled import can_compile

# So long a user waits without a word.
PATIENCE_SECONDS = 2.0
TEXT = "castile: compiling loops that were not run here before: up to half a minute for the first search\n"


@cache
def watch() -> None:
    """Let this process say so, once, when it compiles for long."""
    if not can_compile():
        return
    from numba.core import event

    class Watch(event.Listener):
        """Loops are compiled one after another; what one calls is compiled within it."""

        def __init__(self) -> None:
            self.depth, self.spent, self.has_said = 0, 0.0, False

        def on_start(self, started: event.Event) -> None:
            self.depth += 1
            if self.depth == 1 and not self.has_said:
                self.began = time.perf_counter()
                self.timer = threading.Timer(max(0.0, PATIENCE_SECONDS - self.spent), self.tell)
                self.timer.daemon = True
                self.timer.start()

        def on_end(self, ended: event.Event) -> None:
            self.depth -= 1
            if self.depth == 0 and not self.has_said:
                self.timer.cancel()
                self.spent += time.perf_counter() - self.began

        def tell(self) -> None:
            self.has_said = True
            sys.stderr.write(TEXT)
            sys.stderr.flush()

    event.register("numba:compile", Watch())
