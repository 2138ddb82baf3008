"""Figures: whatever number a command tells people is one of those that it tells programs, in the unit that it says."""

from __future__ import annotations

import json
import math
import random
import re
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from castile.launch import diff, predict, simulate, validate
from castile.launch.__main__ import main
from castile.launch.checkpoints.reader import open_checkpoint
from castile.launch.measuring import profile_report
from castile.launch.reports import explanation_report, search_report
from castile.launch.training import run_report
from castile.planner import strategy as strategies
from castile.planner.strategy import PATH, READY
from tests.validated import job, outcome

MODEL, MACHINE = "mlp:layers=1,width=16", "dgx-h100:nodes=1"
# What is said of a number, by which names in JSON it may have, and how many of what is shown one of these is.
UNITS = {
    "ms": ("seconds", 1e3), "us": ("seconds", 1e6), "s": ("seconds", 1.0), "%": ("", 100.0),
    "bytes": ("bytes", 1.0), "KiB": ("bytes", 2.0**-10), "MiB": ("bytes", 2.0**-20), "GiB": ("bytes", 2.0**-30),
    "TiB": ("bytes", 2.0**-40),
    "samples/s": ("samples_per_second", 1.0), "k samples/s": ("samples_per_second", 1e-3),
    "M samples/s": ("samples_per_second", 1e-6), "tokens/s": ("tokens_per_second", 1.0),
    "k tokens/s": ("tokens_per_second", 1e-3), "M tokens/s": ("tokens_per_second", 1e-6),
}  # fmt: skip
NAMES = "|".join(sorted(UNITS, key=len, reverse=True))
FIGURE = re.compile(rf"(?<![\w.:,/*\[-])[+-]?(\d+(?:\.\d+)?)(?: ?({NAMES}))?(?![\w.:/-])")
# What may stand without a unit: counts and factors, and columns whose heads say it, in milliseconds or 1e9 a second.
BARE = (("", 1.0), ("seconds", 1e3), ("per_second", 1e-9))
# Of a table that is cut, and of what its cells say in no unit.
LEFT_OUT = re.compile(r"and \d+ more|-?\d+ known before")


def numbers(facts: Any, path: str = "") -> Iterator[tuple[str, float]]:
    """Every number in a JSON value, and how long its lists are, with the names that lead to it."""
    if isinstance(facts, dict):
        for name, value in facts.items():
            yield from numbers(value, f"{path}.{name}")
    elif isinstance(facts, list | tuple):
        yield f"{path}.num", len(facts)
        for value in facts:
            yield from numbers(value, path)
    elif isinstance(facts, int | float) and not isinstance(facts, bool):
        yield path, facts


def others(facts: Any, rng: random.Random, path: str = "") -> Any:
    """The same value with other numbers, none of which follows from another, and with words that hold no digit."""
    if isinstance(facts, dict):
        return {name: others(value, rng, f"{path}.{name}") for name, value in facts.items()}
    if isinstance(facts, list | tuple):
        return [others(value, rng, path) for value in facts]
    if isinstance(facts, str):
        return re.sub(r"\d", "n", facts)
    if isinstance(facts, bool) or not isinstance(facts, int | float):
        return facts
    if "bytes" in path:
        return rng.choice((-1, 1) if facts < 0 else (1,)) * int(2 ** rng.uniform(5, 52))
    if isinstance(facts, int):
        return rng.randrange(1000, 100000)
    return rng.uniform(-1 if facts < 0 else 0.01, 1) * (10 ** rng.uniform(-2, 5) if "seconds" in path else 1)


def rounding(shown: str) -> float:
    """By how much what is shown may differ from what it is of."""
    return 0.5001 * 10.0 ** -len(shown.partition(".")[2])


