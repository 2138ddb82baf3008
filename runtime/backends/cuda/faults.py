"""Faults: a device tells that a kernel has failed at some later call, and from then on at every call.

It does not know tasks, nor what they are issued as.
"""

from __future__ import annotations

import os
from typing import Any

import cupy

from castile.runtime.comm.looks import idle

# With this, CUDA comes back from a launch when its kernel has ended, but for those of a graph.
AT_ONCE = "CUDA_LAUNCH_BLOCKING"


def tells_at_once() -> bool:
    """Whether a kernel's fault is told by the call that launches it."""
    return os.environ.get(AT_ONCE, "0") not in ("", "0")


def may_be_earlier(error: Exception, stream: Any) -> bool:
    """Whether an error out of a call may come of a kernel before it, which then gets a note on what to do.

    stream: one of the device's, onto which nothing is captured.
    """
    try:
        idle(stream)
    except cupy.cuda.runtime.CUDARuntimeError:
        if not tells_at_once():
            error.add_note(f"the device told of it late; with {AT_ONCE}=1 in the environment it tells at once")
            return True
    return False
