"""Patience: which evaluation was the best so far, and when so many after it have brought nothing better.

It does not know how samples are judged, nor what becomes of a run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass
class Patience:
    """The evaluations of a run.

    most    after so many in a row without a lower loss the run is to end; None for never
    loss    the lowest loss of held-out samples so far, after that many steps; None before any
    since   how many evaluations came after it
    """

    most: int | None = None
    loss: float | None = None
    step: int = 0
    since: int = 0

    def take(self, step: int, loss: float) -> bool:
        """An evaluation after so many steps: whether it is the best so far, which needs a finite loss."""
        if math.isfinite(loss) and (self.loss is None or loss < self.loss):
            self.loss, self.step, self.since = loss, step, 0
            return True
        self.since += 1
        return False

    @property
    def is_over(self) -> bool:
        """Whether nothing better is waited for any more."""
        return self.most is not None and self.since >= self.most