def check_told(text: str, facts: Any) -> None:
    """Every figure in the text is one of the facts'."""
    known = list(numbers(facts))
    for line in text.splitlines():
        for match in FIGURE.finditer(LEFT_OUT.sub("", line)):
            shown, unit = float(match[1]), match[2] or ""
            ways = (UNITS[unit],) if unit else BARE
            near = rounding(match[1])
            # what is told as more or less is so
            sign = {"+": 1, "-": -1}.get(match[0][0], 0)
            found = any(
                name in path and abs(abs(v) * f - shown) <= near and v * sign >= 0
                for path, v in known
                for name, f in ways
            )
            assert found, f"{match[0]!r} is not in the JSON object: {line}"


def answer(capsys, *words: str) -> dict[str, Any]:
    capsys.readouterr()
    assert main([*words, "--json"]) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


Teller = Callable[[dict[str, Any]], object]
# Commands, and how they tell people what they found.
TOLD: dict[str, tuple[tuple[str, ...], Teller]] = {
    "plan": (("plan", MODEL, "--machine", MACHINE, "--budget", "5"), lambda facts: search_report.tell(facts, [])),
    "simulate": (("simulate", "a.json", "--machine", MACHINE), lambda facts: simulate._tell(facts, [])),
    "simulate a pipeline": (("simulate", "c.json", "--machine", MACHINE), lambda facts: simulate._tell(facts, [])),
    "explain": (("explain", "b.json", "--machine", MACHINE), lambda facts: explanation_report.tell(facts, [])),
    "explain --op": (
        ("explain", "a.json", "--machine", MACHINE, "--op", "fc1", "--why-not", "megatron", "--budget", "5"),
        lambda facts: explanation_report.tell(facts, []),
    ),
    "diff": (("diff", "a.json", "b.json"), diff._tell),
    "profile": (("profile", MODEL), lambda facts: profile_report.tell(facts, False)),
    "validate": ((), validate.tell),
    "predict": (("predict", MODEL, "--checkpoint", "run"), lambda facts: print(predict._text(facts))),
    "train": (("train", MODEL, "--steps", "3"), lambda facts: print(run_report.text(facts))),
}  # fmt: skip


def validated(capsys) -> dict[str, Any]:
    """What `castile validate` would tell of four plans."""
    rows = [validate.Row(f"plan {name}", name < "c", 1.0, 0.1, 1.0, 1.0 + (name == "a")) for name in "abcd"]
    capsys.readouterr()
    validate._report(validate.Validate("m", json=True), job(4, ("a", "b")), outcome(rows, 2, 9))
    return json.loads(capsys.readouterr().out)


@pytest.fixture(scope="module")
def plans(tmp_path_factory):
    """Plans as files and a checkpoint, in a folder of their own."""
    folder = tmp_path_factory.mktemp("figures")
    for name, search in (("a.json", "fsdp"), ("b.json", "one_processor")):
        words = ("plan", MODEL, "--machine", MACHINE, "--search", search, "--out", str(folder / name))
        assert main(words) == 0
    words = ("plan", MODEL, "--machine", MACHINE, "--search", "pipeline_2", "--accumulate", "4")
    assert main((*words, "--out", str(folder / "c.json"))) == 0
    ahead = msgspec.structs.replace(strategies.read(folder / "c.json"), ahead=1, order=PATH)
    (folder / "c.json").write_bytes(strategies.encode(ahead))
    assert main(("train", MODEL, "--steps", "1", "--search", "data_parallel", "--checkpoint", str(folder / "run"))) == 0
    return folder


@pytest.mark.parametrize("name", TOLD)
def test_every_figure_on_the_screen_is_in_the_object(name, plans, alone, capsys, monkeypatch):
    words, tell = TOLD[name]
    monkeypatch.chdir(plans)
    facts = answer(capsys, *words) if words else validated(capsys)
    for seed in range(5):
        drawn = others(facts, random.Random(seed))
        capsys.readouterr()
        tell(drawn)
        out = capsys.readouterr().out
        print(out)
        check_told(out, drawn)
        assert len(FIGURE.findall(out)) > 3


