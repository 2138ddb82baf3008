"""`castile plan` with several searches or seeds: each as if it were asked for alone, one table, and one picture of how
they went on.
"""

import math
import re
import statistics

import pytest

from castile.launch import plan as plan_command
from castile.launch.__main__ import main
from castile.launch.jobs.search_history import SearchHistory
from castile.launch.pictures import descent
from castile.launch.reports import report, search_comparison
from castile.planner import strategy as strategies
from castile.planner.cost import CostModel
from castile.planner.evaluation.evaluator import Evaluator
from castile.planner.lower import Lowering
from castile.planner.search import search
from castile.runtime import machine
from castile.runtime.memory import written
from tests.answers import answer, sentence, timeless
from tests.little import two_layers
from tests.svg import Picture

MLP = "mlp:layers=1,width=16"
WORDS = ["plan", MLP, "--machine", "dgx-h100:nodes=1"]
# Of few processors, so that little is tried.
SHORT = ["plan", MLP, "--machine", "local:procs=2", "--budget", "6", "--seeds", "data_parallel"]
TINY = '[[processor]]\nkind = "cpu"\nflops_per_second = 5e10\nbytes_per_second = 8e9\nmemory_bytes = 1000\n'


def by(*searches: str) -> list[str]:
    """The options that ask for these searches."""
    return [word for name in searches for word in ("--search", name)]


def figures(run: dict) -> dict:
    """A run's figures but for how long it took, and whether it found anything."""
    return {name: value for name, value in timeless(run).items() if name not in ("refused", "files")}


def test_each_search_is_made_with_each_seed_as_if_alone(capsys, tmp_path):
    plan, picture = tmp_path / "plan.json", tmp_path / "how.svg"
    files = ["--out", str(plan), "--picture", str(picture)]
    told = answer(capsys, *SHORT, *by("random", "data_parallel"), "--seed", "3,5", *files)
    runs = told["runs"]
    assert [(run["search"], run["seed"]) for run in runs] == [
        ("random", 3), ("random", 5), ("data_parallel", 3), ("data_parallel", 5)
    ]  # fmt: skip
    assert figures(runs[1]) == figures(answer(capsys, *SHORT, *by("random"), "--seed", "5"))
    assert {path.name for path in tmp_path.iterdir()} == {*(f"plan-{n}.json" for n in range(1, 5)), "how.svg"}
    for number, run in enumerate(runs, 1):
        kept = strategies.read(run["files"]["plan"])
        assert run["files"] == {"plan": str(tmp_path / f"plan-{number}.json")} and kept.seed == run["seed"]
    assert told["files"] == {"picture": str(picture)}
    assert picture.read_text() == descent.picture(f"{MLP} on {runs[0]['machine']}", "step_seconds", runs)


RUNS = [
    {"search": name, "seed": seed, "machine": "m", "refused": None, "num_proposals": 100 * (seed + 1),
     "elapsed_seconds": 2.0 + seed, "equals": "fsdp", "layouts": [{"config": "whole on 0", "nodes": ["a"]}],
     "num_stages": 1, "microbatches": 1, "num_recomputed": 0, "num_gathered_again": 0,
     "files": {"plan": f"{name}-{seed}.json"}, "found": {"step_seconds": seconds, "arena_bytes": [7, nbytes]},
     "history": [{"num_proposals": 0, "step_seconds": 0.5, "live_bytes": 9000},
                 {"num_proposals": 40, "step_seconds": seconds, "live_bytes": nbytes}]}
    for name, seed, seconds, nbytes in (
        ("good", 0, 0.25, 4096), ("good", 1, 0.2, 6144), ("good", 2, 0.27, 1024), ("lone", 0, 0.3, 8192)
    )
]  # fmt: skip
NONE = {"search": "lone", "seed": 1, "machine": "m", "num_procs": 1, "refused": "no plan fits"}


@pytest.mark.parametrize(
    ("objective", "key", "values", "shown"),
    [("time", "step_seconds", (0.25, 0.2, 0.27), report.duration),
     ("memory", "arena_bytes", (4096, 6144, 1024), lambda value: written(round(value)))],
)  # fmt: skip
def test_seeds_are_told_by_their_spread(objective, key, values, shown, capsys):
    told = search_comparison.facts(objective, [*RUNS, NONE])
    good, lone = told["searches"]
    wanted = {
        "least": min(values), "median": statistics.median(values), "mean": statistics.fmean(values),
        "deviation": statistics.stdev(values), "most": max(values),
    }  # fmt: skip
    assert good[key] == pytest.approx(wanted) and good["seeds"] == [0, 1, 2] and good["num_found"] == 3
    assert good["above_best"] == pytest.approx(wanted["median"] / wanted["least"] - 1)
    assert (good["num_equal_best"], lone["num_equal_best"]) == (1, 0)
    assert good["num_proposals"]["mean"] == 200 and good["elapsed_seconds"]["most"] == 4.0
    assert lone[key]["deviation"] is None and (lone["seeds"], lone["num_found"]) == ([0, 1], 1)
    assert told["best"] == values.index(min(values)) and told["runs"] == [*RUNS, NONE]
    search_comparison.tell("net", objective, told | {"files": {"picture": "how.svg"}})
    out = capsys.readouterr().out
    line = next(line for line in out.splitlines() if line.startswith("good"))
    cells = ["3", *(shown(value) for value in wanted.values()), report.percent(good["above_best"]), "200", "3.0 s"]
    assert re.split(" {2,}", line.rstrip()) == ["good", *cells]
    assert "1 of 2" in out and "\nlone, seed 1: no plan fits\n" in out and "picture written to how.svg\n" in out
    assert f"\nthe best: good, seed {told['best']}: fsdp, in good-{told['best']}.json\n" in out


