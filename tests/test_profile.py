"""Profiling: every kind of task is measured once, on real numbers, and kept so that plans are priced by it."""

import json
import re
from contextlib import nullcontext
from dataclasses import replace
from itertools import count

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from castile.launch import models
from castile.launch.__main__ import main
from castile.launch.jobs import jobs
from castile.launch.jobs.execution import Execution, Prepared
from castile.launch.measuring import isolation, task_timing
from castile.launch.measuring.isolation import Isolated, is_compute, without_reuse
from castile.launch.measuring.measure import sample_feed
from castile.launch.processes.ranks import UserError
from castile.planner import strategy as strategies
from castile.planner.cost import CostModel
from castile.planner.evaluation.sizes import SIZES
from castile.planner.families.updates import Updates
from castile.planner.known.seeds import seeds
from castile.planner.lower import Lowering
from castile.planner.op import find
from castile.runtime import machine as machines
from castile.runtime.memory import ALIGNMENT, pack
from castile.runtime.task import Kind
from tests import homes, standing
from tests.effort import rare
from tests.handmade import in_order, random_graph

UNITS = ("seconds", "bytes", "samples", "per_second", "share")


@pytest.fixture(autouse=True)
def _home(tmp_path, monkeypatch):
    for name, value in homes.make(tmp_path).items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)


