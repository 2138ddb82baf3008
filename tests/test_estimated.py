"""What tasks would take on GPUs that are not here: told of the very kernel calls that a plan makes, kept, and planned
with.
"""

import json
import re
import shlex
import signal
import subprocess
import sys
from itertools import product
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("triton")

from castile.kernels.estimates import calls as estimates
from castile.kernels.estimates.calls import Estimate
from castile.kernels.estimates.chips import KINDS
from castile.kernels.table import Table
from castile.launch import models
from castile.launch.__main__ import main
from castile.launch.here import absent_gpus
from castile.launch.measuring import kernel_estimates, tuning
from castile.planner.cost import CostModel
from castile.planner.costs.database import Database
from castile.planner.costs.snapshot import Measured, snapshot_of
from castile.planner.families.updates import Updates
from castile.planner.known.seeds import seeds
from castile.planner.lower import Lowering
from castile.planner.op import find
from castile.runtime import machine as machines
from castile.runtime.task import Kind
from tests.effort import rare, some

GPT = "gpt:layers=1,width=32,heads=4,seq=16"
MODELS = ["mlp", "convnet", "moe:layers=1", GPT, *rare("resnet", "lstm", "moe:layers=2", "dlrm")]
ESTIMATE = Estimate(3e-6, 1e-6, "memory")
SMALL = ["mlp:layers=1,width=64", "--machine", "h200", "--dtype", "bfloat16"]


@pytest.fixture(autouse=True)
def _here(alone: Path) -> None:
    """Nothing of whoever runs this is found or left."""


