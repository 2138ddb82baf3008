"""castile: finds a fast way to train a neural network in parallel on a machine, and trains it that way.

Read in the order kernels, runtime, planner, launch: each imports only what stands before it. This file knows none.
"""

import os as _os

__version__ = "0.1.0"

# In a checkout the four packages are links to ../kernels, ../runtime, ...; a copy made without its links still works.
if not _os.path.isdir(_os.path.join(_os.path.dirname(__file__), "runtime")):
    __path__.append(_os.path.dirname(_os.path.dirname(_os.path.abspath(__file__))))
