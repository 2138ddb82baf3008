"""The command plan, and simulate where they agree: what they tell people and programs, and how they refuse."""

import json
import signal
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

from castile.launch import models
from castile.launch import plan as plan_command
from castile.launch.__main__ import main
from castile.launch.reports import report, search_report
from castile.planner import strategy as strategies
from castile.planner.known import seeds
from castile.planner.known.large import MOST_PARTS
from castile.planner.known.plans import data_parallel
from castile.planner.searching import pipelines
from castile.planner.strategy import Config, Strategy
from castile.runtime.memory import written as memory_of
from tests import homes, standing
from tests.answers import answer, sentence, timeless
from tests.effort import rare
from tests.mpi import CHECKOUT, mpirun_apart

MLP = "mlp:layers=1,width=16"
# Figures of a preset never depend on the host that the tests run on.
MACHINE = "dgx-h100:nodes=1"
# A machine of which a forward pass of this model needs half the memory, and a step more than there is.
WIDE = "mlp:width=256"
TIGHT = """
nodes = 1

[[processor]]
kind = "cpu"
flops_per_second = 1e9
bytes_per_second = 1e9
memory_bytes = 1_000_000
task_overhead_seconds = 1e-6
"""

# Two processors by a slow link, where a pipeline is fast.
SLOW = """
nodes = 1

[[processor]]
count = 2
kind = "p"
flops_per_second = 2.4e11
bytes_per_second = 2.4e10
memory_bytes = 17_403_452
task_overhead_seconds = 4e-6

[[level]]
name = "link"
latency_seconds = 0.0
bytes_per_second = 8.6e8
"""


def test_a_plan_is_for_the_optimizer_that_is_named_and_says_so(tmp_path, capsys):
    """What looks at it later counts the same memory; the model's own is SGD, which keeps one number less."""
    path, plain = str(tmp_path / "adamw.json"), str(tmp_path / "plain.json")
    words = ("plan", MLP, "--machine", MACHINE, "--search", "data_parallel")
    facts = answer(capsys, *words, "--optimizer", "adamw:beta2=0.95", "--clip", "0.5", "--out", path)
    known = answer(capsys, *words, "--out", plain)
    written = strategies.read(path)
    assert (written.optimizer, written.clip) == (facts["optimizer"], facts["clip"]) == ("adamw:beta2=0.95", 0.5)
    most = [max(told["found"]["arena_bytes"]) for told in (facts, known)]
    assert most[0] > most[1] and facts["num_tasks"] > known["num_tasks"]
    assert (known["optimizer"], known["clip"]) == ("", None) and "optimizer" not in Path(plain).read_text()
    again = answer(capsys, "simulate", path)
    assert again["step_seconds"] == pytest.approx(facts["found"]["step_seconds"], rel=1e-12)
    assert again["num_tasks"] == facts["num_tasks"]
    # Whoever goes on from it plans for the same, unless told otherwise.
    further = answer(capsys, *words, "--from", path)
    assert (further["optimizer"], further["clip"]) == ("adamw:beta2=0.95", 0.5)
    assert max(further["found"]["arena_bytes"]) == most[0]
    other = answer(capsys, *words, "--from", path, "--optimizer", "sgd", "--clip", "0")
    assert max(other["found"]["arena_bytes"]) < most[0] and other["num_tasks"] < facts["num_tasks"]
    told = answer(capsys, "diff", plain, path)
    assert told["settings"]["optimizer"] == {"a": "", "b": "adamw:beta2=0.95"}


def test_a_forward_pass_is_never_behind_one_processor(capsys):
    """Bringing results to the host may take longer than making them."""
    words = ("plan", "gpt:layers=1,width=64,heads=2,seq=64,vocab=8192", "--machine", MACHINE, "--objective", "latency")
    facts = answer(capsys, *words, "--batch", "8", "--budget", "20000")
    assert facts["found"]["step_seconds"] <= facts["seeds"]["one_processor"]["step_seconds"]