def test_what_is_told_of_a_plan_follows_from_its_step(plans, capsys, monkeypatch):
    monkeypatch.chdir(plans)
    found = answer(capsys, "plan", MODEL, "--machine", MACHINE, "--budget", "5")
    base = found["seeds"]["data_parallel"]["step_seconds"]
    for row in (found["found"], *found["seeds"].values()):
        assert row["speedup_over_data_parallel"] == base / row["step_seconds"]
    assert found["bound_seconds"] == max(found["work_bound_seconds"], found["chain_bound_seconds"])

    for name in ("a.json", "b.json", "c.json"):
        plan = strategies.read(name)
        told = [answer(capsys, command, name, "--machine", MACHINE) for command in ("simulate", "explain")]
        check_follows(*told)
        for facts in told:
            assert (facts["order"] is None, facts["buckets"] is None) == (plan.order == READY, not plan.bucket_bytes)
            assert (facts["ahead"] is None) == (plan.ahead == 0)


def check_follows(simulated: dict[str, Any], told: dict[str, Any]) -> None:
    """What `simulate` and `explain` tell of one plan."""
    names = ("step_seconds", "moved_bytes", "num_tasks", "num_procs", "batch_samples")
    assert [simulated[name] for name in names] == [told[name] for name in names]
    assert told["capacity_bytes"] == simulated["procs"][0]["capacity_bytes"]
    step, num_procs = told["step_seconds"], told["num_procs"]
    assert sum(row["share"] for row in told["spans"]) == pytest.approx(1)
    for row in told["spans"]:
        each = [proc[f"{row['what']}_seconds"] for proc in told["procs"]]
        assert (row["least_seconds"], row["most_seconds"]) == (min(each), max(each))
        assert row["mean_seconds"] == pytest.approx(sum(each) / num_procs)
        assert row["share"] == pytest.approx(row["mean_seconds"] / step)
        # what of a kind no computing hides, of all its causes together
        of_kind = [cause for cause in told["causes"] if cause["kind"] == row["what"]]
        shown = sum(cause["proc_seconds"] * (1 - cause["hidden_share"]) for cause in of_kind)
        assert row["what"] in ("waiting", "idle") or shown == pytest.approx(sum(each)), row["what"]
    for cause in told["causes"]:
        assert cause["chain_share"] == pytest.approx(cause["chain_seconds"] / step)
    for rows, by in ((simulated["kinds"][:-1], "proc_seconds"), (told["causes"], "chain_seconds")):
        assert [row[by] for row in rows] == sorted((row[by] for row in rows), reverse=True)
    for row in simulated["kinds"]:
        assert row["share"] == pytest.approx(row["proc_seconds"] / (num_procs * step))
    idle = sum(row["waiting_share"] for row in simulated["procs"]) * step
    waiting = next(row["proc_seconds"] for row in simulated["kinds"] if row["what"] == "waiting")
    assert waiting == pytest.approx(idle)


STEP = re.compile(
    r"step +(\d+)  loss ([\d.]+) \| ([\d.]+) ms \(sim ([\d.]+), ([+-][\d.]+) %\) \| ([\d.]+)([kM]?) samples/s \| "
    r"mem ([\d.]+) KiB/([\d.]+) GiB"
)
SAVED = re.compile(r"step +(\d+)  saved in (\S+): ([\d.]+) KiB in ([\d.]+) s")


def check_shown(shown: str, number: float) -> None:
    assert abs(float(shown) - number) <= rounding(shown), (shown, number)