@pytest.fixture
def compiling(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The calls that are asked for; all are told the same, without compiling any."""
    asked: list[str] = []

    def estimates(calls, kind):
        for call in calls:
            asked.append(call)
            yield call, ESTIMATE

    monkeypatch.setattr(kernel_estimates, "estimates", estimates)
    return asked


def told(capsys: pytest.CaptureFixture[str], *words: str) -> dict:
    assert main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(("model", "microbatches"), [*product(MODELS, [1]), *product(["mlp", *rare(GPT)], [4])])
def test_a_kind_has_the_calls_that_its_tasks_make(model: str, microbatches: int) -> None:
    named, table = models.parse(model), Table("triton")
    lowering = Lowering(named.graph(8, "bfloat16"), machines.local(2), Updates(find("adamw")()), "train", microbatches)
    plans = seeds(lowering)
    found, seen = kernel_estimates.kinds(lowering, plans), set()
    for name, plan in plans.items():
        tasks = lowering.lower(plan)
        for t in np.flatnonzero(tasks.kind == Kind.COMPUTE).tolist():
            key = tasks.cost_keys[tasks.cost[t]]
            body = tasks.tasks[t].body
            if key not in seen and key.dense is None and not any(call.accumulate for call in body.calls):
                seen.add(key)
                assert found.calls[key] == tuple(tuning.names(table, tasks, [t])), key
        work = {key.work: 0 for key in tasks.cost_keys}
        for t in np.flatnonzero(tasks.kind == Kind.COMPUTE).tolist():
            work[tasks.cost_keys[tasks.cost[t]].work] += 1
        counted = {key: sum(n for one, n in found.steps[name].items() if one.name == key) for key in work}
        assert {key: n for key, n in counted.items() if n} == {key: n for key, n in work.items() if n}
    assert len(seen) > len(found.calls) / 2


def test_what_was_told_is_kept_and_not_told_again(compiling, capsys) -> None:
    first = told(capsys, "profile", *SMALL, "--profile", "some.db")
    assert first["num_ranks"] == 0 and first["num_new_keys"] == first["num_keys"] > 10 and not first["num_untold_keys"]
    assert len(compiling) == len(set(compiling)) > 0, "each call is compiled once"
    kernel = first["keys"][0]["kernels"][0]
    assert kernel["form"] == "triton" and kernel["binds"] == "memory"
    for plan in first["plans"]:
        assert sum(key["step_share"] for key in first["keys"] if key["plan"] == plan) <= 1 + 1e-9
    whole = [key["step_share"] for key in first["keys"] if key["plan"] == first["plans"][0]]
    assert sum(whole) == pytest.approx(1)
    again = told(capsys, "profile", *SMALL, "--profile", "some.db")
    assert again["num_new_keys"] == 0 and again["num_keys"] == first["num_keys"]
    assert len(told(capsys, "profile", *SMALL, "--profile", "some.db", "--again")["keys"]) == first["num_keys"]
    assert len(compiling) == 2 * len(set(compiling))


def test_plans_are_priced_by_it(compiling, capsys) -> None:
    keys = told(capsys, "profile", *SMALL, "--profile", "some.db")["keys"]
    assert {key["seconds"] for key in keys} <= {n * ESTIMATE.seconds for n in range(1, 10)}
    brief = ("--budget", "5", "--accumulate", "1")
    before = told(capsys, "plan", *SMALL, *brief)
    after = told(capsys, "plan", *SMALL, *brief, "--profile", "some.db")
    assert set(before["prices"]) == {"roofline"} and after["prices"]["compiled"] > 0
    command = shlex.join(["castile", "profile", *SMALL, "--profile", "FILE"])
    assert (before["nearer_prices"], after["nearer_prices"]) == (command, None)
    assert before["rewrite"] == after["rewrite"], "nothing ran, so rewrites are looked for as without it"
    # What was told of one kind of chip says nothing of another.
    other = [word.replace("h200", "dgx-a100") for word in SMALL]
    assert main(["plan", *other, "--profile", "some.db"]) == 2
    assert "castile profile MODEL --machine dgx-a100 --profile some.db" in capsys.readouterr().err


def test_a_plans_own_tasks_are_told(compiling, capsys) -> None:
    told(capsys, "plan", *SMALL, "--search", "megatron", "--out", "plan.json")
    facts = told(capsys, "profile", *SMALL, "--plan", "plan.json", "--profile", "some.db")
    assert facts["plans"] == ["plan.json"]
    simulated = told(capsys, "simulate", "plan.json", "--profile", "some.db")
    assert simulated["prices"]["compiled"] == facts["num_keys"]


def test_all_splits_are_told(compiling, capsys) -> None:
    some = told(capsys, "profile", *SMALL, "--profile", "some.db")["num_keys"]
    assert told(capsys, "profile", *SMALL, "--profile", "some.db", "--all")["num_keys"] > some


def test_nothing_is_told_of_what_is_left_to_its_definition(monkeypatch, capsys) -> None:
    made = {True: None, False: ESTIMATE}
    monkeypatch.setattr(kernel_estimates, "estimates", lambda calls, kind: [(c, made["relu" in c]) for c in calls])
    facts = told(capsys, "profile", *SMALL, "--profile", "some.db")
    assert facts["num_untold_keys"] > 0
    assert not [key for key in facts["keys"] if key["op"] == "relu"]


def test_a_table_says_that_nothing_ran(compiling, capsys) -> None:
    assert main(["profile", *SMALL, "--profile", "some.db", "--picture", "roof.svg"]) == 0
    lines = capsys.readouterr().out
    assert "nothing ran: it is told from kernels compiled for h200-sxm-141gb" in lines and "(memory)" in lines
    assert " 0.0 us" not in lines, "nothing is said of how far repetitions lie apart"
    (plan,) = re.findall(r"^plan with it: castile (.*)", lines, re.MULTILINE)
    assert told(capsys, *shlex.split(plan), "--budget", "5", "--accumulate", "1")["prices"]["compiled"] > 0
    assert Path("roof.svg").read_text().startswith("<svg")


def test_what_was_told_before_it_was_broken_off_is_kept(monkeypatch, compiling, capsys) -> None:
    def breaks(calls, kind):
        for number, call in enumerate(calls):
            if number == 9:
                signal.raise_signal(signal.SIGTERM)
            yield call, ESTIMATE

    with monkeypatch.context() as patch:
        patch.setattr(kernel_estimates, "estimates", breaks)
        assert main(["profile", *SMALL, "--profile", "some.db"]) == 128 + signal.SIGTERM
    assert "what was told until now is kept in some.db, and the same command goes on" in capsys.readouterr().err
    facts = told(capsys, "profile", *SMALL, "--profile", "some.db")
    assert 0 < facts["num_keys"] - facts["num_new_keys"] <= 9


def test_what_cannot_be_told_is_refused(compiling, capsys, monkeypatch) -> None:
    assert main(["profile", *SMALL, "--links"]) == 2
    assert "--links" in capsys.readouterr().err
    rates = "flops_per_second = 1e14\nbytes_per_second = 1e12\nmemory_bytes = 1_000_000_000\n"
    unlike = "".join(f'[[processor]]\nkind = "{kind}"\n{rates}' for kind in list(KINDS)[:2])
    Path("two.toml").write_text(unlike + '[[level]]\nname = "x"\nlatency_seconds = 1e-6\nbytes_per_second = 1e9\n')
    assert main(["profile", "mlp", "--machine", "two.toml"]) == 2
    assert "several kinds" in capsys.readouterr().err
    monkeypatch.setattr(absent_gpus, "find_spec", lambda name: None)
    assert main(["profile", *SMALL]) == 2
    assert "pip install triton" in capsys.readouterr().err
    assert not compiling


@pytest.mark.parametrize("preset", ["dgx-a100", "dgx-h100", "h200"])
def test_presets_of_chips_that_kernels_are_compiled_for_are_known(preset: str) -> None:
    machine = machines.parse(preset)
    assert absent_gpus.is_known(machine)
    # Of the sheets' rates a machine's file has what large kernels attain.
    chip, processor = KINDS[absent_gpus.kind_of(machine)], machine.processors[0]
    assert 0.6 < processor.bytes_per_second / chip.bytes_per_second < 0.9
    assert 0.6 < processor.flops_rate("bfloat16") / chip.bf16_flops_per_second < 0.9
    # Products of float32 are those, or of three parts in TF32: never of one.
    assert processor.flops_rate("float32") < chip.tf32_flops_per_second / 3
    assert set(absent_gpus.KINDS) == set(KINDS)
    assert not absent_gpus.is_known(machines.local(2)) and not absent_gpus.is_known(machines.parse("flexflow-k80"))


def test_prices_say_whether_anything_ran() -> None:
    machine, key = machines.parse("h200"), next(iter(_keys()))
    for was_run, source in ((True, "measured"), (False, "compiled")):
        environment = absent_gpus.environment("h200-sxm-141gb", "")
        environment = type(environment)(environment.device, active_ranks=int(was_run))
        assert environment.was_run == was_run
        cost = CostModel(machine, snapshot_of(environment, [Measured(key, 1e-3)]))
        assert cost.seconds(key) == (1e-3, source)


def test_what_was_measured_and_what_was_told_are_kept_apart() -> None:
    database, key = Database("some.db"), next(iter(_keys()))
    told_of = absent_gpus.environment("h200-sxm-141gb", "")
    measured = type(told_of)(told_of.device, told_of.threads, 1, told_of.kernels, told_of.libraries)
    for seconds, environment in ((1.0, told_of), (2.0, measured)):
        database.add(snapshot_of(environment, [Measured(key, seconds)]))
    assert [database.snapshot(one).rows[0].seconds for one in (told_of, measured)] == [1.0, 2.0]


def _keys():
    lowering = Lowering(models.parse("mlp").graph(8, "bfloat16"), machines.local(2))
    return kernel_estimates.kinds(lowering, seeds(lowering)).calls


def test_kernels_are_compiled_and_told_by_processes_of_their_own(capsys) -> None:
    told(capsys, "plan", *SMALL, "--search", "data_parallel", "--out", "plan.json")
    facts = told(capsys, "profile", *SMALL, "--plan", "plan.json", "--profile", "some.db")
    assert facts["num_untold_keys"] == 0 and len(facts["keys"]) > 5
    for key in facts["keys"]:
        assert 1e-6 < key["seconds"] < 1e-3, key
        assert all(kernel["binds"] for kernel in key["kernels"])


def test_a_call_takes_no_less_than_memory_and_arithmetic_do() -> None:
    # In a process of its own, which compiles for that chip from then on.
    lowering = Lowering(models.parse("mlp:width=1024").graph(4096, "bfloat16"), machines.local(1))
    found = kernel_estimates.kinds(lowering, {"data_parallel": seeds(lowering)["data_parallel"]})
    every = list(dict.fromkeys(call for calls in found.calls.values() for call in calls))
    for call, one in estimates.estimates(some(every), "h200-sxm-141gb"):
        assert one is not None and one.seconds > one.least_seconds > 0, call


def test_nothing_of_triton_is_imported_to_ask() -> None:
    modules = "castile.launch.measuring.kernel_estimates, castile.launch.profile"
    program = f"import sys, {modules}; sys.exit('triton' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
