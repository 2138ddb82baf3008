"""What people see on a narrow terminal, and how figures read: none is cut, whatever a line's width."""

import fnmatch
import io
import re
import sys
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from castile.launch.__main__ import main
from castile.launch.reports import progress, report
from castile.launch.reports.screen import Speaker
from castile.launch.training import training

# Columns; a bar's figures alone take 51.
WIDTHS = [60, 200]


class Terminal(io.StringIO):
    """A text stream that says it is a terminal."""

    def isatty(self):
        return True


def terminal(monkeypatch, columns):
    """Both of a process's streams, so many columns wide."""
    shown = Terminal()
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stdout", shown)
    monkeypatch.setattr(sys, "stderr", shown)
    return shown


@pytest.mark.parametrize("columns", WIDTHS)
def test_no_figure_of_a_table_is_cut(columns, monkeypatch):
    shown = terminal(monkeypatch, columns)
    row = {"step_seconds": 1.2345e-2, "live_bytes": 123456, "moved_bytes": 0, "speedup_over_data_parallel": 1.75}
    rows = {"one_weird_trick": row | {"fits": True}, "found by data_parallel": row | {"fits": False}}
    report.console().print(report.plan_table(rows))
    words = ("one_weird_trick", "12.345 ms", "120.6 KiB", "0 bytes", "x data parallel", "1.75", "does not fit")
    assert all(word in shown.getvalue() for word in words), shown.getvalue()
    # what mpirun shows as a terminal may be a file
    assert "\x1b" not in shown.getvalue()


def test_a_table_has_no_column_for_notes_that_nobody_made(monkeypatch):
    shown = terminal(monkeypatch, 60)
    row = {"step_seconds": 1e-3, "live_bytes": 1, "moved_bytes": 0, "speedup_over_data_parallel": 1.0, "fits": True}
    report.console().print(report.plan_table({"fsdp": row}))
    last = shown.getvalue().rstrip("\n").rpartition("\n")[2]
    assert last.endswith("1.00")


@pytest.mark.parametrize("columns", WIDTHS)
def test_no_figure_of_a_bar_is_cut(columns, monkeypatch):
    shown = terminal(monkeypatch, columns)
    with Speaker(leads=True, json=False).bar(20_000, 100_000) as bar:
        bar.step(40_000, 0.5, 48_123.0)
    with progress.bar(True, "x") as advance:
        advance("conv2d.F", 3_000, 100_000)
    text = shown.getvalue()
    assert " 40000/100000" in text and "3000/100000" in text, text


def test_nothing_is_counted_before_it_is_known_how_much_there_is(monkeypatch):
    for show in (progress.bar(True, "x"), progress.searching()):
        shown = terminal(monkeypatch, 80)
        with show:
            pass
        text = shown.getvalue()
        assert "━" in text and "/" not in text, text


TRAIN = ["train", "mlp:width=8", "--steps", "2", "--search", "data_parallel"]


def test_what_follows_the_last_step_has_a_bar_too(monkeypatch):
    shown = terminal(monkeypatch, 80)
    monkeypatch.setattr(progress, "REFRESH_SECONDS", 0.0)
    assert main(TRAIN) == 0
    counted = [f"{min(done, 360)}/360" for done in range(64, 424, 64)]
    at = [shown.getvalue().index(text) for text in ("evaluating on 360 samples", *counted, "held out: ")]
    assert at == sorted(at)


@pytest.mark.parametrize("is_watched", [False, True])
@pytest.mark.parametrize("quiet", [60.0, 0.0])
def test_a_log_is_not_quiet_for_long_however_many_steps_there_are(quiet, is_watched, monkeypatch, capsys):
    """Beside the steps that are measured task by task, here every second; a terminal has a bar instead."""
    for name in ("LEAST_QUIET_SECONDS", "MOST_QUIET_SECONDS"):
        monkeypatch.setattr(training, name, quiet)
    shown = terminal(monkeypatch, 200) if is_watched else None
    assert main("train mlp:width=8 --steps 50 --batch 8 --search data_parallel".split()) == 0
    out = capsys.readouterr().out if shown is None else shown.getvalue()
    told = [int(number) for number in re.findall(r"^.*step +(\d+)  loss", out, re.MULTILINE)]
    assert told == (list(range(1, 51)) if not quiet and not is_watched else list(range(2, 51, 2)))


@pytest.mark.parametrize("kind", ["xterm", "dumb"])
def test_every_terminal_shows_simulated_beside_measured_times(kind, monkeypatch):
    """Above the bar, which is gone at the end; a dumb terminal has the lines alone."""
    shown = terminal(monkeypatch, 120)
    monkeypatch.setenv("TERM", kind)
    assert main(TRAIN) == 0
    lines = [line for line in shown.getvalue().splitlines() if "(sim " in line]
    assert [line[line.index("step") :].split()[1] for line in lines] == ["1", "2"]
    if kind == "dumb":
        assert "━" not in shown.getvalue() and "\n\n" not in shown.getvalue()
        assert "evaluating on 360 samples ...\n" in shown.getvalue()


def test_where_nobody_watches_a_line_says_that_it_begins(capsys):
    for words in ([], ["--json"]):
        assert main([*TRAIN, *words]) == 0
        out = capsys.readouterr().out
        assert ("evaluating on 360 samples ...\n" in out) == (not words)


@given(st.floats(1e-3, 1e9))
def test_a_rate_keeps_its_digits(rate):
    number, unit = report.pace(rate).split(" ")
    told = float(number.rstrip("kM")) * {"k": 1e3, "M": 1e6}.get(number[-1], 1.0)
    assert unit == "samples/s" and told == pytest.approx(rate, rel=0.051 if number.endswith("k") else 0.006)


NAMES = st.builds(
    "{}{}.{}".format, st.sampled_from(["block", "fc", "layer"]), st.integers(1, 12), st.sampled_from("abc")
)


@given(st.lists(NAMES, min_size=1, max_size=40, unique=True), st.data(), st.integers(14, 60))
def test_every_node_of_a_layout_is_named_or_counted(every, data, width):
    """A family by one name with a star where all of it is here, and only then."""
    nodes = [name for name in every if data.draw(st.booleans())] or every
    text = report.named_briefly(nodes, every, width)
    shown, _, more = text.partition(" and ")
    assert len(text) <= max(width, len(shown.split()[0]) + 12)
    found = []
    for word in shown.split():
        found += [name for name in every if fnmatch.fnmatchcase(name, word)]
    assert set(found) <= set(nodes) and len(found) == len(set(found))
    assert len(found) + int(more.removesuffix(" more") or 0) == len(nodes)


def test_a_line_is_full_before_nodes_are_counted():
    """To the last letter, and to the digits of how many are left."""
    nodes = [a + b * n for n, (a, b) in enumerate(product("abcdefghij", "klmnopqrstuv"))]
    for width in range(20, 9000, 7):
        text = report.named_briefly(nodes, nodes, width)
        shown, _, more = text.partition(" and ")
        count, left = len(shown.split()), int(more.removesuffix(" more") or 0)
        longer = [*nodes[: count + 1], f"and {left - 1} more"] if left > 1 else nodes
        assert len(text) <= width < len(" ".join(longer)) or not left
