"""Training in PyTorch, for tests that hold castile's against it.

It does not know what is trained; it is imported where PyTorch is not, and called where it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
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