@pytest.mark.parametrize(
    ("words", "said"),
    [("--optimizer adamm", "adamw"), ("--clip -1", "--clip -1.0: give a norm above 0, or 0 to clip nothing"),
     ("--objective latency --optimizer adamw", "--objective latency"),
     ("--objective latency --clip 1", "--objective latency")],
)  # fmt: skip
def test_updates_that_cannot_be_are_refused(words, said, capsys):
    assert said in sentence(capsys, "plan", MLP, "--machine", MACHINE, *words.split())


def test_plan_writes_what_it_tells(tmp_path, capsys):
    path = tmp_path / "plan.json"
    words = ("plan", MLP, "--machine", MACHINE, "--batch", "8", "--budget", "10", "--seed", "3", "--out", str(path))
    facts = answer(capsys, *words)
    written = strategies.read(path)
    assert (written.model, written.num_procs, written.search, written.seed) == (MLP, 8, "mcmc", 3)
    assert written.predicted is not None
    assert written.predicted.step_seconds == facts["found"]["step_seconds"]
    assert written.predicted.peak_bytes == max(facts["found"]["arena_bytes"])
    assert written.predicted.moved_bytes == facts["found"]["moved_bytes"]
    # As many again on half of the processors, and on a quarter.
    assert facts["num_proposals"] in (10, 20, 30) and facts["files"] == {"plan": str(path)}
    assert all(facts["found"]["step_seconds"] <= seed["step_seconds"] for seed in facts["seeds"].values())
    assert facts["seeds"]["data_parallel"]["speedup_over_data_parallel"] == 1.0
    assert sum(facts["prices"].values()) > 0 and set(facts["prices"]) == {"roofline"}
    assert sorted(n for row in facts["layouts"] for n in row["nodes"]) == sorted(written.configs)
    # People are told the same.
    search_report.tell(facts, [])
    out = capsys.readouterr().out
    for name, seed in facts["seeds"].items():
        line = next(line for line in out.splitlines() if line.startswith(name + " "))
        assert report.duration(seed["step_seconds"]) in line
        assert f"{seed['speedup_over_data_parallel']:.2f}" in line
    assert report.duration(facts["found"]["step_seconds"]) in out
    assert f"after {facts['num_proposals']} proposals" in out and f"{facts['num_tasks']} tasks" in out
    # And what no plan can beat.
    assert facts["bound_seconds"] == max(facts["work_bound_seconds"], facts["chain_bound_seconds"])
    assert 0 < facts["bound_seconds"] <= facts["found"]["step_seconds"]
    assert facts["gap_share"] == pytest.approx(facts["found"]["step_seconds"] / facts["bound_seconds"] - 1)
    assert f"no plan takes less than {report.duration(facts['bound_seconds'])}" in out
    assert f"the plan found takes {report.percent(facts['gap_share'])} more" in out


def test_the_same_seed_gives_the_same_file(tmp_path, capsys):
    files = []
    for name in ("a", "b"):
        path = tmp_path / name
        words = ["plan", MLP, "--machine", "local:procs=2", "--budget", "25", "--seed", "1", "--out", str(path)]
        assert main(words) == 0
        files.append(path.read_bytes())
    assert files[0] == files[1]


def test_plan_says_so_when_the_plan_is_a_seed(capsys):
    words = ["plan", MLP, "--machine", MACHINE, "--search", "data_parallel"]
    assert answer(capsys, *words)["equals"] == "data_parallel"
    assert main(words) == 0
    assert "it equals data_parallel:" in capsys.readouterr().out
    # with a pin known plans are otherwise, under the same names
    assert main([*words, "--pin", "fc1: {o: 2}"]) == 0
    assert "it equals data_parallel with what is pinned:" in capsys.readouterr().out


