"""Training in PyTorch, for tests that hold castile's against it, and what its exporter needs for any network.

It does not know what is trained; it is imported where PyTorch is not, and called where it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from importlib import import_module
from typing import Any


def learned(net: Any, losses: Iterable[Callable[[], Any]], rate: float, momentum: float) -> list[float]:
    """The loss of each step of stochastic gradient descent on the network's parameters."""
    import torch

    optimizer, told = torch.optim.SGD(net.parameters(), lr=rate, momentum=momentum), []
    for loss_of in losses:
        loss = loss_of()
        told.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return told


@cache
def export_faster() -> None:
    """The newer exporter looks through all operators that there are anew for each network, which takes longer than a
    small network itself: from here on it does so once for all networks of this process.
    """
    try:
        table = import_module("torch.onnx._internal.exporter._registration").ONNXRegistry
        table.from_torchlib = staticmethod(cache(table.from_torchlib))
        composed = import_module("torch._export.utils")
        composed._collect_all_valid_cia_ops_for_namespace = cache(composed._collect_all_valid_cia_ops_for_namespace)
    except (ImportError, AttributeError):
        # No part of what PyTorch promises: another version exports as it does, and takes its time.
        return