def test_what_a_training_tells_follows_from_its_steps_and_its_plan(alone, capsys, monkeypatch):
    """Its lines, its records, its object, and what `simulate` says of its plan, all tell the same."""
    facts: dict[str, Any] = {}
    tell = run_report.text
    monkeypatch.setattr(run_report, "text", lambda of: facts.update(of) or tell(of))
    words = "train mlp --steps 6 --evaluate-every 2 --checkpoint saved --checkpoint-every 2 --keep 9"
    began = time.perf_counter()
    assert main([*words.split(), "--metrics", "run.jsonl", "--out", "plan.json"]) == 0
    elapsed = time.perf_counter() - began
    out = capsys.readouterr().out
    kinds: dict[str, list[dict[str, Any]]] = {}
    for record in map(json.loads, (alone / "run.jsonl").read_text().splitlines()):
        kinds.setdefault(record.pop("kind"), []).append(record)
    steps, batch = kinds["step"], facts["batch"]
    plan = answer(capsys, "simulate", "plan.json", "--machine", "local:procs=1")
    (proc,) = plan["procs"]

    assert [r["step"] for r in steps] == [1, 2, 3, 4, 5, 6] and [r["samples"] for r in steps] == [
        batch * r["step"] for r in steps
    ]
    assert (facts["batch"], facts["num_tasks"], facts["peak_bytes"]) == (
        plan["batch_samples"], plan["num_tasks"], [proc["peak_bytes"]]
    )  # fmt: skip
    for record, line in zip(steps, STEP.findall(out), strict=True):
        step, loss, took, simulated, off, rate, many, used, there = line
        seconds, foretold = record["step_seconds"], record["simulated_seconds"]
        assert int(step) == record["step"] and foretold == facts["simulated_step_seconds"]
        check_shown(loss, record["loss"])
        check_shown(took, 1e3 * seconds)
        check_shown(simulated, 1e3 * foretold)
        check_shown(off, 100 * (seconds / foretold - 1))
        check_shown(rate, record["samples_per_second"] / (1e3 if many else 1))
        assert record["peak_bytes"] == proc["peak_bytes"]
        check_shown(used, proc["peak_bytes"] / 2**10)
        check_shown(there, proc["capacity_bytes"] / 2**30)
        assert seconds <= batch / record["samples_per_second"]
    assert sum(batch / r["samples_per_second"] for r in steps) + facts["copied_seconds"] <= facts["total_seconds"]
    assert facts["total_seconds"] <= elapsed

    assert facts["losses"] == [r["loss"] for r in steps] and facts["num_steps"] == facts["num_sampled"] == len(steps)
    assert facts["waited_seconds"] == sum(r["waited_seconds"] for r in steps)
    assert facts["step_seconds"] == statistics.median(r["step_seconds"] for r in steps)
    assert 0 < facts["measured_step_seconds"] <= max(r["step_seconds"] for r in steps)
    for when, which in (("before", "untaught"), ("after", "simulated")):
        error = abs(facts[f"{which}_step_seconds"] / facts["measured_step_seconds"] - 1)
        assert facts[f"error_{when}_learning"] == error

    assert facts["evaluations"] == kinds["evaluation"] and [r["step"] for r in kinds["evaluation"]] == [2, 4, 6]
    last = dict(kinds["evaluation"][-1])
    assert facts["num_held_out"] == last.pop("num_samples") and last.pop("step") == 6
    assert last == {name: facts[f"held_out_{name}"] for name in last}
    assert facts["checkpoints"] == kinds["checkpoint"] and [r["step"] for r in kinds["checkpoint"]] == [2, 4, 6]
    for record, (step, path, size, took) in zip(kinds["checkpoint"], SAVED.findall(out), strict=True):
        saved = open_checkpoint(path)
        nbytes = sum(file.stat().st_size for file in Path(path).glob("*.safetensors"))
        assert (int(step), path, nbytes) == (record["step"], record["path"], record["nbytes"])
        assert nbytes == saved.nbytes
        tensors = sum(math.prod(region.shape) * np.dtype(region.dtype).itemsize for region in saved.regions.values())
        assert tensors < nbytes < 1.1 * tensors
        assert 0 < record["seconds"] <= elapsed and not record["warning"] and not record["may_pass"]
        check_shown(size, nbytes / 2**10)
        check_shown(took, record["seconds"])