def test_the_objective_decides(capsys):
    words = ["plan", "mlp:width=256", "--machine", "local:procs=2", "--batch", "4", "--budget", "20", "--objective"]
    time, latency, memory = (answer(capsys, *words, objective) for objective in ("time", "latency", "memory"))
    assert [facts["objective"] for facts in (time, latency, memory)] == ["time", "latency", "memory"]
    assert latency["found"]["step_seconds"] < time["found"]["step_seconds"] < memory["found"]["step_seconds"]
    assert memory["found"]["live_bytes"] < time["found"]["live_bytes"]
    assert timeless(answer(capsys, *words[:-1])) == timeless(time)
    search_report.tell(latency, [])
    assert "samples a forward pass" in capsys.readouterr().out


def test_a_plan_of_forward_passes_foretells_no_step(tmp_path, capsys):
    path = str(tmp_path / "plan.json")
    answer(capsys, "plan", MLP, "--machine", MACHINE, "--budget", "5", "--objective", "latency", "--out", path)
    assert strategies.read(path).predicted is None
    step, forward = (answer(capsys, "simulate", path, "--machine", MACHINE, *words) for words in ([], ["--forward"]))
    assert 0 < forward["step_seconds"] < step["step_seconds"]


def test_a_plan_of_which_the_forward_pass_alone_fits(tmp_path, capsys):
    """Its step is refused with a word of the other; a plan of steps that does not fit is refused without one."""
    path, small = str(tmp_path / "plan.json"), tmp_path / "small.toml"
    small.write_text(TIGHT)
    words = [WIDE, "--machine", str(small), "--budget", "1", "--search", "data_parallel"]
    found = answer(capsys, "plan", *words, "--objective", "latency", "--out", path)["found"]
    told = sentence(capsys, "simulate", path, "--machine", str(small))
    assert "processor 0 needs" in told and told.endswith("; --forward simulates its forward pass alone\n")
    forward = answer(capsys, "simulate", path, "--machine", str(small), "--forward")
    assert forward["step_seconds"] == found["step_seconds"]
    assert "--forward" not in sentence(capsys, "simulate", WIDE, "--machine", str(small))


@pytest.mark.parametrize(
    ("model", "batch", "text", "microbatches"),
    [("mlp:layers=2,width=512", 7, "", 1), *rare(("gpt:layers=2,width=64,heads=4,seq=32,vocab=100", 4, SLOW, 2))],
)
def test_a_front_begins_with_a_plan_as_fast_as_is_found_without(model, batch, text, microbatches, tmp_path, capsys):
    """Also where that is found on fewer processors, or in microbatches; it is told, and its plans are written."""
    path, out = tmp_path / "machine.toml", tmp_path / "plan.json"
    path.write_text(text)
    words = ["plan", model, "--batch", str(batch), "--machine", str(path) if text else MACHINE, "--budget", "30"]
    alone, facts = answer(capsys, *words), answer(capsys, *words, "--front", "--out", str(out))
    assert alone["microbatches"] == microbatches and "front" not in alone
    seconds, arena = alone["found"]["step_seconds"], max(alone["found"]["arena_bytes"])
    front = [(row["step_seconds"], max(row["arena_bytes"])) for row in facts["front"]]
    assert front[0][0] == facts["found"]["step_seconds"] <= seconds
    assert not [point for point in front if point[0] > seconds and point[1] >= arena]
    assert all(one[0] < after[0] and one[1] > after[1] for one, after in zip(front, front[1:]))
    assert len(front) > 1 and facts["num_proposals"] <= alone["num_proposals"] + 30
    files = [row["file"] for row in facts["front"]]
    assert files == [str(tmp_path / f"plan-{number}.json") for number in range(1, len(front) + 1)]
    for file, (step, _) in zip(files, front):
        assert answer(capsys, "simulate", file, *words[4:6])["step_seconds"] == step
    search_report.tell(facts, [])
    table = capsys.readouterr().out.split("plans that no other beats in both time and memory:")[1]
    assert table.split("\n")[1].split()[:3] == ["plan", "step", "arena"]
    assert all(report.duration(step) in table and memory_of(most) in table for step, most in front)


