"""Profiling beyond known plans: every split and link, what a run that was broken off leaves, tuning, the picture."""

import json
import math
import random
import re
import signal
import xml.etree.ElementTree as ElementTree
from contextlib import nullcontext
from itertools import product
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import pytest

from castile.kernels import choice
from castile.kernels import tuning as kernel_tuning
from castile.kernels.choice import Choice, Operands
from castile.kernels.table import Table
from castile.launch import models
from castile.launch.__main__ import main
from castile.launch.here import gpus
from castile.launch.jobs import jobs, kernel_choices
from castile.launch.jobs.jobs import recipe_updates
from castile.launch.measuring import coverage, links, profile_report, task_timing, tuning
from castile.launch.measuring.isolation import Isolated, without_reuse
from castile.launch.measuring.measure import sample_feed
from castile.launch.pictures import roofline
from castile.planner.choices.space import space_of
from castile.planner.cost import CostModel
from castile.planner.costs.database import Database, Way
from castile.planner.costs.snapshot import Environment, Measured, Snapshot, snapshot_of
from castile.planner.known.seeds import seeds, stamped
from castile.planner.lower import Lowering
from castile.runtime import machine as machines
from castile.runtime.comm.local import LocalWorld
from castile.runtime.runner import Runner, run_local
from castile.runtime.task import AT_ONCE, CostKey
from castile.runtime.timeline import Timeline
from tests import homes
from tests.effort import rare
from tests.test_gpus import host_with_gpus

MODELS = ("mlp:layers=1,width=24", "convnet", "gpt:layers=1,width=32,seq=16", "lstm:layers=1")


@pytest.fixture(autouse=True)
def _home(tmp_path, monkeypatch):
    for name, value in homes.make(tmp_path).items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(choice, "_chosen", {})


def lowering_of(model, num_procs):
    named = models.parse(model)
    return Lowering(named.graph(), machines.local(num_procs), recipe_updates(named.recipe))


def kernels(tasks):
    """The kinds of tasks that are passes of operators, on unbroken arrays."""
    used = {tasks.cost_keys[k] for k in tasks.cost}
    return {key.dense or key for key in used if not key.link and "." in key.name}


@pytest.mark.parametrize(
    ("model", "num_procs"),
    [(MODELS[0], 4), *product(MODELS[1:3], [2]), *rare((MODELS[0], 2), *product(MODELS[1:3], [4]))],
)
def test_all_has_every_kind_of_task_of_any_plan_from_the_spaces(model, num_procs):
    lowering, rng = lowering_of(model, num_procs), random.Random(0)
    covered = set().union(*(kernels(lowering.lower(plan)) for plan in coverage.plans(lowering).values()))
    for _ in range(10):
        configs = {name: space_of(node, num_procs).draw(rng) for name, node in lowering.graph.nodes.items()}
        found = kernels(lowering.lower(stamped(lowering, configs, "drawn")))
        assert found <= covered, sorted(key.shapes for key in found - covered)


