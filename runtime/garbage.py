"""Objects that the search for garbage leaves out, all together or while much is made that stays.

What is set aside (`gc.freeze`) is given back at once, all of it, so one may do that at a time. It does not know who
wants to, nor why.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

# Python 3.12 sets a few hundred of its own aside as it starts; whoever calls `gc.freeze` later has thousands.
MOST_OF_PYTHON = 2000
# Whether `set_aside` has: to count what is there takes a second for each few million.
_here = [False]


def is_frozen() -> bool:
    """Whether somebody has set objects aside that `gc.unfreeze` would give back too."""
    return _here[0] or gc.get_freeze_count() > MOST_OF_PYTHON


@contextmanager
def set_aside() -> Iterator[None]:
    """What is there is left out meanwhile, unless somebody has set it aside already."""
    if is_frozen():
        yield
        return
    gc.freeze()
    _here[0] = True
    try:
        yield
    finally:
        _here[0] = False
        gc.unfreeze()


@contextmanager
def uncollected() -> Iterator[None]:
    """No garbage is looked for: all that is made here stays, and to look at it again and again takes half the time.

    Nor when this ends: what was made goes to the oldest generation unseen (`gc.freeze` and back).
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            if not is_frozen():
                gc.freeze()
                gc.unfreeze()
            gc.enable()