@pytest.mark.parametrize("model, search, has_gaps", [("mlp:width=256", "megatron", False), ("lenet", "fsdp", True)])
def test_an_arena_with_gaps_is_told_beside_what_lives_at_once(model, search, has_gaps, capsys):
    """`simulate` tells the arena of a plan."""
    words = ["plan", model, "--machine", MACHINE, "--search", search]
    found = answer(capsys, *words)["found"]
    arena = memory_of(max(found["arena_bytes"]))
    assert (arena != memory_of(found["live_bytes"])) == has_gaps
    assert main(words) == 0
    assert (f"takes an arena of {arena}\n" in capsys.readouterr().out) == has_gaps


@pytest.mark.parametrize("words", [[], ["--front"], ["--search", "tempering", "--processes", "2"]])
def test_ctrl_c_ends_a_search_with_the_best_plan_so_far(words, tmp_path, capsys, monkeypatch):
    out, before = tmp_path / "plan.json", signal.getsignal(signal.SIGINT)
    presses = iter([signal.SIGINT])
    monkeypatch.setattr(
        plan_command, "searching",
        lambda which: nullcontext(lambda spent, best, _: [signal.raise_signal(number) for number in presses]),
    )  # fmt: skip
    words = [MLP, "--machine", "local:procs=2", "--batch", "4", "--budget", "100000s", "--out", str(out), *words]
    facts = answer(capsys, "plan", *words)
    assert strategies.read(out).predicted.step_seconds == facts["found"]["step_seconds"]
    assert signal.getsignal(signal.SIGINT) is before


def test_a_search_goes_on_from_a_plan(tmp_path, capsys):
    path = str(tmp_path / "plan.json")
    words = ["plan", MLP, "--machine", "local:procs=2", "--batch", "4"]
    small = answer(capsys, *words, "--budget", "80", "--objective", "memory", "--out", path)
    facts = answer(capsys, *words, "--budget", "1", "--objective", "memory", "--from", path)
    assert facts["seeds"]["given"]["live_bytes"] == small["found"]["live_bytes"]
    assert facts["found"]["live_bytes"] <= small["found"]["live_bytes"]
    assert "given" not in answer(capsys, *words, "--budget", "1", "--objective", "memory")["seeds"]
    assert answer(capsys, *words, "--budget", "1", "--search", "data_parallel", "--from", path)["equals"] == (
        "data_parallel"
    )


def test_a_plan_in_microbatches_is_gone_on_from_in_as_many(tmp_path, capsys):
    path, out = str(tmp_path / "given.json"), str(tmp_path / "found.json")
    graph = models.parse(MLP).graph(64)
    Path(path).write_bytes(strategies.encode(Strategy(data_parallel(graph, 8), 2)))
    facts = answer(capsys, "plan", MLP, "--machine", MACHINE, "--budget", "5", "--from", path, "--out", out)
    assert strategies.read(out).microbatches == 2
    assert answer(capsys, "simulate", out, "--machine", MACHINE)["step_seconds"] == facts["found"]["step_seconds"]


@pytest.mark.parametrize("name", ["fsdp", "megatron", "one_weird_trick", "random"])
def test_every_known_plan_can_be_asked_for(name, capsys):
    words = ["plan", "gpt:layers=1,width=32,seq=16", "--machine", MACHINE, "--batch", "4"]
    facts = answer(capsys, *words, "--search", name, "--budget", "3")
    assert facts["num_proposals"] in ((3, 6, 9) if name == "random" else (1,))
    assert name == "random" or facts["found"]["step_seconds"] == facts["seeds"][name]["step_seconds"]


