"""Small networks as ONNX files, written down as text; their weights are drawn.

It does not know castile.
"""

from __future__ import annotations

from math import sqrt
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper, parser
from onnx.reference import ReferenceEvaluator

BATCH = 2

# A text, and the shapes of its weights; what varies is drawn above zero.
NETWORKS = {
    "cnn": (
        """<ir_version: 8, opset_import: ["" : 17]>
        cnn (float[N, 3, 9, 8] image) => (float[N, 5] said) {
            a = Conv <pads = [1, 0, 1, 1], strides = [2, 1], kernel_shape = [3, 2]> (image, conv1_weight, conv1_bias)
            b = BatchNormalization <epsilon = 0.001> (a, bn_gain, bn_shift, bn_mean, bn_var)
            c = HardSwish (b)
            d = MaxPool <kernel_shape = [2, 2], strides = [2, 2], ceil_mode = 1> (c)
            e = Conv <group = 2, auto_pad = "SAME_UPPER", kernel_shape = [2, 2]> (d, conv2_weight)
            f = InstanceNormalization (e, in_gain, in_shift)
            g = Concat <axis = 1> (d, f)
            h = AveragePool <kernel_shape = [2, 2], pads = [0, 0, 1, 1]> (g)
            i = Clip (h, low, high)
            j = GlobalAveragePool (i)
            k = Flatten (j)
            l = Gemm <transB = 1> (k, fc_weight, fc_bias)
            said = Softmax <axis = -1> (l)
        }""",
        {
            "conv1_weight": (4, 3, 3, 2), "conv1_bias": (4,), "bn_gain": (4,), "bn_shift": (4,), "bn_mean": (4,),
            "bn_var": (4,), "conv2_weight": (6, 2, 2, 2), "in_gain": (6,), "in_shift": (6,), "fc_weight": (5, 10),
            "fc_bias": (5,), "low": -1.5, "high": 2.0,
        },
    ),
    "old": (
        """<ir_version: 3, opset_import: ["" : 7]>
        old (float[2, 4, 6, 6] data) => (float[2, 7] prob) {
            a = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (data, w1, b1)
            b = LRN <size = 3, alpha = 0.5, beta = 0.75, bias = 2.0> (a)
            c = PRelu (b, slope)
            d = MaxPool <kernel_shape = [3, 3], strides = [2, 2], pads = [0, 0, 1, 1]> (c)
            s = Constant <value = int64[2] {2, -1}> ()
            e = Reshape (d, s)
            f, mask = Dropout <ratio = 0.3> (e)
            g = MatMul (f, w2)
            h = Add (g, b2)
            i = Sum (h, h, b2)
            prob = Softmax (i)
        }""",
        {"w1": (2, 4, 3, 3), "b1": (2,), "slope": (2, 1, 1), "w2": (18, 7), "b2": (7,)},
    ),
    "block": (
        """<ir_version: 8, opset_import: ["" : 13]>
        block (int64[N, 6] tokens) => (float[N, 6, 11] logits) {
            x0 = Gather (table, tokens)
            x = Add (x0, places)
            mean = ReduceMean <axes = [-1]> (x)
            centred = Sub (x, mean)
            two = Constant <value = float {2.0}> ()
            squares = Pow (centred, two)
            variance = ReduceMean <axes = [-1]> (squares)
            eps = Constant <value = float {0.00001}> ()
            above = Add (variance, eps)
            root = Sqrt (above)
            normal = Div (centred, root)
            gained = Mul (normal, ln_weight)
            n = Add (gained, ln_bias)
            sizes = Shape (n)
            zero = Constant <value = int64 {0}> ()
            b0 = Gather (sizes, zero)
            first = Constant <value = int64[1] {0}> ()
            b = Unsqueeze (b0, first)
            rest = Constant <value = int64[3] {6, 2, 4}> ()
            apart = Concat <axis = 0> (b, rest)
            q0 = MatMul (n, q_weight)
            q1 = Add (q_bias, q0)
            q2 = Reshape (q1, apart)
            q3 = Transpose <perm = [0, 2, 1, 3]> (q2)
            k0 = MatMul (n, k_weight)
            k2 = Reshape (k0, apart)
            k3 = Transpose <perm = [0, 2, 3, 1]> (k2)
            v0 = MatMul (n, v_weight)
            v2 = Reshape (v0, apart)
            v3 = Transpose <perm = [0, 2, 1, 3]> (v2)
            scores = MatMul (q3, k3)
            scale = Constant <value = float {2.0}> ()
            less = Div (scores, scale)
            masked = Where (future, hidden, less)
            weights = Softmax <axis = -1> (masked)
            mixed = MatMul (weights, v3)
            back = Transpose <perm = [0, 2, 1, 3]> (mixed)
            flat = Constant <value = int64[3] {0, 0, -1}> ()
            joined = Reshape (back, flat)
            y = Add (x, joined)
            up = MatMul (y, up_weight)
            half = Constant <value = float {0.5}> ()
            one = Constant <value = float {1.0}> ()
            sqrt2 = Constant <value = float {1.4142135}> ()
            inside = Div (up, sqrt2)
            erf = Erf (inside)
            more = Add (erf, one)
            product = Mul (up, more)
            gelu = Mul (product, half)
            gate = Sigmoid (gelu)
            silu = Mul (gelu, gate)
            down = MatMul (silu, down_weight)
            z = Add (y, down)
            turned = Transpose <perm = [1, 0]> (table)
            logits = MatMul (z, turned)
        }""",
        {
            "table": (11, 8), "places": (1, 6, 8), "ln_weight": (8,), "ln_bias": (8,), "q_weight": (8, 8),
            "q_bias": (8,),
            "k_weight": (8, 8), "v_weight": (8, 8), "up_weight": (8, 12), "down_weight": (12, 8), "hidden": -1e9,
            "future": np.triu(np.ones((6, 6), bool), 1),
        },
    ),
    "patches": (
        """<ir_version: 8, opset_import: ["" : 13]>
        patches (float[2, 3, 4, 6] image) => (float[2, 5] said) {
            a = Conv <kernel_shape = [2, 2], strides = [2, 2]> (image, conv_weight, conv_bias)
            shape = Constant <value = int64[3] {2, 4, -1}> ()
            b = Reshape (a, shape)
            ones = Constant <value = float[4] {1.0, 1.0, 1.0, 1.0}> ()
            zeros = Constant <value = float[4] {0.0, 0.0, 0.0, 0.0}> ()
            c = InstanceNormalization (b, ones, zeros)
            d = Transpose <perm = [0, 2, 1]> (c)
            wide = Constant <value = int64[3] {2, 1, 4}> ()
            token = Expand (first, wide)
            e = Concat <axis = 1> (token, d)
            begin = Constant <value = int64[1] {0}> ()
            end = Constant <value = int64[1] {7}> ()
            one = Constant <value = int64[1] {1}> ()
            places = Slice (table, begin, end, one)
            f = Add (e, places)
            heads = Constant <value = int64[4] {2, 7, 2, 2}> ()
            g = Reshape (f, heads)
            h = Transpose <perm = [1, 0, 2, 3]> (g)
            merged = Constant <value = int64[3] {7, 4, 2}> ()
            i = Reshape (h, merged)
            j = Tanh (i)
            apart = Constant <value = int64[4] {7, 2, 2, 2}> ()
            k = Reshape (j, apart)
            l = Transpose <perm = [1, 0, 2, 3]> (k)
            zero = Constant <value = int64 {0}> ()
            m = Gather <axis = 1> (l, zero)
            n = Flatten (m)
            other = Identity (fc_bias)
            o = Gemm (n, fc_weight, fc_bias)
            said = Add (o, other)
        }""",
        {
            "conv_weight": (4, 3, 2, 2), "conv_bias": (4,), "first": (1, 1, 4), "table": (1, 9, 4), "fc_weight": (4, 5),
            "fc_bias": (5,),
        },
    ),
    "recurrent": (
        """<ir_version: 8, opset_import: ["" : 14]>
        recurrent (float[N, 4, 3] x, float[N, 2, 5] start) => (float[N, 2] said) {
            turned = Transpose <perm = [1, 0, 2]> (x)
            begin = Transpose <perm = [1, 0, 2]> (start)
            y, h, c = LSTM <hidden_size = 5, direction = "bidirectional"> (turned, w, r, b, , begin)
            joined = Transpose <perm = [0, 2, 1, 3]> (y)
            flat = Constant <value = int64[3] {0, 0, -1}> ()
            both = Reshape (joined, flat)
            z, last = GRU <hidden_size = 4, linear_before_reset = 1> (both, gw, gr, gb)
            u, end = RNN <hidden_size = 2> (both, rw, rr, rb)
            first = Constant <value = int64[1] {0}> ()
            last0 = Squeeze (last, first)
            end0 = Squeeze (end, first)
            a = MatMul (last0, out)
            said = Sub (a, end0)
        }""",
        {
            "w": (2, 20, 3), "r": (2, 20, 5), "b": (2, 40), "gw": (1, 12, 10), "gr": (1, 12, 4), "gb": (1, 24),
            "rw": (1, 2, 10), "rr": (1, 2, 2), "rb": (1, 4), "out": (4, 2),
        },
    ),
    "unfolded": (
        # as PyTorch's exporter writes it where it is asked to optimise nothing
        """<ir_version: 10, opset_import: ["" : 20]>
        unfolded (int64[N, 5] tokens) => (float[N, 11] said) {
            x = Gather <axis = 0> (table, tokens)
            length = Shape <start = 0, end = 1> (x)
            samples = Squeeze (length)
            two = Constant <value = float {2.0}> ()
            square = Pow (x, two)
            last = Constant <value_ints = [-1]> ()
            mean = ReduceMean <keepdims = 1> (square, last)
            eps = Constant <value = float {0.00001}> ()
            above = Add (mean, eps)
            root = Sqrt (above)
            inverse = Reciprocal (root)
            normal = Mul (x, inverse)
            n = Mul (normal, gain)
            turned = Transpose <perm = [1, 0]> (qkv_weight)
            product = MatMul (n, turned)
            whole = Add (product, qkv_bias)
            sizes = Constant <value_ints = [8, 4, 4]> ()
            pieces = SplitToSequence <axis = 2, keepdims = 1> (whole, sizes)
            i0 = Constant <value = int64 {0}> ()
            i1 = Constant <value = int64 {1}> ()
            i2 = Constant <value = int64 {2}> ()
            q0 = SequenceAt (pieces, i0)
            k0 = SequenceAt (pieces, i1)
            v0 = SequenceAt (pieces, i2)
            b = Reshape (samples, last)
            rest = Constant <value_ints = [5, 4, 2]> ()
            less = Constant <value_ints = [5, 2, 2]> ()
            apart = Concat <axis = 0> (b, rest)
            apart2 = Concat <axis = 0> (b, less)
            q1 = Reshape <allowzero = 1> (q0, apart)
            q = Transpose <perm = [0, 2, 1, 3]> (q1)
            k1 = Reshape <allowzero = 1> (k0, apart2)
            k = Transpose <perm = [0, 2, 1, 3]> (k1)
            v1 = Reshape <allowzero = 1> (v0, apart2)
            v = Transpose <perm = [0, 2, 1, 3]> (v1)
            beside = Constant <value_ints = [2]> ()
            groups = Constant <value_ints = [2, 2, 5, 2]> ()
            many = Concat <axis = 0> (b, groups)
            heads = Constant <value_ints = [4, 5, 2]> ()
            each = Concat <axis = 0> (b, heads)
            k2 = Unsqueeze (k, beside)
            k3 = Expand (k2, many)
            k4 = Reshape <allowzero = 0> (k3, each)
            v2 = Unsqueeze (v, beside)
            v3 = Expand (v2, many)
            v4 = Reshape <allowzero = 0> (v3, each)
            wide = Shape <start = -1> (q)
            width = CastLike (wide, q)
            root_width = Sqrt (width)
            one = Constant <value_float = 1.0> ()
            scale = Div (one, root_width)
            half = Sqrt (scale)
            joined = Constant <value_ints = [-1, 5, 2]> ()
            k5 = Reshape <allowzero = 0> (k4, joined)
            k6 = Transpose <perm = [0, 2, 1]> (k5)
            back = Constant <value_ints = [4, 2, 5]> ()
            each2 = Concat <axis = 0> (b, back)
            k7 = Reshape <allowzero = 0> (k6, each2)
            q2 = Mul (q, half)
            k8 = Mul (k7, half)
            scores = MatMul (q2, k8)
            square5 = Constant <value_ints = [5, 5]> ()
            ones = Expand (one, square5)
            lower = Trilu <upper = 0> (ones)
            zero = Constant <value_float = 0.0> ()
            later = Equal (lower, zero)
            hidden = Constant <value = float {-3.4028234663852886e38}> ()
            mask = Where (later, hidden, zero)
            masked = Add (scores, mask)
            weights = Softmax <axis = -1> (masked)
            mixed = MatMul (weights, v4)
            mixed1 = Transpose <perm = [0, 2, 1, 3]> (mixed)
            flat = Constant <value_ints = [5, 8]> ()
            together = Concat <axis = 0> (b, flat)
            y = Reshape <allowzero = 1> (mixed1, together)
            z = Add (x, y)
            pairs0 = Transpose <perm = [1, 2, 0]> (z)
            places = Constant <value = int64[3, 2] {4, 0, 1, 7, 0, 3}> ()
            pairs1 = GatherND <batch_dims = 0> (pairs0, places)
            pairs = Transpose <perm = [1, 0]> (pairs1)
            said = Gemm <alpha = 1.0, beta = 1.0, transA = 0, transB = 1> (pairs, head_weight, head_bias)
        }""",
        {
            "table": (11, 8), "gain": (8,), "qkv_weight": (16, 8), "qkv_bias": (16,), "head_weight": (11, 3),
            "head_bias": (11,),
        },
    ),
    "single": (
        # written for one sample, whose dim stands behind that of the positions
        """<ir_version: 10, opset_import: ["" : 20]>
        single (float[1, 4, 6] x) => (float[1, 5] said) {
            all = Concat <axis = 1> (token, x)
            turned = Transpose <perm = [1, 0, 2]> (all)
            product = MatMul (turned, qkv_weight)
            apart = Constant <value = int64[5] {5, 1, 3, 2, 3}> ()
            pieces = Reshape (product, apart)
            front = Transpose <perm = [2, 0, 1, 3, 4]> (pieces)
            i0 = Constant <value = int64 {0}> ()
            i1 = Constant <value = int64 {1}> ()
            i2 = Constant <value = int64 {2}> ()
            q0 = Gather <axis = 0> (front, i0)
            k0 = Gather <axis = 0> (front, i1)
            v0 = Gather <axis = 0> (front, i2)
            both = Constant <value = int64[3] {5, 2, 3}> ()
            heads = Constant <value = int64[4] {1, 2, 5, 3}> ()
            q1 = Reshape (q0, both)
            q2 = Transpose <perm = [1, 0, 2]> (q1)
            q = Reshape (q2, heads)
            k1 = Reshape (k0, both)
            k2 = Transpose <perm = [1, 2, 0]> (k1)
            last = Constant <value = int64[4] {1, 2, 3, 5}> ()
            k = Reshape (k2, last)
            v1 = Reshape (v0, both)
            v2 = Transpose <perm = [1, 0, 2]> (v1)
            v = Reshape (v2, heads)
            scores = MatMul (q, k)
            weights = Softmax <axis = -1> (scores)
            mixed = MatMul (weights, v)
            back = Transpose <perm = [2, 0, 1, 3]> (mixed)
            rows = Constant <value = int64[2] {5, 6}> ()
            flat = Reshape (back, rows)
            out = Gemm <transB = 1> (flat, out_weight, out_bias)
            long = Constant <value = int64[3] {5, 1, 6}> ()
            there = Reshape (out, long)
            samples = Transpose <perm = [1, 0, 2]> (there)
            first = Gather <axis = 1> (samples, i0)
            said = Gemm <transB = 1> (first, head_weight, head_bias)
        }""",
        {
            "token": (1, 1, 6), "qkv_weight": (6, 18), "out_weight": (6, 6), "out_bias": (6,), "head_weight": (5, 6),
            "head_bias": (5,),
        },
    ),
}  # fmt: skip


