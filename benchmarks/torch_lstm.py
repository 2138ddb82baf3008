"""The model `lstm` in PyTorch with its own layer for sequences, beginning with castile's parameters.

It does not know plans: the whole model runs in one process.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch.nn import functional as F

from castile.launch.jobs.execution import initial
from castile.planner.graph import Graph
from castile.runtime.region import whole


class TorchLstm(torch.nn.Module):
    """Embedding, `torch.nn.LSTM` and a linear head, with castile's initial parameters of that seed or `values`.

    PyTorch has two biases that only ever add up: its second is zero and does not learn.
    """

    def __init__(self, graph: Graph, seed: int, values: Mapping[str, np.ndarray] | None = None) -> None:
        super().__init__()
        numbers = values or {t.name: initial(t, seed, whole(t.shape)) for t in graph.params}
        self.graph = graph
        self.tokens = _filled(torch.nn.Embedding(*numbers["tok.weight"].shape), weight=numbers["tok.weight"])
        width, layers = numbers["tok.weight"].shape[1], sum(name.endswith(".input") for name in numbers)
        self.lstm = _filled(torch.nn.LSTM(width, width, layers, batch_first=True), **_of_layers(numbers, layers))
        head = {"weight": numbers["head.weight"], "bias": numbers["head.bias"]}
        self.head = _filled(torch.nn.Linear(width, len(head["bias"])), **head)

    def forward(self, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """The loss of inputs by name."""
        states, _ = self.lstm(self.tokens(inputs["tokens"]))
        return F.cross_entropy(self.head(states).flatten(0, 1), inputs["targets"].flatten())


def _of_layers(numbers: Mapping[str, np.ndarray], layers: int) -> dict[str, np.ndarray]:
    found = {}
    for n in range(layers):
        of = {key: numbers[f"lstm{n + 1}.{key}"] for key in ("input", "weight", "bias")}
        found[f"weight_ih_l{n}"], found[f"weight_hh_l{n}"] = (
            of[key].reshape(-1, of[key].shape[2]) for key in ("input", "weight")
        )
        found[f"bias_ih_l{n}"], found[f"bias_hh_l{n}"] = of["bias"].reshape(-1), np.zeros(of["bias"].size)
    return found


def _filled(module: torch.nn.Module, **arrays: np.ndarray) -> torch.nn.Module:
    """The module with these parameters, in their dtype; second biases do not learn."""
    dtype = next(iter(arrays.values())).dtype
    for name, array in arrays.items():
        learns = not name.startswith("bias_hh")
        setattr(module, name, torch.nn.Parameter(torch.from_numpy(array.astype(dtype)), requires_grad=learns))
    return module
