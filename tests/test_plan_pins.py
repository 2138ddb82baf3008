"""`castile plan` with pins, frozen processors and chosen seeds: what it tells and writes, and how it refuses."""

from itertools import product

import pytest

from castile.launch.reports import search_report
from castile.planner import strategy as strategies
from tests.effort import rare
from tests.test_plan_command import MACHINE, MLP, answer, sentence

GPT = "gpt:layers=2,width=32,heads=4,seq=16"
FOUR = "flexflow-p100:nodes=1"


def layout_of(facts: dict, node: str) -> str:
    """The Config of a node in words."""
    return next(row["config"] for row in facts["layouts"] if node in row["nodes"])


def test_what_is_pinned_is_in_the_plan(capsys):
    words = ["plan", GPT, "--machine", FOUR, "--batch", "2", "--budget", "20"]
    pins = ["--pin", "block*.attention: {h: 4}", "--pin", "head: {b: 2, procs: 0-2}"]
    facts = answer(capsys, *words, *pins)
    assert all(layout_of(facts, f"block{n}.attention").startswith("h:4 on") for n in (1, 2))
    assert layout_of(facts, "head").startswith("b:2") and set(layout_of(facts, "head").split()[-1]) <= set("012,-")
    assert facts["pinned"] == ["block*.attention: {h: 4}", "head: {b: 2, procs: [0-2]}"]
    assert answer(capsys, *words, "--search", "data_parallel")["pinned"] == []
    search_report.tell(facts, [])
    assert "pinned: block*.attention: {h: 4}; head: {b: 2, procs: [0-2]}" in capsys.readouterr().out


def test_frozen_processors_have_no_layout(tmp_path, capsys):
    path = str(tmp_path / "plan.json")
    words = ["plan", GPT, "--machine", FOUR, "--batch", "2", "--budget", "20"]
    answer(capsys, *words, "--without", "1,3", "--out", path)
    assert {p for config in strategies.read(path).configs.values() for p in config.procs} <= {0, 2}
    facts = answer(capsys, "simulate", path, "--machine", FOUR)
    assert {row["proc"] for row in facts["procs"] if row["busy_share"] == 0} >= {1, 3}


def test_the_seeds_that_count_are_named(capsys):
    words = ["plan", GPT, "--machine", FOUR, "--batch", "2", "--budget", "5"]
    assert set(answer(capsys, *words, "--seeds", "megatron, fsdp")["seeds"]) == {"data_parallel", "megatron", "fsdp"}
    assert len(answer(capsys, *words)["seeds"]) > 3
    insisted = answer(capsys, *words, "--seeds", "megatron_2", "--search", "megatron")
    assert set(insisted["seeds"]) == {"data_parallel", "megatron_2"} and insisted["equals"] == ""


@pytest.mark.parametrize(
    ("model", "objective"),
    [
        ("convnet", "time"),
        (GPT, "latency"),
        *rare(*product(["convnet"], ["latency", "memory"]), *product([GPT], ["time", "memory"])),
    ],
)
def test_a_front_with_pins_and_seeds(model, objective, capsys):
    words = ["plan", model, "--machine", "local:procs=3", "--batch", "4", "--budget", "21", "--objective", objective]
    last = "head" if model == GPT else "fc2"
    words += ["--front", "--pin", f"{last}: {{b: 2}}", "--without", "2"]
    facts = answer(capsys, *words, "--seeds", "megatron,fsdp")
    assert facts["front"] and layout_of(facts, last).startswith("b:2") and set(facts["seeds"]) <= {
        "data_parallel", "megatron", "fsdp"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--pin", "fc9: {b: 2}"], "no node has a name like 'fc9' (did you mean 'fc"),
        (["--pin", "fc1: {x: 2}"], "fc1 has no axis 'x'"),
        (["--pin", "fc1 = 2"], "pin 'fc1 = 2': write what is pinned as in"),
        (["--pin", "fc1: {b: 999999999, o: 999999999}"], "fc1: axis 'b' has 64 elements, too few for 999999999 parts"),
        (["--pin", "fc1: {b: 65}"], "pin 'fc1: {b: 65}': fc1: axis 'b' has 64 elements, too few for 65 parts"),
        (["--pin", "fc1: {b: 2}", "--pin", "fc*: {b: 3}"], "pin 'fc1: {b: 2}' contradicts pin 'fc*: {b: 3}'"),
        (["--pin", "fc1: {procs: 3}", "--without", "3"], "fc1: too few processors are left for 1 replicas by pins"),
        (["--without", "8"], "--without: processor 8 is out of range"),
        (["--without", "0-7"], "leaves none of 8 to work on"),
        (["--seeds", "fsdp,megatrn"], "no known plan 'megatrn' (did you mean 'megatron'"),
    ],
)
def test_a_mistake_is_one_sentence(words, part, capsys):
    assert part in sentence(capsys, "plan", MLP, "--machine", MACHINE, *words)
