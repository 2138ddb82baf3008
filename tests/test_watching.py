"""Watching: where numbers stop being finite is told by operator, pass and sample, under any plan, and gradients have
the norms that whole ones have."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from castile.kernels import reference
from castile.kernels.table import Table
from castile.launch.__main__ import main
from castile.launch.jobs.execution import Execution, feed_from, prepare
from castile.launch.processes.ranks import UserError
from castile.launch.training import number_watch, setup
from castile.launch.training.number_watch import Watch
from castile.planner.cost import CostModel
from castile.planner.families.updates import Updates
from castile.planner.graph import Graph
from castile.planner.known.seeds import seeds
from castile.planner.lower import Lowering
from castile.planner.ops.sgd import Sgd
from castile.planner.strategy import Config, Strategy
from castile.runtime import machine
from castile.runtime.backends.numpy import watched
from castile.runtime.comm.local import LocalWorld
from castile.runtime.runner import run_local
from tests.mpi import mpirun_apart

SAMPLES = 8
SGD = Updates(Sgd())


def network() -> Graph:
    """A logarithm between two layers, and beside it places that are infinite and meant so."""
    g = Graph("strange", "float64")
    x = g.input("x", (SAMPLES, 6), "b i")
    label = g.input("label", (SAMPLES,), "b", "int32")
    y = g.log("logs", g.abs("abs", g.linear("fc", x, features=5, bias=False)))
    mask = g.compare("seen", x, ">", -100.0)
    hidden = g.masked("hidden", x, mask, float("-inf"))
    told = g.cross_entropy("ce", g.linear("head", y, features=4), label)
    g.minimise(g.add("loss", told, g.mean("m", g.exp("e", hidden))))
    return g


def plans(graph: Graph) -> dict[str, Strategy]:
    """Whole on one processor, samples apart, and features of the first layer apart."""
    whole = {name: Config() for name in graph.nodes}
    samples = {
        name: Config({"b": 2}, procs=(0, 1)) if "b" in node.alignment.extents else Config()
        for name, node in graph.nodes.items()
    }
    features = whole | {"fc": Config({"o": 2}, procs=(0, 1))}
    return {
        "whole": Strategy(whole, num_procs=2), "samples": Strategy(samples, num_procs=2),
        "features": Strategy(features, num_procs=2),
    }  # fmt: skip


def seen(graph: Graph, plan: Strategy, data: dict[str, np.ndarray], steps: int = 1) -> list[number_watch.Report]:
    """What two ranks see in the last of some steps."""
    on = machine.parse("local:procs=2")
    prepared = prepare(Lowering(graph, on, SGD), plan, CostModel(on))
    watches, executions = [], []
    for comm in LocalWorld(2).communicators:
        watches.append(Watch(graph, prepared))
        executions.append(Execution(graph, prepared, comm, [comm.rank], backend=watched(watches[-1])))
        executions[-1].initialise(0)
    for step in range(steps):
        for execution in executions:
            execution.feed(feed_from(data), 0.1, step)
        with np.errstate(all="ignore"):
            run_local([execution.runner for execution in executions])
        found = [watch.report() for watch in watches]
    return found


def batch() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {"x": rng.normal(size=(SAMPLES, 6)), "label": rng.integers(0, 4, SAMPLES).astype(np.int32)}


@pytest.mark.parametrize("which", ["whole", "samples", "features"])
def test_where_it_begins_is_told_under_any_plan(which: str) -> None:
    data = batch()
    data["x"][5] = 0
    graph = network()
    found = seen(graph, plans(graph)[which], data)
    trouble = number_watch.first(found)
    assert trouble is not None and trouble.sample == 5, found
    assert "'logs' (log) makes -inf at [5, 0] of 'abs' from 0 to " in trouble.words, trouble.words
    assert any(each.spoilt for each in found)


def test_a_microbatch_is_told_too() -> None:
    data, graph = batch(), network()
    data["x"][5] = 0
    found = seen(graph, Strategy(plans(graph)["whole"].configs, num_procs=2, microbatches=2), data)
    trouble = number_watch.first(found)
    assert trouble is not None and trouble.sample == 5
    told = "'head' (linear) makes nan at [1, 0] in 'head@1:2' of infinities in 'logs@1:2', where "
    assert trouble.words.startswith(told)
    assert "where 'logs' (log) makes -inf at [1, 0] in 'logs@1:2' of 'abs@1:2' from 0 to " in trouble.words


@pytest.mark.parametrize("which", ["whole", "samples", "features"])
def test_infinities_that_are_meant_are_no_trouble(which: str) -> None:
    data = batch()
    data["x"][3, 1] = -200
    graph = network()
    found = seen(graph, plans(graph)[which], data, 2)
    assert not any(each.spoilt for each in found), found
    origins = [each.origin for each in found if each.origin is not None]
    assert origins and all("'hidden'" in origin.words and not origin.is_nan for origin in origins)


def test_norms_are_those_of_whole_gradients_under_any_plan() -> None:
    graph, data = network(), batch()
    each = {name: number_watch.norms(seen(graph, plan, data, 2)) for name, plan in plans(graph).items()}
    assert set(each["whole"]) == {param.name for param in graph.params}
    assert list(each["whole"].values()) == sorted(each["whole"].values(), reverse=True)
    for found in each.values():
        assert found == pytest.approx(each["whole"], rel=1e-12)


@pytest.mark.parametrize("bucket_bytes", [0, 64, 2**20])
@pytest.mark.parametrize("microbatches", [1, 2])
def test_norms_are_those_of_gradients_where_parameters_are_gathered(microbatches: int, bucket_bytes: int) -> None:
    """What puts gathered parameters in their places writes these, and updates none."""
    graph, data, on = network(), batch(), machine.parse("local:procs=2")
    whole = number_watch.norms(seen(graph, plans(graph)["whole"], data, 2))
    for name, configs in seeds(Lowering(graph, on, SGD, microbatches=microbatches)).items():
        plan = Strategy(configs.configs, num_procs=2, microbatches=microbatches, bucket_bytes=bucket_bytes)
        assert number_watch.norms(seen(graph, plan, data, 2)) == pytest.approx(whole, rel=1e-9), name


NET = """
from castile.planner.graph import Graph


