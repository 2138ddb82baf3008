"""Which setting of a form is fastest on arrays like these: each is bound and timed, and the best is remembered.

It knows no kernel and keeps nothing on disk: `launch.key` and the setting are for a profile database to hold, whose
owner gives them back by `launch.remember` before it binds.
"""

import inspect
from collections.abc import Callable
from typing import Any

from triton.runtime.errors import OutOfResources, PTXASError

from castile.kernels.triton import launch


def tune(
    form: Callable[..., Any],
    out: Any,
    args: tuple[Any, ...],
    keywords: dict[str, Any],
    seconds: Callable[[launch.Call], float],
) -> dict[Any, float]:
    """Seconds of each setting of a form that the device takes, by `seconds`, which runs a call as often as it likes.

    out is written over. Without a setting, as where a form cannot or leaves no choice, nothing is timed.
    """
    plan = inspect.unwrap(form)(out, *args, **keywords)
    if plan is None or len(plan.settings) < 2:
        return {}
    found = {}
    for setting in plan.settings:
        try:
            found[setting] = seconds(launch.bound(plan, setting))
        except (OutOfResources, PTXASError):
            continue
    if found:
        launch.remember(launch.key(form.__name__, out, args, keywords), min(found, key=lambda one: found[one]))
    return found