@pytest.mark.parametrize("words", [["plan", "--budget", "5"], ["simulate"]])
def test_the_simulated_step_becomes_a_trace(words, tmp_path, capsys):
    path = tmp_path / "trace.json"
    facts = answer(capsys, words[0], MLP, *words[1:], "--machine", MACHINE, "--trace", str(path))
    assert facts["files"] == {"trace": str(path)}
    events = json.loads(path.read_text())
    events = events["traceEvents"] if isinstance(events, dict) else events
    spans = [event for event in events if event["ph"] == "X"]
    assert len({event["name"] for event in spans}) == facts["num_tasks"]
    last = max(event["ts"] + event["dur"] for event in spans)
    wanted = facts["step_seconds"] if words[0] == "simulate" else facts["found"]["step_seconds"]
    assert last == pytest.approx(wanted * 1e6)


def test_batch_is_part_of_what_a_plan_is_for(tmp_path, capsys):
    path = str(tmp_path / "plan.json")
    assert answer(capsys, "plan", MLP, "--machine", MACHINE, "--budget", "1", "--batch", "24", "--out", path)
    for batch in ([], ["--batch", "24"]):
        assert answer(capsys, "simulate", path, "--machine", MACHINE, *batch)["batch_samples"] == 24
    other = sentence(capsys, "simulate", path, "--machine", MACHINE, "--batch", "25")
    assert "give the same model, settings and --batch" in other


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["plan", "convnett"], "no model 'convnett' (did you mean 'convnet'"),
        (["plan", "mlp:wdth=3"], "no setting 'wdth' (did you mean 'width'"),
        (["plan", "none.py"], "model file none.py: No such file"),
        (["plan", "mlp", "--machine", "dgx"], "no machine 'dgx'"),
        (["plan", "mlp", "--machine", "none.toml"], "machine file none.toml: No such file"),
        (["plan", MLP, "--machine", MACHINE, "--search", "mcm"], "no search 'mcm' (did you mean 'mcmc'"),
        (
            ["plan", MLP, "--machine", MACHINE, "--budget", "ten"],
            "budget 'ten': give a number of proposals such as 5000",
        ),
        (["plan", MLP, "--machine", MACHINE, "--objective", "speed"], "no objective 'speed'"),
        (["plan", MLP, "--machine", MACHINE, "--from", "none.json"], "plan none.json: No such file"),
        (["plan", MLP, "--machine", MACHINE, "--batch", "-1"], "--batch -1: give 1 or more"),
        (["plan", MLP, "--machine", MACHINE, "--search", "exhaustive"], "use --search mcmc, or raise --budget"),
        (["plan", MLP, "--machine", MACHINE, "--profile", "none.db"], "profile database none.db: no such file"),
        (["simulate", "none.json", "--machine", MACHINE], "plan none.json: No such file"),
        (["simulate", MLP, "--machine", MACHINE, "--plan", "none.json"], "plan none.json: No such file"),
        (["simulate", "a.json", "--machine", MACHINE, "--plan", "b.json"], "name one of them"),
    ],
)
def test_a_mistake_is_one_sentence(words, part, capsys):
    assert part in sentence(capsys, *words)


SMALL = """
[[processor]]
kind = "tiny"
count = 2
flops_per_second = 1e9
bytes_per_second = 1e9
memory_bytes = 20000

[[level]]
name = "wire"
latency_seconds = 1e-6
bytes_per_second = 1e9
"""


@pytest.mark.parametrize("command", ["plan", "simulate"])
def test_a_model_too_large_for_memory_is_refused_with_its_owners(command, tmp_path, capsys):
    (tmp_path / "tiny.toml").write_text(SMALL)
    extra = ["--budget", "5"] if command == "plan" else []
    text = sentence(capsys, command, "mlp", "--machine", str(tmp_path / "tiny.toml"), *extra)
    assert "needs" in text and "19.5 KiB" in text and text.count("iB)") == 5