def model(name: str) -> onnx.ModelProto:
    """One of the networks, with its weights."""
    text, shapes = NETWORKS[name]
    return network(text, **shapes)


def network(text: str, **shapes: object) -> onnx.ModelProto:
    """A network out of text, with weights of these shapes, or these numbers."""
    found, rng = parser.parse_model(text), np.random.default_rng(1)
    for name, told in shapes.items():
        if isinstance(told, tuple):
            drawn = rng.normal(size=told) / sqrt(told[-1])
            told = (np.abs(drawn) + 0.5 if name.endswith("var") else drawn).astype(np.float32)
        array = np.asarray(told, None if isinstance(told, np.ndarray) else np.float32)
        found.graph.initializer.append(numpy_helper.from_array(array, name))
        if found.ir_version < 4:
            # of old files weights are inputs too
            kind = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
            found.graph.input.append(onnx.helper.make_tensor_value_info(name, kind, array.shape))
    return found


def samples(proto: onnx.ModelProto, batch: int = BATCH) -> dict[str, np.ndarray]:
    """Numbers for the inputs of a network, of so many samples."""
    rng, found = np.random.default_rng(2), {}
    weights = {tensor.name for tensor in proto.graph.initializer}
    for told in (one for one in proto.graph.input if one.name not in weights):
        shape = (batch, *(dim.dim_value for dim in told.type.tensor_type.shape.dim[1:]))
        whole = told.type.tensor_type.elem_type == onnx.TensorProto.INT64
        found[told.name] = rng.integers(0, 11, shape) if whole else rng.normal(size=shape).astype(np.float32)
    return found


def expected(proto: onnx.ModelProto, given: dict[str, np.ndarray]) -> list[np.ndarray]:
    """What ONNX's own evaluator says."""
    return list(ReferenceEvaluator(proto).run(None, given))


def write(proto: onnx.ModelProto, path: Path) -> str:
    """The network's file; its path."""
    onnx.save_model(proto, str(path))
    return str(path)
