"""Definitions of recurrent cells in plain NumPy; t is 1, the one step of a sequence that a cell computes."""

import numpy as np


def lstm_cell(
    x: np.ndarray, bias: np.ndarray, r: np.ndarray, c: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """One step of long short-term memory (Hochreiter and Schmidhuber 1997; Gers et al. 2000).

    x [b,t,4,h] the input's and r [b,t,4,h] the state's share of the gates, bias [4,h], c [b,t,h] the cell before
    -> h [b,t,h], c [b,t,h], gates [b,t,4,h]: input, forget, candidate and output, as they act.
    """
    into, forget, candidate, outof = _gates(x + r + bias)
    gates = np.stack([_sigmoid(into), _sigmoid(forget), np.tanh(candidate), _sigmoid(outof)], axis=2)
    into, forget, candidate, outof = _gates(gates)
    new = forget * c + into * candidate
    return outof * np.tanh(new), new, gates


def lstm_cell_grad(
    dh: np.ndarray, dc: np.ndarray, gates: np.ndarray, before: np.ndarray, c: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Gradients of `lstm_cell` to x (and r) [b,t,4,h] and to the cell before [b,t,h].

    dh, dc [b,t,h] are those of its first two results, `before` and c [b,t,h] the cell before and after.
    """
    into, forget, candidate, outof = _gates(gates)
    shown = np.tanh(c)
    dc = dc + dh * outof * (1 - shown**2)
    grads = [
        dc * candidate * into * (1 - into),
        dc * before * forget * (1 - forget),
        dc * into * (1 - candidate**2),
        dh * shown * outof * (1 - outof),
    ]
    return np.stack(grads, axis=2), dc * forget


def gru_cell(
    x: np.ndarray, bias_x: np.ndarray, r: np.ndarray, bias_r: np.ndarray, h: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """One step of a gated recurrent unit (Cho et al. 2014), reset after the product with the state as in PyTorch.

    x [b,t,3,h] the input's and r [b,t,3,h] the state's share of reset, update and candidate, each with its bias [3,h];
    h [b,t,h] the state before
    -> h [b,t,h], gates [b,t,4,h]: reset, update, candidate as they act, and the state's share of the candidate.
    """
    reset, update, candidate = _gates(x + bias_x)
    of_reset, of_update, recalled = _gates(r + bias_r)
    reset, update = _sigmoid(reset + of_reset), _sigmoid(update + of_update)
    candidate = np.tanh(candidate + reset * recalled)
    return candidate + update * (h - candidate), np.stack([reset, update, candidate, recalled], axis=2)


def gru_cell_grad(dh: np.ndarray, gates: np.ndarray, h: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Gradients of `gru_cell` to x [b,t,3,h], r [b,t,3,h] and, but for what r brings, the state before [b,t,h].

    dh [b,t,h] is that of its first result, h [b,t,h] the state before.
    """
    reset, update, candidate, recalled = _gates(gates)
    of_candidate = dh * (1 - update) * (1 - candidate**2)
    of_update = dh * (h - candidate) * update * (1 - update)
    of_reset = of_candidate * recalled * reset * (1 - reset)
    dx = np.stack([of_reset, of_update, of_candidate], axis=2)
    dr = np.stack([of_reset, of_update, of_candidate * reset], axis=2)
    return dx, dr, dh * update


def _gates(x: np.ndarray) -> np.ndarray:
    """x [b,t,g,h] gate by gate."""
    return np.moveaxis(x, 2, 0)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-x))