def told(capsys, *words):
    assert main(["profile", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_run_that_was_broken_off_is_gone_on_with(capsys, monkeypatch):
    measured, measure = [], task_timing.measure

    def breaks(job, bench, k):
        if len(measured) == 3:
            signal.raise_signal(signal.SIGTERM)
        measured.append(bench.tasks.cost_keys[k])
        return measure(job, bench, k)

    with monkeypatch.context() as patch:
        patch.setattr(task_timing, "measure", breaks)
        assert main(["profile", MODELS[0], "--all", "--profile", "here.db"]) == 128 + signal.SIGTERM
    assert "kept in here.db, and the same command goes on from there" in capsys.readouterr().err
    facts = told(capsys, MODELS[0], "--all", "--profile", "here.db")
    assert facts["num_new_keys"] == facts["num_keys"] - 3
    assert told(capsys, MODELS[0], "--all", "--profile", "here.db")["num_new_keys"] == 0


def test_plans_that_are_alike_are_told_once(capsys):
    facts = told(capsys, MODELS[0], "--profile", "here.db")
    plans = ["fsdp", "fsdp in buckets of 1.0 MiB", "all splits, 2 of 9", "all splits, 9 of 9", "my, plan.json"]
    profile_report.tell(facts | {"plans": plans}, False)
    assert " in the steps of fsdp, all splits, my, plan.json\n" in capsys.readouterr().out


def test_all_and_a_plan_are_not_asked_for_together(capsys):
    assert main(["profile", "mlp", "--all", "--plan", "x.json"]) == 2
    assert "--all" in capsys.readouterr().err


@pytest.mark.parametrize("num_procs", [2, 3, 4])
def test_exchanges_are_the_transfers_that_they_say(num_procs):
    machine, done = machines.local(num_procs), set()
    for exchange in links.exchanges(machine, "float32"):
        if exchange.nbytes > 4096:
            continue
        graph = links.graph_of(machine, exchange)
        order = np.arange(graph.num_tasks)
        runners = [Runner(graph, Timeline(order, order, order + 1), without_reuse(graph), [comm.rank], comm)
                   for comm in LocalWorld(num_procs).communicators]  # fmt: skip
        sent = {}
        for runner in runners:
            for (name, _, proc), array in runner.persistent("input").items():
                array[...] = np.random.default_rng(proc).integers(0, 9, array.shape)
                sent[name, proc] = array.copy()
        run_local(runners)
        for task in graph.tasks:
            assert len(task.comms) == exchange.num == graph.cost_keys[0].num_begun
            for n, comm in enumerate(task.comms):
                check(exchange, task, [sent.get((f"send{task.index}.{n}", proc)) for proc in task.procs],
                      [held(runners[proc], view) for proc, view in zip(task.procs, comm.receive)])  # fmt: skip
        done.add((exchange.form, len(exchange.groups[0]), exchange.num))
    one = {(form, size, 1) for form in links.FORMS for size in {2, num_procs} if form != "move" or size == 2}
    several = {(form, size, num) for form in AT_ONCE for size in {2, num_procs} for num in links.NUMBERS}
    assert done == one | several


@pytest.mark.parametrize("form", links.FORMS)
def test_what_is_sent_was_just_written_each_time(form):
    """As in a step: what only other cores have read since is there in half the time."""
    machine, seen = machines.local(2), []
    comm = LocalWorld(1).communicators[0]
    job = SimpleNamespace(machine=machine, comm=comm, procs=(0, 1), backend="numpy")
    made = links.bench(job, links.Exchange(form, ((0, 1),), 64, "float32"))

    def meet():
        seen.append([array.copy() for array in made.sent])
        for array in made.sent:
            array.fill(9)

    comm.barrier = meet
    made.exchange([0], 3)
    assert len(seen) == 3 and all(len(arrays) == (1 if form in ("move", "broadcast") else 2) for arrays in seen)
    assert all((array == 1).all() for arrays in seen for array in arrays)


def test_a_processor_alone_exchanges_nothing():
    assert not list(links.exchanges(machines.local(1), "float32"))


def held(runner, view):
    return None if view is None else runner._backends[0]._view(view)


def check(exchange, task, sent, got):
    size = len(task.procs)
    piece = exchange.elements // size
    parts = [slice(n * piece, (n + 1) * piece) for n in range(size)]
    for n, array in enumerate(got):
        if exchange.form in ("move", "broadcast"):
            want = sent[0] if n else None
        elif exchange.form in ("all_reduce", "reduce_scatter"):
            want = sum(sent) if exchange.form == "all_reduce" else sum(sent)[parts[n]]
        else:
            want = np.concatenate(sent if exchange.form == "all_gather" else [one[parts[n]] for one in sent])
        assert array is None if want is None else np.array_equal(array, want), exchange


def test_what_links_measure_prices_the_transfers_of_plans():
    lowering = lowering_of("mlp", 4)
    machine = lowering.machine
    measured = [Measured(links.key_of(machine, x), 1e-6 * (1 + x.nbytes * x.num) + 2e-3 * (x.num - 1))
                for x in links.exchanges(machine, "float32")]  # fmt: skip
    assert len({row.key for row in measured}) == len(measured)
    cost = CostModel(machine, snapshot_of(Environment("cpu"), measured))
    for form, nbytes, members in (("all_reduce", 5000, 4), ("move", 77_000, 2), ("broadcast", 2**20 + 4, 4)):
        link = machine.link(range(members)).name
        price = cost.seconds(CostKey(form, "", "float32", 0, nbytes, link, members))
        assert price.source in ("interpolated", "learned") and price.seconds == pytest.approx(1e-6 * nbytes, rel=0.1)
    one = CostKey("all_gather", "", "float32", 0, 7000, machine.link(range(4)).name, 4)
    price = cost.seconds(one.begun_with([one] * 9))
    assert price.source == "interpolated" and price.seconds == pytest.approx(0.07 + 9 * 2e-3, rel=0.1)
    families = {(row.key.name, row.key.link, row.key.members) for row in measured}
    for plan in seeds(lowering).values():
        used = {key for key in lowering.lower(plan).cost_keys if key.link and key.members in (2, 4)}
        assert {(key.name, key.link, key.members) for key in used} <= families


def test_by_steps_tasks_are_timed_where_they_run():
    job = jobs.start(MODELS[0], "local", 4, "")
    isolated = Isolated(job, "plan", seeds(job.lowering)["data_parallel"], sample_feed(job), 1e-6)
    steps = isolated.runner.num_steps
    isolated.by_steps = True
    for chosen in (isolated.mine[:2].tolist(), isolated.mine.tolist(), []):
        lasted = isolated.repeat(chosen, 10**9)
        assert len(lasted) == 15 * len(chosen) and (lasted >= 0).all() and (lasted > 0).any() == bool(chosen)
    spans = isolated.exchange(isolated.mine[:2].tolist(), 3)
    assert spans.shape == (15, 3) and (spans[:, 0] < spans[:, 1]).all() and (np.diff(spans[:, 0]) > 0).all()
    assert isolated.exchange([], 3).shape == (15, 3)
    assert isolated.runner.num_steps == steps + 15, "all ranks take the same steps, whatever is asked of them"


# Tuning.


@pytest.mark.parametrize("model", MODELS)
def test_what_is_tuned_is_what_is_looked_up(model, monkeypatch):
    job, looked = jobs.start(model, "local", 4, ""), set()
    monkeypatch.setattr(choice, "find", lambda *call: looked.add(choice.key(choice.kernel_call(*call))))
    for name, plan in seeds(job.lowering).items():
        prepared = job.prepare(plan)
        job.execute(prepared, 0)
        graph = prepared.tasks
        tuned = set(tuning.names(Table("numpy"), graph, range(graph.num_tasks)))
        assert tuned and tuned <= looked, name
    assert all(choice.key(choice.call_of(text)) == text for text in looked)


class Meter:
    """A clock by which the last way of each call is the fastest."""

    def __init__(self):
        self.timed, self.calls = [], 0

    def place(self):
        return nullcontext()

    def operands(self, call):
        self.timed.append(choice.key(call))
        self.calls = 0
        return [Operands((), ())]

    def seconds(self, calls):
        self.calls += 1
        return 1.0 / self.calls


class Ranks:
    """A communicator of two ranks of which the other has the same tasks."""

    size = 2

    def __init__(self, rank, others):
        self.rank, self.others = rank, iter(others)

    def gather_bytes(self, part):
        if self.rank:
            return None
        other = next(self.others)
        return [part, part if other is None else other]


class Tuned:
    """A job on GPUs that are not there."""

    backend, leads, procs, ways = "cuda", True, (0,), ()
    snapshot = Snapshot(Environment("gpu", kernels="abc"))

    def __init__(self, comm, database):
        self.comm, self.database = comm, database

    def agree(self, make):
        return make()


@pytest.fixture
def table(monkeypatch):
    """Triton's table, which here binds nothing, with two ways for products and one for all else."""
    pytest.importorskip("triton")
    made = tuning._table("cuda")
    offers = [Choice("triton", "[1]"), Choice("cupy")]
    monkeypatch.setattr(made, "choices", lambda name, *rest: offers if name == "contract" else [], raising=False)
    monkeypatch.setattr(made, "bind", lambda *call: call, raising=False)
    return made


def test_calls_with_a_choice_are_timed_once_kept_and_taken(table, tmp_path):
    lowering = lowering_of(MODELS[0], 1)
    graph = lowering.lower(seeds(lowering)["data_parallel"])
    calls = {name for name in tuning.names(table, graph, range(graph.num_tasks)) if json.loads(name)[0] == "contract"}
    database, meter = Database(tmp_path / "here.db"), Meter()
    job = Tuned(LocalWorld(1).communicators[0], database)
    assert tuning.tune(job, [(graph, None)] * 2, False, meter) == len(calls) > 2
    assert sorted(meter.timed) == sorted(calls)
    kept = kernel_choices.by_call(database.ways(job.snapshot.environment))
    assert set(kept) == calls and all([way.form for way in timed] == ["cupy", "triton"] for timed in kept.values())
    assert {call: str(taken) for call, taken in choice._chosen.items()} == dict.fromkeys(calls, "cupy")
    assert tuning.tune(job, [(graph, None)], False, meter) == 0
    assert tuning.tune(job, [(graph, None)], True, meter) == len(calls) and len(job.ways) == 2 * len(calls)
    task = next(t for t in range(graph.num_tasks) if "linear.W" in graph.cost_keys[graph.cost[t]].name)
    forms = {taken.kernel: taken.form for taken in tuning.kernels_of(job, graph, task)}
    assert forms["contract"] == "cupy" and set(forms.values()) == {"cupy", "triton"}


def test_calls_of_other_kinds_of_tasks_are_not_timed(table, tmp_path):
    lowering, meter = lowering_of(MODELS[0], 1), Meter()
    graph = lowering.lower(seeds(lowering)["data_parallel"])
    task = next(t for t in range(graph.num_tasks) if "linear.W" in graph.cost_keys[graph.cost[t]].name)
    job = Tuned(LocalWorld(1).communicators[0], Database(tmp_path / "here.db"))
    assert tuning.tune(job, [(graph, {graph.cost_keys[graph.cost[task]]})], False, meter) == 1
    assert set(meter.timed) < set(tuning.names(table, graph, [task]))


def test_ranks_share_the_calls_and_keep_what_all_found(table, tmp_path):
    lowering = lowering_of(MODELS[0], 1)
    graph = lowering.lower(seeds(lowering)["data_parallel"])
    calls = sorted(n for n in tuning.names(table, graph, range(graph.num_tasks)) if json.loads(n)[0] == "contract")
    theirs = calls[1::2]
    answers = [
        json.dumps([{"call": name, "form": "triton", "setting": "[9]", "seconds": 0.1}]).encode() for name in theirs
    ]
    meter, database = Meter(), Database(tmp_path / "here.db")
    job = Tuned(Ranks(0, [None, *answers, b"[]"]), database)
    tuning.tune(job, [(graph, None)], False, meter)
    assert meter.timed == calls[::2]
    taken = {call: str(found) for call, found in choice._chosen.items()}
    assert taken == {name: "triton [9]" if name in theirs else "cupy" for name in calls}
    assert {way.call for way in database.ways(job.snapshot.environment)} == set(calls)


def test_the_start_says_how_many_calls_were_measured(table, tmp_path):
    lowering = lowering_of(MODELS[0], 1)
    graph = lowering.lower(seeds(lowering)["data_parallel"])
    calls = [name for name in tuning.names(table, graph, range(graph.num_tasks)) if json.loads(name)[0] == "contract"]
    job, num = Tuned(LocalWorld(1).communicators[0], Database(tmp_path / "here.db")), len(set(calls))
    found = [tuning.settings_line(job, graph, "do this")]
    for known in (calls[:1], calls):
        job.ways = tuple(Way(name, "cupy", "", 1.0) for name in {*known, "another"})
        found.append(tuning.settings_line(job, graph, "do this"))
    assert [re.findall(r"\d+", line) for line in found] == [[f"{num}"] * 2, [f"{num - 1}", f"{num}"], [f"{num}"]]
    assert [line.endswith("do this") for line in found] == [True, True, False]
    job.backend = "numpy"
    assert tuning.settings_line(job, graph, "do this") == ""


def test_a_job_takes_what_its_database_knows(monkeypatch):
    job = jobs.start(MODELS[0], "local", None, "here.db")
    Database("here.db").add_ways(job.snapshot.environment, [Way("a", "x", "", 2.0), Way("a", "y", "[1]", 1.0)])
    assert [way.form for way in jobs.start(MODELS[0], "local", None, "here.db").ways] == ["y", "x"]
    assert choice._chosen == {"a": Choice("y", "[1]")}


# The report and its picture.


def test_kernels_are_told_with_each_kind_of_task(capsys):
    facts = told(capsys, MODELS[0], "--profile", "here.db")
    of = {(key["op"], key["pass"]): [kernel["kernel"] for kernel in key["kernels"]] for key in facts["keys"]}
    assert of["linear", "F"] == ["contract_pointwise"]
    assert of["linear", "B"] == ["contract"] and of["sgd", "F"] == ["sgd"]
    assert {kernel["form"] for key in facts["keys"] for kernel in key["kernels"]} <= {"numpy", "reference"}
    assert facts["num_tuned_calls"] == 0


def test_dots_of_the_picture_lie_under_the_roof_as_far_as_they_stay_behind():
    rng = np.random.default_rng(0)
    peak, rate, keys = 3e11, 2e10, []
    for share in (0.01, 0.3, 0.999, 1.5):
        intensity = 10 ** rng.uniform(-2, 3)
        flops = share * min(peak, intensity * rate)
        keys.append({"op": "a<b", "pass": "F", "shapes": "8&8", "seconds": 1e-3, "flops_per_second": flops,
                     "bytes_per_second": flops / intensity, "roofline_share": share, "step_share": 0.2})  # fmt: skip
    still = {**keys[0], "flops_per_second": 0.0}
    facts = {"model": "m", "batch_samples": 8, "machine": "local", "keys": [*keys, still],
             "processor": {"flops_per_second": peak, "bytes_per_second": rate}}  # fmt: skip
    drawn = ElementTree.fromstring(roofline.picture(facts))
    name = "{http://www.w3.org/2000/svg}"
    dots = {d.find(f"{name}title").text: d for d in drawn.iter(f"{name}circle") if d.find(f"{name}title") is not None}
    assert len(dots) == len(keys), "one for each that computes"
    plane = roofline._Plane(peak, rate, keys)
    for key in keys:
        (dot,) = (d for text, d in dots.items() if f"{key['roofline_share']:.0%} of" in text)
        intensity = key["flops_per_second"] / key["bytes_per_second"]
        across, roof = plane.at(intensity, min(peak, intensity * rate))
        assert float(dot.get("cx")) == pytest.approx(across, abs=0.1)
        # Down the picture is less, as far for a tenth anywhere.
        decade = plane.at(intensity, 1e9)[1] - plane.at(intensity, 1e10)[1]
        assert float(dot.get("cy")) - roof == pytest.approx(-decade * math.log10(key["roofline_share"]), abs=0.1)
    assert "1 of 5 kinds of tasks do no arithmetic" in roofline.picture(facts)


def test_a_picture_of_a_run(capsys, monkeypatch):
    facts = told(capsys, MODELS[0], "--profile", "here.db", "--picture", "new/roof.svg")
    assert facts["files"]["picture"] == "new/roof.svg"
    drawn = ElementTree.parse("new/roof.svg")
    titles = {text for text in (title.text for title in drawn.iter("{http://www.w3.org/2000/svg}title")) if text}
    assert len(titles) == len(
        {key["shapes"] + key["op"] + key["pass"] for key in facts["keys"] if key["flops_per_second"]}
    )
    monkeypatch.setattr(task_timing, "measure", None)
    assert main(["profile", MODELS[0], "--again", "--picture", "."]) == 2, "before anything is measured"
    assert "--picture" in capsys.readouterr().err


# On a host with GPUs, which a stand-in of CuPy is.


def test_a_profile_on_gpus_tunes_first_and_times_tasks_in_steps(capsys, monkeypatch):
    pytest.importorskip("triton")
    monkeypatch.setattr(kernel_tuning, "gpu", lambda: None)
    monkeypatch.setattr(kernel_tuning, "tune", lambda table, name, meter: {
        way: 1.0 / (1 + number) for number, way in enumerate(kernel_tuning.choices(table, name))})  # fmt: skip
    compiled = []
    monkeypatch.setattr(kernel_tuning, "precompile", lambda calls, tell: compiled.extend(calls))
    with host_with_gpus(), patch.object(gpus, "version", lambda name: "1.0"):
        facts = told(capsys, MODELS[0], "--profile", "here.db")
        again = told(capsys, MODELS[0], "--profile", "here.db")
    assert facts["processor"]["kind"] == "gpu" and facts["num_tuned_calls"] > 0 and facts["num_new_keys"] > 0
    table = tuning._table("cuda")
    # all that was timed was compiled before, and nothing else
    assert len({name for name, _ in compiled}) == facts["num_tuned_calls"]
    assert compiled == [(name, way) for name in dict(compiled) for way in kernel_tuning.choices(table, name)]
    chosen = [kernel for key in facts["keys"] for kernel in key["kernels"] if kernel["ways"]]
    assert chosen and all(kernel["form"] == kernel["ways"][0]["form"] for kernel in chosen)
    assert {kernel["form"] for kernel in chosen if kernel["kernel"] == "contract"} == {"cupy"}
    assert again["num_tuned_calls"] == again["num_new_keys"] == 0
