"""A real GPU whose kernel writes where nothing is: in a process of its own, which cannot use it any more."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.gpu

PROGRAM = """
import time
import cupy
import numpy as np
from castile.runtime.comm.looks import idle, reached

stream, event = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Event(disable_timing=True)
fail = cupy.RawKernel('extern "C" __global__ void fail(int* x) { *x = 1; }', "fail")
assert idle(stream)
with stream:
    fail((1,), (1,), (np.uint64(8),))
for look, what in ((reached, event), (idle, stream)):
    for _ in range(2):
        until = time.monotonic() + 20
        try:
            if what is event:
                event.record(stream)
            while time.monotonic() < until:
                look(what)
        except cupy.cuda.runtime.CUDARuntimeError as error:
            print(type(error).__name__, error)
    print("done says", what.done)
"""


def test_a_device_that_has_failed_says_so_at_every_look() -> None:
    environment = {**os.environ, "CUDA_LAUNCH_BLOCKING": "0"}
    words = [sys.executable, "-c", PROGRAM]
    ended = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert ended.stdout.count("cudaErrorIllegalAddress") == 4, ended.stdout + ended.stderr
    assert ended.stdout.count("done says False") == 2
