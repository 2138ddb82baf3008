"""Looks at a device: whether it has come to an event, or to the end of a stream.

CuPy's own `done` takes a device that has failed for one that is busy, for ever. It does not know what lies on streams.
"""

from __future__ import annotations

from typing import Any

import cupy

NOT_READY = 600


def reached(event: Any) -> bool:
    """Whether a stream has come to where an event was recorded. Raises CUDARuntimeError where the device has failed."""
    return _is_over(cupy.cuda.runtime.eventQuery(event.ptr))


def idle(stream: Any) -> bool:
    """Whether all that was put onto a stream is done. Raises CUDARuntimeError where the device has failed."""
    return _is_over(cupy.cuda.runtime.streamQuery(stream.ptr))


def _is_over(status: int) -> bool:
    if status not in (0, NOT_READY):
        raise cupy.cuda.runtime.CUDARuntimeError(status)
    return status == 0
