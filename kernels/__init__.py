"""Array kernels: everything an operator's body may call, each with a slow definition and faster forms.

Reading order: `reference` (the definitions, plain NumPy), `form` (what a faster form looks like), `table` (finds forms
by name and binds them to arrays), `numpy/` (the fast CPU forms). Nothing here knows who calls it.
"""

import ml_dtypes  # noqa: F401  NumPy has no bfloat16 of its own
