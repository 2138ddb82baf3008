"""The runtime does: it runs tasks on pieces of regions, moves what must move, and reports when each task ran.

Reading order: region, task, machine, timeline (the words); dependence, collectives, transfer, memory (what follows);
mapper, executor (in which order); backends and comm (by what means); worker, runner, debug. It knows no operator,
layer or gradient.
"""

import ml_dtypes  # noqa: F401  NumPy has no bfloat16 of its own
