"""Samples stay an axis of their own through networks of others: known plans cut along it, and microbatches can be."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

pytest.importorskip("onnx")

from castile.launch import models
from castile.launch.arrays import weights
from castile.planner.cost import CostModel
from castile.planner.graph import Graph
from castile.planner.known.plans import data_parallel
from castile.planner.known.seeds import seeds
from castile.planner.lower import Lowering
from castile.planner.simulate import simulate
from castile.planner.strategy import Config, Strategy
from castile.runtime import machine
from tests.onnx_networks import expected, network, samples, write
from tests.op_laws import relative
from tests.strategies import whole_on
from tests.test_onnx import said
from tests.training import SGD, difference, train

BATCH = 4
HEAD = '<ir_version: 8, opset_import: ["" : 17]>\n'
# A text, and the shapes of its weights.
NETWORKS = {
    "products": (
        """products (float[N, 6, 5] x, float[N, 6, 6] near) => (float[N, 3] said) {
            a = MatMul (x, w1)
            b = MatMul (near, a)
            c = Relu (b)
            d = MatMul (c, w2)
            e = MatMul (near, d)
            f = ReduceMean <axes = [1], keepdims = 0> (e)
            said = MatMul (f, w3)
        }""",
        {"w1": (5, 8), "w2": (8, 8), "w3": (8, 3)},
    ),
    "token": (
        """token (float[N, 4, 6] x) => (float[N, 3] said) {
            count = Shape <start = 0, end = 1> (x)
            rest = Constant <value = int64[2] {1, 6}> ()
            shape = Concat <axis = 0> (count, rest)
            first = Expand (token, shape)
            a = Concat <axis = 1> (first, x)
            b = Add (a, places)
            c = MatMul (b, w1)
            zero = Constant <value = int64 {0}> ()
            d = Gather <axis = 1> (c, zero)
            said = MatMul (d, w2)
        }""",
        {"token": (1, 1, 6), "places": (1, 5, 6), "w1": (6, 8), "w2": (8, 3)},
    ),
    "behind": (
        """behind (float[N, 4, 6] x) => (float[N, 3] said) {
            a = Transpose <perm = [1, 0, 2]> (x)
            rows = Constant <value = int64[2] {-1, 6}> ()
            b = Reshape (a, rows)
            c = Gemm <transB = 1> (b, w1, bias1)
            apart = Constant <value = int64[3] {4, -1, 6}> ()
            d = Reshape (c, apart)
            e = Softmax (d)
            f = Reshape (e, rows)
            g = MatMul (f, w2)
            h = Add (g, bias2)
            wide = Constant <value = int64[3] {4, -1, 8}> ()
            i = Reshape (h, wide)
            j = Transpose <perm = [1, 0, 2]> (i)
            k = ReduceMean <axes = [1], keepdims = 0> (j)
            said = MatMul (k, w3)
        }""",
        {"w1": (6, 6), "bias1": (6,), "w2": (6, 8), "bias2": (8,), "w3": (8, 3)},
    ),
    "heads": (
        """heads (float[N, 4, 6] x) => (float[N, 3] said) {
            a = Transpose <perm = [1, 0, 2]> (x)
            apart = Constant <value = int64[3] {4, -1, 3}> ()
            b = Reshape (a, apart)
            c = Transpose <perm = [1, 0, 2]> (b)
            d = Transpose <perm = [1, 2, 0]> (b)
            e = MatMul (c, d)
            f = Softmax (e)
            g = MatMul (f, c)
            h = Transpose <perm = [1, 0, 2]> (g)
            rows = Constant <value = int64[2] {-1, 6}> ()
            i = Reshape (h, rows)
            j = Gemm <transB = 1> (i, w1, bias)
            wide = Constant <value = int64[3] {4, -1, 8}> ()
            k = Reshape (j, wide)
            l = ReduceMean <axes = [0], keepdims = 0> (k)
            said = MatMul (l, w2)
        }""",
        {"w1": (8, 6), "bias": (8,), "w2": (8, 3)},
    ),
    "begun": (
        """begun (float[N, 6] x) => (float[N, 3] said) {
            count = Shape <start = 0, end = 1> (x)
            rest = Constant <value = int64[1] {5}> ()
            shape = Concat <axis = 0> (count, rest)
            known = Constant <value = float[1, 5] {0.5, -1.0, 2.0, 0.25, 1.0}> ()
            state = Expand (known, shape)
            zero = Constant <value = float {0}> ()
            cell = Expand (zero, shape)
            a = MatMul (x, w1)
            b = Add (state, a)
            c = Sigmoid (b)
            d = Mul (cell, c)
            e = Add (d, c)
            f = Concat <axis = 1> (state, e)
            said = MatMul (f, w2)
        }""",
        {"w1": (6, 5), "w2": (10, 3)},
    ),
}


def written(name: str, path: Path) -> str:
    text, shapes = NETWORKS[name]
    return write(network(HEAD + text, **shapes), path / f"{name}.onnx")


@pytest.mark.parametrize("name", NETWORKS)
def test_all_that_is_done_for_each_sample_is_cut_along_samples(name: str, tmp_path: Path) -> None:
    path = written(name, tmp_path)
    graph = models.parse(path).graph(BATCH)
    assert {config.split.get("b") for config in data_parallel(graph, 2).values()} == {2}
    assert all(node.alignment.extents["b"] % BATCH == 0 for node in graph.nodes.values())
    # and no other axis is called so
    assert all(graph.tensors[t].axes[0] == "b" for t in graph.inputs)
    text, shapes = NETWORKS[name]
    proto = network(HEAD + text, **shapes)
    given = samples(proto, BATCH)
    assert relative(said(path, given, BATCH)[0], expected(proto, given)[0]) < 2e-6


def anyhow(graph: Graph, seed: int) -> Strategy:
    """Every node cut along an axis of its own choice, on processors in an order of its own."""
    rng, found = np.random.default_rng(seed), {}
    for name, node in graph.nodes.items():
        a = node.alignment
        free = [axis for axis in a.axes if axis not in a.frozen and a.extents[axis] > 1]
        procs = tuple(int(n) for n in rng.permutation(2))
        found[name] = Config({str(rng.choice(free)): 2}, procs=procs) if free else Config({}, 1, procs[:1])
    return Strategy(found, num_procs=2)


@pytest.mark.parametrize("name", NETWORKS)
def test_it_is_trained_alike_under_every_plan_and_in_microbatches(name: str, tmp_path: Path) -> None:
    path = written(name, tmp_path)
    model = models.parse(path)
    graph, rng = model.graph(BATCH, "float64"), np.random.default_rng(3)
    kinds = [graph.tensors[n] for n in graph.inputs]
    data = [
        {t.name: rng.normal(size=t.shape) if t.floating else rng.integers(0, 3, t.shape) for t in kinds}
        for _ in range(2)
    ]
    values = weights.load(path, model, graph)
    whole = train(graph, whole_on(graph), machine.local(1), data, values)
    plans = [Strategy(data_parallel(graph, 2), num_procs=2), anyhow(graph, 0), anyhow(graph, 1)]
    for plan in plans:
        for count in (1, 2):
            cut = msgspec.structs.replace(plan, microbatches=count)
            found = train(graph, cut, machine.local(2), data, values)
            assert relative(found.losses, whole.losses) < 1e-10
            assert all(difference(found.carried[n], whole.carried[n], 1.0) < 1e-9 for n in whole.carried)


def test_a_product_takes_as_long_however_it_is_written(tmp_path: Path) -> None:
    text, shapes = NETWORKS["products"]
    einsum = text
    for name in ("a", "d"):
        einsum = einsum.replace(f"MatMul (near, {name})", f'Einsum <equation = "bij,bjf->bif"> (near, {name})')
    on, taken = machine.parse("dgx-h100:nodes=1"), []
    for n, written_so in enumerate((text, einsum)):
        path = write(network(HEAD + written_so, **shapes), tmp_path / f"{n}.onnx")
        lowering = Lowering(models.parse(path).graph(64), on, SGD)
        seconds = {}
        for name, plan in seeds(lowering).items():
            tasks = lowering.lower(plan)
            seconds[name] = simulate(tasks, CostModel(on).picoseconds(tasks.cost_keys), on.engines).seconds
        taken.append(seconds)
    assert taken[0] == taken[1] and len(taken[0]) > 1


def test_whole_numbers_are_not_trained(tmp_path: Path) -> None:
    text = """net (int64[N, 3] fields) => (float[N, 4] said) {
        moved = Add (fields, offsets)
        rows = Gather (table, moved)
        dims = Constant <value = int64[1] {1}> ()
        said = ReduceSum <keepdims = 0> (rows, dims)
    }"""
    offsets = np.array([0, 11, 22])
    proto = network(HEAD.replace("17", "18") + text, table=(33, 4), offsets=offsets)
    path, given = write(proto, tmp_path / "net.onnx"), samples(proto, BATCH)
    graph = models.parse(f"{path}:loss=mse").graph(BATCH)
    assert [param.name for param in graph.params] == ["table"]
    assert relative(said(path, given, BATCH)[0], expected(proto, given)[0]) < 2e-6
