"""`castile plan` for several machines: each as if it were asked for alone, and one table of all."""

import json
import signal
from contextlib import nullcontext
from pathlib import Path

import pytest

from castile.launch import plan as plan_command
from castile.launch.__main__ import main
from castile.launch.reports import report, search_report
from castile.planner import strategy as strategies
from castile.runtime.memory import written
from tests.answers import answer, sentence, timeless

MLP = "mlp:layers=1,width=16"
WORDS = ["plan", MLP, "--batch", "8", "--budget", "10", "--seed", "2"]
# For what does not depend on how a plan is found.
KNOWN = ["plan", MLP, "--search", "data_parallel"]
MACHINES = ("flexflow-p100:nodes=1", "flexflow-k80:nodes=1")
# A machine with no room for any plan.
TINY = """
[[processor]]
kind = "cpu"
flops_per_second = 5e10
bytes_per_second = 8e9
memory_bytes = 1000
"""


def on(*machines: str) -> list[str]:
    """The options that ask for these machines."""
    return [word for machine in machines for word in ("--machine", machine)]


@pytest.fixture
def tiny(tmp_path: Path) -> str:
    path = tmp_path / "tiny.toml"
    path.write_text(TINY)
    return str(path)


def test_each_machine_is_planned_for_as_if_alone(capsys):
    rows = answer(capsys, *WORDS, *on(*MACHINES))["machines"]
    for machine, row in zip(MACHINES, rows, strict=True):
        alone = answer(capsys, *WORDS, *on(machine))
        assert row.pop("refused") is None
        assert timeless(row) == timeless(alone)


def test_where_nothing_fits_is_a_row(tiny, capsys):
    words = [*KNOWN, *on(MACHINES[0], tiny, MACHINES[1])]
    first, refused, last = answer(capsys, *words)["machines"]
    assert first["refused"] is None is last["refused"]
    assert refused["machine"] == tiny and refused["num_procs"] == 1 and refused["refused"].startswith("no plan fits")
    assert main(words) == 0
    out = capsys.readouterr().out
    assert f"{tiny}: {refused['refused']}\n" in out and " none" in out


def test_where_nothing_fits_anywhere_the_status_says_so(tiny, capsys):
    assert main([*WORDS, *on(tiny, tiny), "--json"]) == 2
    out, err = capsys.readouterr()
    assert all(row["refused"] for row in json.loads(out)["machines"])
    assert err == "castile: no plan was found for any of these machines\n"


def test_people_are_told_the_same(capsys):
    rows = answer(capsys, *WORDS, *on(*MACHINES))["machines"]
    search_report.tell_machines(MLP, "time", rows)
    out = capsys.readouterr().out
    for row in rows:
        assert row["samples_per_second"] == pytest.approx(8 / row["found"]["step_seconds"])
        assert row["samples_per_second_per_proc"] * row["num_procs"] == pytest.approx(row["samples_per_second"])
        (line,) = (line for line in out.splitlines() if line.startswith(row["machine"]))
        told = [
            str(row["num_procs"]), report.duration(row["found"]["step_seconds"]),
            report.pace(row["samples_per_second"]), report.pace(row["samples_per_second_per_proc"]),
            report.percent(row["model_flops_utilisation"]), written(max(row["found"]["arena_bytes"])),
            written(row["capacity_bytes"][0]),
            row["equals"] or "most nodes",
        ]  # fmt: skip
        at = [line.index(word) for word in told]
        assert at == sorted(at), line


@pytest.mark.parametrize(
    ("words", "said"),
    [("pipeline_2 --accumulate 4", "pipeline_2, 2 stages, 4 microbatches"),
     ("data_parallel --recompute full", "data_parallel, 3 nodes computed again"),
     ("data_parallel --recompute parameters --seeds fsdp", "data_parallel, 7 parameters gathered")],
)  # fmt: skip
def test_a_plan_is_told_in_a_few_words(words, said, capsys):
    wide = ["plan", "mlp:layers=3,width=64", *on("dgx-h100:nodes=1", "dgx-h100:nodes=1"), "--search"]
    assert main([*wide, *words.split()]) == 0
    assert said in capsys.readouterr().out


def test_files_are_numbered_as_the_machines_are(tiny, tmp_path, capsys):
    names = {"out": "plan.json", "trace": "trace.json", "picture": "plan.svg"}
    asked = [word for name, path in names.items() for word in (f"--{name}", str(tmp_path / path))]
    rows = answer(capsys, *KNOWN, *on(MACHINES[0], tiny, MACHINES[1]), *asked)["machines"]
    made = {path.name for path in tmp_path.iterdir()} - {"tiny.toml"}
    assert made == {f"{stem}-{n}.{end}" for n in (1, 3) for stem, end in map(lambda p: p.split("."), names.values())}
    for number in (1, 3):
        row, path = rows[number - 1], str(tmp_path / f"plan-{number}.json")
        assert row["files"]["plan"] == path and strategies.read(path).machine_name == row["machine"]
        assert answer(capsys, "simulate", path)["step_seconds"] == row["found"]["step_seconds"]


@pytest.mark.parametrize(
    ("words", "said"),
    [(on("dgx-h100:nodes=1", "dgx-h10"), "no machine 'dgx-h10'"),
     ([*on("dgx-h100:nodes=1", "p3.16xlarge"), "--front"], "--front is of one machine"),
     ([*on("dgx-h100:nodes=1", "p3.16xlarge"), "--out", "/dev/stdout"], "2 machines have a file each"),
     ([*on("dgx-h100:nodes=1", "flexflow-p100:nodes=1"), "--without", "7"], "7")],
)  # fmt: skip
def test_mistakes_are_told_before_anything_is_looked_for(words, said, capsys, monkeypatch):
    monkeypatch.setattr(plan_command, "searching", lambda which: pytest.fail("a search began"))
    assert said in sentence(capsys, *WORDS, *words)


def test_no_machine_file_is_written_over(tmp_path, capsys):
    path = tmp_path / "one-2.toml"
    path.write_text(TINY)
    words = [*WORDS, *on(MACHINES[0], str(path)), "--out", str(tmp_path / "one.toml")]
    assert "the command reads this file" in sentence(capsys, *words) and path.read_text() == TINY


def test_ctrl_c_ends_all_searches_with_the_best_plans_so_far(capsys, monkeypatch):
    before, presses, begun = signal.getsignal(signal.SIGINT), iter([signal.SIGINT]), []

    def show(which):
        begun.append(which)
        return nullcontext(lambda spent, best, _: [signal.raise_signal(number) for number in presses])

    monkeypatch.setattr(plan_command, "searching", show)
    machines = ("local:procs=4", "local:procs=3")
    rows = answer(capsys, "plan", "mlp", "--budget", "100000s", *on(*machines))["machines"]
    assert [row["machine"] for row in rows] == [*machines] and begun == ["1 of 2", "2 of 2"]
    assert all(row["found"]["fits"] for row in rows) and signal.getsignal(signal.SIGINT) is before


def test_brackets_in_a_files_name_are_shown(tmp_path, monkeypatch, capsys):
    """As in all tables."""
    monkeypatch.chdir(tmp_path)
    for name in ("old[1].toml", "[bold]new.toml"):
        Path(name).write_text(TINY.replace("memory_bytes = 1000", "memory_bytes = 1_000_000_000"))
    assert main([*WORDS, *on("old[1].toml", "[bold]new.toml")]) == 0
    out = capsys.readouterr().out
    assert "\nold[1].toml " in out and "\n[bold]new.toml " in out