def test_help_explains(capsys):
    for name in ("plan", "simulate"):
        assert main([name, "--help"]) == 0
        out = capsys.readouterr().out
        assert "--machine" in out and "--json" in out and "dgx-h100" in out


BLOCKED = """
import sys
from contextlib import nullcontext
class Absent:
    def find_spec(self, name, path=None, target=None):
        # How loops are compiled is no kernel, nor is the package by itself.
        is_kernel = name.startswith("castile.kernels.") and name != "castile.kernels.compiler"
        if name.split(".")[0] in {"cupy", "triton", "mpi4py"} or is_kernel:
            raise ImportError(name + " is blocked")
sys.meta_path.insert(0, Absent())
from castile.launch.__main__ import main
path = sys.argv[1]
for words in (["plan", "MLP", "--budget", "5", "--out", path], ["simulate", path]):
    status = main([*words, "--machine", "MACHINE", "--json"])
    if status:
        sys.exit(status)
""".replace("MLP", MLP).replace("MACHINE", MACHINE)


def test_planning_needs_no_gpu_no_mpi_and_no_kernels(tmp_path):
    command = [sys.executable, "-c", BLOCKED, str(tmp_path / "plan.json")]
    ended = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count('"num_procs": 8,') == 2 and homes.but_for_compiling(ended.stderr) == ""


@pytest.mark.mpi
def test_of_several_ranks_one_speaks(tmp_path):
    path = str(tmp_path / "plan.json")
    words = ["-m", "castile", "plan", MLP, "--budget", "5", "--json"]
    status, out, err = standing.run(2, *words, "--out", path, XDG_CACHE_HOME=str(tmp_path))
    assert status == 0 and homes.but_for_compiling(err).count("\n") == 1 and "measuring this host, once" in err
    assert json.loads(out)["num_procs"] == 2 and strategies.read(path).num_procs == 2
    # where this host was never measured, it is not measured for a mistake
    status, out, err = mpirun_apart(2, *words, "--search", "none", XDG_CACHE_HOME=str(tmp_path / "empty"))
    assert status == 2 and out == "" and "no search 'none'" in err
    assert "measuring" not in err and "Traceback" not in err


def test_equal_layers_are_told_once():
    nodes = [f"block{n}.{part}" for n in range(1, 5) for part in ("q", "k")]
    configs = {"tok": Config(), **{n: Config({"b": 2}, 1, (0, 1)) for n in nodes}}
    lines = report.plan_lines(Strategy(configs))
    assert [line.split() for line in lines] == [
        ["whole", "on", "0", "tok"],
        ["b:2", "on", "0,1", "block*.q", "block*.k"],
    ]
    configs["block3.k"] = Config({"o": 2}, 1, (1, 0))
    lines = report.plan_lines(Strategy(configs))
    assert len(lines) == 3 and lines[1].split()[3:] == ["block*.q", "block1.k", "block2.k", "block4.k"]


def test_one_processor_has_no_sums_to_put_in_buckets():
    alone, cut = ({"a": Config({"b": len(procs)}, 1, procs)} for procs in ((0,), (0, 1)))
    assert report.plan_lines(Strategy(alone, bucket_bytes=2**20))[1:] == ["updates together"]
    joined = "collectives in buckets of at most 1.0 MiB, updates together"
    assert report.plan_lines(Strategy(cut, bucket_bytes=2**20))[1:] == [joined]


def test_a_long_plan_stays_short():
    elsewhere = {f"n{n}x": Config({}, 1, (n,)) for n in range(40)}
    assert report.plan_lines(Strategy(elsewhere)) == ["whole on each of 0 ... 39  n*x"]
    configs = {f"n{n}x": Config({}, n + 1, tuple(range(n + 1))) for n in range(40)}
    lines = report.plan_lines(Strategy(configs))
    assert len(lines) == report.PLAN_LINES and lines[-1] == "and 31 more layouts, of 31 nodes"
    alike = {"".join(c): Config() for c in np.random.default_rng(0).choice(list("abcdefgh"), (60, 9)).tolist()}
    (line,) = report.plan_lines(Strategy(alike))
    assert len(line) <= 100 and line.split("and ")[1] == f"{len(alike) - (len(line.split()) - 6)} more"