def test_where_nothing_is_found_the_status_says_so(tmp_path, capsys):
    path = tmp_path / "tiny.toml"
    path.write_text(TINY)
    words = ["plan", MLP, "--machine", str(path), *by("data_parallel", "fsdp")]
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert (
        len(re.findall("^(data_parallel|fsdp) +0 of 1 +none$", out, re.MULTILINE)) == 2
        and "\nfsdp, seed 0: no plan fits" in out
    )
    assert err == "castile: no plan was found by any of these searches\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [("--seed 4-2", "--seed 4-2: give the lesser number first"), ("--seed 1,0-1", "names a number twice"),
     ("--seed 0-1000", "at most 1000"), ("--seed -1", "--seed -1: give a whole number from 0 on, or several as in 0-4"),
     ("--seed two", "--seed two: give a whole number"), (f"--seed {2**64}", "from 0 to 2^64 - 1"),
     ("--seed 0-1 --front", "--front is of one machine, one search and one seed"),
     ("--search mcmc --search mcmx", "no search 'mcmx'"),
     ("--search mcmc --search random --machine local:procs=2", "several machines and several searches"),
     ("--seed 0-1 --out /dev/stdout", "2 searches have a file each")],
)  # fmt: skip
def test_mistakes_are_told_before_anything_is_looked_for(words, said, capsys, monkeypatch):
    monkeypatch.setattr(plan_command, "searching", lambda which: pytest.fail("a search began"))
    assert said in sentence(capsys, *WORDS, *words.split())


def test_a_course_is_the_way_of_all_searches_to_what_was_found():
    lowering, shown = Lowering(two_layers(), machine.local(2)), []
    same = Evaluator(lowering, CostModel(lowering.machine))
    course = SearchHistory(lambda *told: shown.append(told))
    first = search("random", same, "25", seed=1, progress=course.tell)
    found = search("mcmc", same, "30", seed=1, progress=course.tell, start={"first": first.strategy})
    assert course.num_proposals == first.num_proposals + found.num_proposals == sum(new for *_, new in shown)
    rows = course.ended(found)
    known = min(seed.seconds for seed in first.seeds.values())
    assert (rows[0]["num_proposals"], rows[0]["step_seconds"]) == (0, known)
    assert rows[-1]["step_seconds"] == found.evaluated.seconds
    for before, after in zip(rows, rows[1:]):
        assert before["step_seconds"] > after["step_seconds"]
        assert (
            before["num_proposals"] <= after["num_proposals"] and before["elapsed_seconds"] <= after["elapsed_seconds"]
        )
    # of a known plan that was asked for by name, better ones are no part of the way
    one = search("one_processor", same, progress=course.tell)
    assert [row["step_seconds"] for row in course.ended(one)] == [one.evaluated.seconds]


@pytest.mark.parametrize(("what", "better"), [("step_seconds", "quicker"), ("live_bytes", "less memory")])
def test_lines_lie_where_their_figures_are(what, better):
    picture = Picture(descent.picture("two searches", what, RUNS))
    picture.is_readable()
    least = min(run["history"][-1][what] for run in RUNS)
    most = max(row[what] for run in RUNS for row in run["history"]) / least - 1
    assert any(words.endswith(f"lower is {better}") for words, _ in picture.words)
    colours, dots = picture.legend, picture.titled("circle")
    every = [(run, row) for run in RUNS for row in run["history"]]
    for (run, row), (told, dot) in zip(every, dots, strict=True):
        share = row[what] / least - 1
        assert f"{run['search']}, seed {run['seed']}: {100 * share:.2f} % above" in told
        across = math.log(max(1, row["num_proposals"])) / math.log(300)
        width, height = descent.WIDTH - descent.LEFT - descent.RIGHT, descent.HEIGHT - descent.TOP - descent.BOTTOM
        assert float(dot.get("cx")) == pytest.approx(descent.LEFT + across * width, abs=0.06)
        assert float(dot.get("cy")) == pytest.approx(descent.TOP + (1 - share / most) * height, abs=0.06)
        assert dot.get("fill") == colours[run["search"]]