def build(batch=None, dtype="float32"):
    g = Graph("net", dtype)
    b = batch or 16
    image, label = g.input("image", (b, 1, 8, 8), "b c h w"), g.input("label", (b,), "b", "int32")
    x = g.log("logs", g.linear("fc", g.reshape("flat", image, "b c h w -> b (c h w)"), features=6))
    g.minimise(g.cross_entropy("loss", g.linear("head", x, features=10), label))
    return g
"""
LINE = ("--data", "digits", "--search", "data_parallel", "--steps", "6")


def test_a_run_ends_with_operator_and_sample(alone: Path, capsys) -> None:
    Path("net.py").write_text(NET)
    assert main(["train", "net.py", *LINE]) == 2
    assert capsys.readouterr().err.endswith(", or with --watch, which tells where they begin\n")
    assert main(["train", "net.py", *LINE, "--watch"]) == 2
    err = capsys.readouterr().err
    assert "castile: step 1: the loss is not a finite number: 'logs' (log) makes nan at [0, " in err
    assert " of 'fc' from -" in err and ", counted from 0: mend the network there, or " in err


@pytest.mark.mpi
def test_ranks_end_with_one_sentence(alone: Path) -> None:
    Path("net.py").write_text(NET)
    status, _, err = mpirun_apart(2, "-m", "castile", "train", "net.py", *LINE, "--watch", timeout=300)
    assert status == 2 and err.count("castile: step ") == 1, err
    assert "castile: step 1: the loss is not a finite number: 'logs' (log) makes nan at [" in err


def test_gradients_are_recorded_and_told(alone: Path, capsys) -> None:
    words = ("train", "mlp:width=8", *LINE, "--json")
    assert main([*words, "--watch", "--metrics", "m.jsonl"]) == 0
    facts = json.loads(capsys.readouterr().out)
    records = [json.loads(line) for line in Path("m.jsonl").read_text().splitlines()]
    steps = [record for record in records if record["kind"] == "step"]
    assert len(steps) == 6 and steps[-1]["gradients"] == facts["gradients"] and "fc1.weight" in facts["gradients"]
    assert main(list(words)) == 0
    plain = json.loads(capsys.readouterr().out)
    assert plain["losses"] == facts["losses"] and not plain["gradients"]


def test_norms_are_those_that_clipping_sees(alone: Path, capsys) -> None:
    """In half precision too, where the loss is scaled."""
    for dtype, off in (("float64", 1e-6), ("float16", 1e-2)):
        file = f"{dtype}.jsonl"
        words = ("--watch", "--clip", "1e9", "--dtype", dtype, "--metrics", file)
        assert main(["train", "mlp:width=8", *LINE, *words]) == 0
        records = [json.loads(line) for line in Path(file).read_text().splitlines()]
        steps = [record for record in records if record["kind"] == "step" and record["norm"] is not None]
        for record in steps:
            whole = sum(value**2 for value in record["gradients"].values()) ** 0.5
            assert whole == pytest.approx(record["norm"], rel=off), dtype
        assert steps


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_attention_of_scores_beyond_all_bounds_is_finite(dtype: str) -> None:
    """A row of such scores sees one key alone, whatever is rounded of them."""
    rng = np.random.default_rng(0)
    q, kk, v, dy = (rng.normal(size=(2, 9, 8)).astype(dtype) for _ in range(4))
    q, kk = q * q.dtype.type(1e9), kk * q.dtype.type(1e9)
    params = {"heads": 2, "causal": True, "offset": 0, "scale": 0.37}
    y, lse = reference.attention(q, kk, v, **params)
    table = Table("numpy")
    outs = np.empty_like(y), np.empty_like(lse)
    scratch = np.empty(1 << 20, np.uint8)
    table.bind("attention", (q, kk, v), outs, params, scratch, False)()
    np.testing.assert_allclose(outs[0], y, rtol=1e-5)
    grads = tuple(np.empty_like(x) for x in (q, kk, v))
    table.bind("attention_grad", (dy, q, kk, v, *outs), grads, params, scratch, False)()
    assert all(np.isfinite(x).all() for x in grads)


def test_on_gpus_it_is_refused(monkeypatch) -> None:
    command = SimpleNamespace(watch=True)
    with pytest.raises(UserError, match="--watch: it looks at what CPUs make"):
        setup.check_watched(command, SimpleNamespace(backend="cuda"))
