"""Objects set aside from the search for garbage (`gc.freeze`): all are given back at once, so one may do it at a time.

It does not know who wants to, nor why.
"""

import gc

# Python 3.12 sets a few hundred of its own aside as it starts; whoever calls `gc.freeze` later has thousands.
MOST_OF_PYTHON = 2000


def is_frozen() -> bool:
    """Whether somebody has set objects aside that `gc.unfreeze` would give back too."""
    return gc.get_freeze_count() > MOST_OF_PYTHON