def told(capsys, *words):
    assert main(["profile", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def lowered(model, num_procs, name="data_parallel", size=0):
    named = models.parse(model)
    machine = machines.local(num_procs)
    lowering = Lowering(named.graph(), machine, Updates(find("sgd")(momentum=named.recipe.momentum)))
    plan = msgspec.structs.replace(seeds(lowering)[name], bucket_bytes=size)
    return plan, lowering.lower(plan)


@pytest.mark.parametrize(
    "words", ["profile", "train --steps 1 --search data_parallel", "validate --plans 4 --rounds 2"]
)
def test_what_runs_a_model_tells_its_settings_with_its_name(words, capsys):
    command, *options = words.split()
    assert main([command, "mlp:width=8", *options, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["model"] == "mlp:width=8"


def test_every_kind_of_task_is_measured_once_and_then_priced_by_it(capsys):
    facts = told(capsys, "mlp", "--profile", "here.db")
    _, tasks = lowered("mlp", 1)
    each = [lowered("mlp", 1, size=size)[1] for size in (0, *SIZES)]
    every = {some.cost_keys[k] for some in each for k in some.cost.tolist()}
    assert facts["num_keys"] == facts["num_new_keys"] == len(every) > len(tasks.cost_keys)
    assert {(key["shapes"], f"{key['op']}.{key['pass']}") for key in facts["keys"]} == {
        (key.shapes, key.name) for key in every
    }
    own = [key for key in facts["keys"] if key["plan"] == "data_parallel"]
    assert sum(key["num_in_step"] for key in own) == tasks.num_tasks
    assert sum(key["step_share"] for key in own) == pytest.approx(1)
    assert all(key["seconds"] > 0 and key["spread_seconds"] >= 0 for key in facts["keys"])
    shares = [key["step_share"] for key in facts["keys"]]
    assert shares == sorted(shares, reverse=True)
    job = jobs.start("mlp", "local", None, "here.db")
    assert CostModel(job.machine, job.snapshot).sources(every) == {"measured": len(every)}


@pytest.mark.parametrize(("rate", "is_doubted"), [(1e6, True), (1e15, False)])
def test_a_rate_that_is_out_of_date_is_found_out(rate, is_doubted, tmp_path, capsys):
    homes.make(tmp_path, figures=msgspec.structs.replace(homes.FIGURES, float32_flops_per_second=rate))
    assert main(["profile", "mlp:width=16"]) == 0
    assert ("`castile doctor --measure-again`" in capsys.readouterr().out) is is_doubted


def test_what_is_known_is_skipped_unless_asked_again(capsys):
    first = told(capsys, "mlp", "--profile", "here.db")
    second = told(capsys, "mlp", "--profile", "here.db")
    assert second["num_new_keys"] == 0 and second["num_keys"] == first["num_keys"]
    by_key = [{(k["op"], k["pass"], k["shapes"]): k["seconds"] for k in facts["keys"]} for facts in (first, second)]
    assert by_key[0] == by_key[1]
    wider = told(capsys, "mlp:layers=3", "--profile", "here.db")
    new = [key for key in wider["keys"] if key["is_new"]]
    assert new and all(key["op"] == "sgd" and "*" in key["shapes"] for key in new), "only more updates together are new"
    third = told(capsys, "mlp", "--profile", "here.db", "--again")
    assert third["num_new_keys"] == third["num_keys"]


def test_a_plan_of_a_file(capsys, tmp_path):
    plan, tasks = lowered("convnet", 1)
    (tmp_path / "plan.json").write_bytes(strategies.encode(plan))
    facts = told(capsys, "convnet", "--plan", "plan.json", "--profile", "here.db")
    assert facts["plans"] == ["plan.json"] and facts["num_keys"] == len(tasks.cost_keys)


def test_numbers_are_told_with_their_units(capsys):
    facts = told(capsys, "mlp", "--profile", "here.db")
    for tree in (facts, *facts["keys"]):
        for name, value in tree.items():
            if isinstance(value, float) or (isinstance(value, int) and not isinstance(value, bool)):
                assert name.endswith(UNITS) or name.startswith("num_"), name
    whole: dict[str, float] = {}
    of = facts["processor"]
    for key in facts["keys"]:
        assert key["bytes_per_second"] * key["seconds"] == pytest.approx(key["size_bytes"])
        reached = [key[rate] / of[rate] for rate in ("flops_per_second", "bytes_per_second")]
        assert key["roofline_share"] == pytest.approx(max(reached))
        if key["num_in_step"]:
            step = key["num_in_step"] * key["seconds"] / key["step_share"]
            assert step == pytest.approx(whole.setdefault(key["plan"], step)), "of one step all kinds are shares"
    (key,) = (k for k in facts["keys"] if (k["op"], k["pass"]) == ("linear", "F") and "128x64;" in k["shapes"])
    assert key["flops_per_second"] * key["seconds"] == pytest.approx(2 * 64 * 64 * 128)
    assert key["size_bytes"] == 4 * (64 * 64 + 128 * 64 + 128 + 64 * 128)


def test_the_table_holds_what_people_look_for(capsys):
    assert main(["profile", "mlp", "--profile", "here.db"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"share +count +op +pass +shapes +time +\+- +GFLOP/s +GB/s +roofline", out)
    assert re.search(r"linear +F +64x64;128x64;128;64x128 +[\d.]+ us", out)
    assert "measured now, 0 known before" in out and "here.db" in out


def test_a_model_that_no_data_set_fits_is_measured_on_random_numbers(capsys, tmp_path):
    (tmp_path / "odd.py").write_text(
        "from castile.planner.graph import Graph\n"
        "def build(batch=None, dtype='float32', *, width: int = 5):\n"
        "    g = Graph('odd', dtype)\n"
        "    x = g.input('x', (batch or 4, width), 'b i')\n"
        "    t = g.input('t', (batch or 4,), 'b', 'int32')\n"
        "    g.minimise(g.cross_entropy('loss', g.linear('fc', x, features=3), t))\n"
        "    return g\n"
    )
    facts = told(capsys, "odd.py:width=7", "--profile", "here.db", "--batch", "6")
    assert facts["batch_samples"] == 6 and any("6x7" in key["shapes"] for key in facts["keys"])


@given(st.integers(0, 50), st.integers(1, 4))
def test_apart_no_two_buffers_share_a_byte(seed, num_procs):
    graph = random_graph(seed, num_procs, 30, n=9)
    packing = without_reuse(graph)
    assert (packing.offset % ALIGNMENT == 0).all() and (packing.offset >= 0).all() and len(packing.edges) == 0
    assert (packing.peak_bytes >= pack(graph, in_order(graph)).live_bytes).all()
    for proc in range(num_procs):
        mine = np.flatnonzero(graph.buffer_proc == proc)
        mine = mine[np.argsort(packing.offset[mine])]
        ends = packing.offset[mine] + graph.buffer_bytes[mine]
        assert (ends[:-1] <= packing.offset[mine][1:]).all()
        lasting = graph.buffer_first[mine] < 0
        assert not lasting[np.argmin(lasting) :].any(), "persistent buffers lie below all others"
        for task in graph.tasks_of(proc).tolist():
            if graph.private_bytes[task] and graph.kind[task] < Kind.MOVE:
                assert packing.private_offset[task] >= ends.max(initial=0)
                assert packing.private_offset[task] + graph.private_bytes[task] <= packing.peak_bytes[proc]


def test_a_step_apart_computes_the_same_bits():
    job = jobs.start("convnet", "local", None, "")
    prepared = job.prepare(seeds(job.lowering)["data_parallel"])
    losses = []
    for packing in (prepared.packing, without_reuse(prepared.tasks)):
        execution = Execution(job.graph, Prepared(prepared.tasks, prepared.simulated, packing), job.comm, job.procs)
        execution.initialise(0)
        execution.feed(sample_feed(job), 0.1)
        for _ in range(3):
            execution.runner.run()
        losses.append(execution.output(job.graph.loss).tobytes())
    assert losses[0] == losses[1]


def test_what_lacks_a_byte_to_be_profiled_is_told_in_bytes():
    job = jobs.start("mlp", "local", 4, "")
    plan = seeds(job.lowering)["data_parallel"]
    need = int(without_reuse(job.prepare(plan).tasks).peak_bytes[0])
    for capacity in (need, need - 1):
        sizes = {"memory_bytes": capacity, "reserved_bytes": 0}
        processors = tuple(msgspec.structs.replace(one, **sizes) for one in job.machine.processors)
        job.machine = replace(job.machine, processors=processors)
        lacks = pytest.raises(UserError, match=f"processor 0 then needs {need:,} bytes but has {capacity:,}: take a ")
        with lacks if capacity < need else nullcontext():
            Isolated(job, "plan", plan, sample_feed(job), 1e-6)


@pytest.mark.parametrize("model", ["convnet", *rare("mlp", "gpt:layers=1,width=32,seq=16")])
def test_repeated_tasks_meet_real_numbers(model):
    job = jobs.start(model, "local", 4, "")
    isolated = Isolated(job, "plan", seeds(job.lowering)["data_parallel"], sample_feed(job), 1e-6)
    tasks = isolated.tasks
    kernels = [t for t in range(tasks.num_tasks) if is_compute(tasks, t)]
    assert len(kernels) == len(isolated.mine)
    for task in kernels:
        lasted = isolated.repeat([task], 0)
        assert len(lasted) >= 5 and (lasted > 0).all()
    (memory,) = isolated.runner._backends
    for task in kernels:
        arrays = [memory._view(view) for view in tasks.tasks[task].views]
        assert any(array.any() for array in arrays), f"{tasks.tasks[task].name} meets zeros alone"
        assert all(np.isfinite(array).all() for array in arrays), tasks.tasks[task].name


def test_tasks_are_run_in_turns_for_as_long_as_asked(monkeypatch):
    job = jobs.start("mlp", "local", 4, "")
    isolated = Isolated(job, "plan", seeds(job.lowering)["data_parallel"], sample_feed(job), 1e-6)
    two = isolated.mine[:2].tolist()
    assert len(isolated.repeat(two, 0)) == 10
    # a clock on which a microsecond goes by between two looks, of which there are five to two calls
    monkeypatch.setattr(isolation, "perf_counter_ns", count(0, 1000).__next__)
    lasted = isolated.repeat(two, 10_000_000)
    assert set(lasted) == {1000} and lasted.sum() == pytest.approx(4_000_000, rel=0.01)
    assert len(isolated.repeat([], 10**9)) == 0


def test_transfers_that_run_at_once_share_no_processor():
    _, tasks = lowered("mlp", 4, "one_weird_trick")
    transfers = [k for k, key in enumerate(tasks.cost_keys) if key.link]
    assert transfers
    for k in transfers:
        which = np.flatnonzero(tasks.cost == k)
        chosen = task_timing.disjoint(tasks, which)
        procs = [p for task in chosen for p in tasks.tasks[task].procs]
        assert chosen and len(set(procs)) == len(procs) and set(chosen) <= set(which.tolist())
        left = [t for t in which.tolist() if not set(tasks.tasks[t].procs) & set(procs)]
        assert not left, "one more could have run"


@pytest.mark.mpi
def test_two_ranks_measure_kernels_and_transfers_together(tmp_path):
    words = ["profile", "mlp", "--profile", str(tmp_path / "here.db"), "--json"]
    status, out, err = standing.run(2, "-m", "castile", *words)
    assert status == 0, err
    facts = json.loads(out)
    assert facts["plans"][:2] == ["data_parallel", "one_processor"]
    of_plan = {name: [k for k in facts["keys"] if k["plan"] == name] for name in facts["plans"]}
    forms = {key["op"] for key in facts["keys"] if key["link"]}
    assert {"all_reduce", "move"} <= forms, forms
    assert all(key["num_members"] == 2 for key in facts["keys"] if key["link"])
    # Under data parallelism both ranks do the same; the only rank at work in one_processor has idle neighbours.
    kernels = {name: {k["other_ranks"] for k in of_plan[name] if not k["link"]} for name in of_plan}
    assert "idle" not in kernels["data_parallel"] and kernels["one_processor"] <= {"idle"}
    assert facts["num_new_keys"] == facts["num_keys"] == len(facts["keys"])
    status, out, err = standing.run(2, "-m", "castile", *words)
    assert status == 0 and json.loads(out)["num_new_keys"] == 0, err
    # What was measured prices a plan.
    words = ["plan", "mlp", "--search", "data_parallel", "--profile", str(tmp_path / "here.db"), "--json"]
    status, out, err = standing.run(2, "-m", "castile", *words)
    assert status == 0 and set(json.loads(out)["prices"]) == {"measured"}, out + err


@pytest.mark.mpi
def test_more_ranks_than_cores_finish(tmp_path):
    # Of one plan, as ranks that take turns measure for long: one that sums over all of them, and moves between two.
    model, plan = "mlp:layers=1,width=16", str(tmp_path / "plan.json")
    assert main(["plan", model, "--machine", "local:procs=4", "--search", "fsdp", "--out", plan]) == 0
    words = ["profile", model, "--plan", plan, "--profile", str(tmp_path / "here.db"), "--json"]
    status, out, err = standing.run(4, "-m", "castile", *words, timeout=180)
    assert status == 0, err
    facts = json.loads(out)
    assert facts["num_ranks"] == 4 and all(key["seconds"] > 0 for key in facts["keys"])
    assert {key["num_members"] for key in facts["keys"] if key["link"]} >= {2, 4}
