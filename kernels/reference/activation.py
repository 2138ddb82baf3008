"""Definitions of activations in plain NumPy."""

import numpy as np
from scipy.special import erf


def relu(x: np.ndarray) -> np.ndarray:
    """max(x, 0), elementwise."""
    return np.maximum(x, x.dtype.type(0))


def relu_grad(dy: np.ndarray, x: np.ndarray) -> np.ndarray:
    """dy where x is positive, else 0."""
    return np.where(x > 0, dy, dy.dtype.type(0))


def gelu(x: np.ndarray, *, approximate: str) -> np.ndarray:
    """Gaussian error linear unit (Hendrycks and Gimpel 2016); approximate is "none" (by erf) or "tanh"."""
    return (x * _gelu_gate(x, approximate)).astype(x.dtype)


def gelu_grad(dy: np.ndarray, x: np.ndarray, *, approximate: str) -> np.ndarray:
    """dy times the derivative of `gelu` at x."""
    gate = _gelu_gate(x, approximate)
    if approximate == "tanh":
        slope = 2 * gate * (1 - gate) * np.sqrt(2 / np.pi) * (1 + 3 * 0.044715 * x**2)
    else:
        slope = np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi)
    return (dy * (gate + x * slope)).astype(x.dtype)


def _gelu_gate(x: np.ndarray, approximate: str) -> np.ndarray:
    if approximate == "tanh":
        return 0.5 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    return 0.5 * (1 + erf(x / np.sqrt(2)))
