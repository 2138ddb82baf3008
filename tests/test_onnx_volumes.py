"""Volumes out of files, convolved and pooled as images of their planes, and images put together of blocks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from castile.launch import models
from tests.onnx_networks import network, write
from tests.op_laws import relative
from tests.test_onnx import said
from tests.test_onnx_places import BATCH, check_said, check_trained, drawn
from tests.test_onnx_samples import HEAD

# A text, and the shapes of its weights.
NETWORKS = {
    "volumes": (
        """volumes (float[N, 4, 5, 6, 7] x) => (float[N, 3, 1, 2, 1] said) {
            a = Conv <kernel_shape = [2, 3, 2], pads = [1, 1, 0, 0, 1, 1], strides = [2, 1, 2]> (x, w1, bias1)
            b = Relu (a)
            c = InstanceNormalization (b, gain, shift)
            said = Conv <kernel_shape = [2, 1, 2], dilations = [2, 1, 3], strides = [1, 3, 1], group = 3> (c, w2)
        }""",
        {"w1": (6, 4, 2, 3, 2), "bias1": (6,), "w2": (3, 2, 2, 1, 2), "gain": (6,), "shift": (6,)},
    ),
    "frames": (
        """frames (float[N, 2, 4, 5, 5] x) => (float[N, 3] said) {
            a = Conv <kernel_shape = [1, 3, 3], pads = [0, 1, 1, 0, 1, 1]> (x, w1)
            b = MaxPool <kernel_shape = [3, 2, 2], strides = [1, 2, 2], pads = [1, 0, 1, 1, 1, 1]> (a)
            c = Conv <kernel_shape = [3, 1, 1], auto_pad = "SAME_UPPER"> (b, w2)
            d = AveragePool <kernel_shape = [3, 2, 2], strides = [2, 1, 1], pads = [1, 0, 1, 1, 1, 1]> (c)
            e = AveragePool <kernel_shape = [2, 2, 2], pads = [0, 1, 1, 1, 0, 1], count_include_pad = 1> (d)
            f = GlobalAveragePool (e)
            g = Flatten (f)
            said = MatMul (g, w3)
        }""",
        {"w1": (4, 2, 1, 3, 3), "w2": (5, 4, 3, 1, 1), "w3": (5, 3)},
    ),
    "rounded": (
        """rounded (float[N, 2, 5, 6, 5] x) => (float[N, 2, 2, 3, 2] said) {
            a = Conv <kernel_shape = [1, 1, 1]> (x, w)
            said = MaxPool <kernel_shape = [3, 2, 3], strides = [3, 2, 3], ceil_mode = 1> (a)
        }""",
        {"w": (2, 2, 1, 1, 1)},
    ),
    "spread": (
        """spread (float[N, 4, 2, 3, 2] x) => (float[N, 2, 6, 5, 8] said) {
            a = ConvTranspose <kernel_shape = [3, 2, 2], strides = [2, 1, 2], pads = [1, 0, 0, 0, 1, 1],
                output_padding = [1, 0, 1]> (x, w1, bias1)
            b = Relu (a)
            said = ConvTranspose <kernel_shape = [2, 3, 2], dilations = [1, 1, 3], strides = [1, 1, 1]> (b, w2)
        }""",
        {"w1": (4, 2, 3, 2, 2), "bias1": (2,), "w2": (2, 2, 2, 3, 2)},
    ),
    "twice": (
        """twice (float[N, 2, 2, 3, 2] x) => (float[N, 3, 4, 6, 4] said) {
            said = ConvTranspose <kernel_shape = [2, 2, 2], strides = [2, 2, 2]> (x, w, bias)
        }""",
        {"w": (2, 3, 2, 2, 2), "bias": (3,)},
    ),
    "blocks": (
        """blocks (float[N, 12, 12] x) => (float[N, 2, 6, 5] said) {
            a = MatMul (x, w)
            image = Constant <value = int64[2] {6, 5}> ()
            block = Constant <value = int64[2] {3, 2}> ()
            said = Col2Im <pads = [1, 0, 1, 0], strides = [2, 1], dilations = [1, 1]> (a, image, block)
        }""",
        {"w": (12, 12)},
    ),
    "gaps": (
        """gaps (float[N, 8, 6] x) => (float[N, 2, 5, 7] said) {
            a = MatMul (x, w)
            image = Constant <value = int64[2] {5, 7}> ()
            block = Constant <value = int64[2] {2, 2}> ()
            said = Col2Im <pads = [0, 1, 1, 2], strides = [3, 3], dilations = [2, 3]> (a, image, block)
        }""",
        {"w": (6, 6)},
    ),
}  # fmt: skip


def made(name: str) -> onnx.ModelProto:
    text, shapes = NETWORKS[name]
    return network(HEAD.replace("17", "18") + text, **shapes)


@pytest.mark.parametrize("name", NETWORKS)
def test_volumes_and_blocks_are_what_the_file_says(name: str, tmp_path: Path) -> None:
    check_said(made(name), tmp_path)


@pytest.mark.parametrize("name", NETWORKS)
def test_they_are_trained_alike_under_every_plan(name: str, tmp_path: Path) -> None:
    check_trained(made(name), tmp_path)


def test_groups_of_a_transposed_convolution_are_those_of_their_channels(tmp_path: Path) -> None:
    # ONNX's evaluator has no groups there
    head = HEAD.replace("17", "18")
    together = """net (float[N, 4, 2, 3, 2] x) => (float[N, 4, 4, 4, 4] said) {
        said = ConvTranspose <kernel_shape = [2, 2, 3], strides = [2, 1, 1], group = 2> (x, w)
    }"""
    apart = """net (float[N, 4, 2, 3, 2] x) => (float[N, 4, 4, 4, 4] said) {
        one, other = Split <axis = 1, num_outputs = 2> (x)
        half, rest = Split <axis = 0, num_outputs = 2> (w)
        a = ConvTranspose <kernel_shape = [2, 2, 3], strides = [2, 1, 1]> (one, half)
        b = ConvTranspose <kernel_shape = [2, 2, 3], strides = [2, 1, 1]> (other, rest)
        said = Concat <axis = 1> (a, b)
    }"""
    found = []
    for n, text in enumerate((together, apart)):
        proto = network(head + text, w=(4, 2, 2, 2, 3))
        found.append(said(write(proto, tmp_path / f"{n}.onnx"), drawn(proto, 0), BATCH)[0])
    assert relative(found[0], found[1]) < 1e-12


def test_a_bias_of_zeros_is_none_under_whatever_dims(tmp_path: Path) -> None:
    text = """net (float[N, 2, 3, 3, 3] x) => (float[N, 4, 2, 2, 2] said) {
        zero = Constant <value = float {0}> ()
        shape = Constant <value = int64[2] {4, 2}> ()
        none = Expand (zero, shape)
        said = Conv <kernel_shape = [2, 2, 2]> (x, w, none)
    }"""
    path = write(network(HEAD.replace("17", "18") + text, w=(4, 2, 2, 2, 2)), tmp_path / "net.onnx")
    graph = models.parse(f"{path}:loss=mse").graph(BATCH)
    assert [len(n.inputs) for n in graph.nodes.values() if n.op.name == "conv2d"] == [2] and graph.states == []


def test_a_state_of_another_length_is_refused(tmp_path: Path) -> None:
    # as PyTorch's exporter writes an LSTM whose hidden units are projected
    text = """net (float[N, 6, 5] x) => (float[6, 1, N, 4] said) {
        turned = Transpose <perm = [1, 0, 2]> (x)
        said = LSTM <hidden_size = 4> (turned, w, r, , , hidden, cell)
    }"""
    numbers = {"hidden": np.zeros((1, BATCH, 4), np.float32), "cell": np.zeros((1, BATCH, 8), np.float32)}
    proto = network(HEAD.replace("17", "18") + text, w=(1, 16, 5), r=(1, 16, 4), **numbers)
    with pytest.raises(ValueError, match="LSTM that begins with a state of 8 numbers for 4 units"):
        models.parse(f"{write(proto, tmp_path / 'net.onnx')}:loss=mse").graph(BATCH)