def test_seeds_cut_what_has_samples():
    graph = models.parse(MLP).graph(64)
    assert set(map(str, data_parallel(graph, 4).values())) == {"b:4 on 0-3"}


def test_a_pipeline_is_looked_for_where_it_takes_less_than_what_was_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Sums of gradients take longer than what is computed. It is told beside plans of whole batches."""
    (tmp_path / "slow.toml").write_text(SLOW)
    model = "gpt:layers=2,width=64,heads=4,seq=32,vocab=100"
    given = ["plan", model, "--machine", str(tmp_path / "slow.toml"), "--batch", "4", "--budget", "30"]
    found = json.loads(_told([*given, "--json"], capsys))
    whole = json.loads(_told([*given, "--seeds", ",".join(found["seeds"]), "--json"], capsys))
    assert found["num_stages"] == found["microbatches"] == 2 and whole["microbatches"] == whole["num_stages"] == 1
    assert found["found"]["step_seconds"] < whole["found"]["step_seconds"]
    assert found["seeds"].keys() == whole["seeds"].keys() and found["num_proposals"] == whole["num_proposals"] + 30


def test_a_pipeline_may_be_asked_for_by_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    """A known plan of a batch that is cut, though there is none of a whole batch by that name."""
    given = ["plan", MLP, "--machine", "local:procs=4", "--accumulate", "4", "--search", "pipeline_2", "--json"]
    found = json.loads(_told(given, capsys))
    assert (found["num_stages"], found["microbatches"]) == (2, 4)
    assert found["search"] == found["equals"] == "pipeline_2"
    assert found["seeds"].keys() == {"data_parallel", "pipeline_2"}


def test_of_plans_of_many_parts_a_pipeline_is_taken_before_anything_is_searched(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In microbatches, as no plan of a whole batch fits; and it says so, not that a search has found it."""
    for module in (seeds, pipelines):
        monkeypatch.setattr(module, "has_many_parts", lambda lowering, most=MOST_PARTS: most == MOST_PARTS)
    model = "gpt:layers=8,width=4096,heads=16,seq=64,vocab=1000"
    given = ["plan", model, "--machine", "p3.16xlarge:nodes=2", "--batch", "2048", "--budget", "20", "--json"]
    found = json.loads(_told(given, capsys))
    assert found["search"] == found["equals"] == "pipeline_2_zero" and found["num_stages"] == 2 < found["microbatches"]
    # One search was for a plan of a whole batch, in vain.
    assert found["seeds"].keys() == {"data_parallel", "pipeline_2_zero"} and found["num_proposals"] == 21


def _told(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(words) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("search", ["mcmc", "data_parallel"])
def test_processes_are_refused_where_a_search_goes_on_in_one(search: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", MLP, "--machine", "local:procs=2", "--search", search, "--processes", "2"]) == 2
    assert capsys.readouterr().err == (
        f"castile: --processes 2 means nothing for --search {search}, which goes on in one process: leave it out, or "
        "give --search tempering\n"
    )


@pytest.mark.parametrize(
    "words",
    [
        ("--machine", "local:procs=" + "9" * 5000),
        ("--machine", "dgx-h100:nodes=" + "9" * 5000),
        ("--machine", "dgx-h100", "--pin", "fc1: {o: " + "9" * 5000 + "}"),
        ("--machine", "dgx-h100", "--seed", "-1"),
    ],
)
def test_numbers_of_any_length_and_sign_are_told_in_a_sentence(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", MLP, *words]) == 2
    said = capsys.readouterr().err
    assert said.startswith("castile: ") and said.count("\n") == 1
