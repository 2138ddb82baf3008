"""Training where no known plan fits as steps were to be: these are made so that one does, as `castile plan` does."""

import json
import re
from pathlib import Path

import pytest

from castile.launch.__main__ import main
from tests import standing
from tests.effort import rare
from tests.little import described

MODEL = "gpt:layers=1,width=32,heads=2,seq=32,vocab=128"
BATCH = 16


def little(memory: int, num_procs: int = 1) -> str:
    """A machine of so much memory on each processor."""
    Path("small.toml").write_text(described(memory, num_procs, "cpu"))
    return "small.toml"


def words(memory: int, *more: str) -> list[str]:
    Path("little.txt").write_text("all that is written here is written here for so many samples " * 250)
    # The profile is of its own, so that nothing is known of other machines of that name.
    return [
        "train", MODEL, "--machine", little(memory), "--data", "text:file=little.txt", "--batch", str(BATCH),
        "--steps", "3", "--profile", "profile.db", "--json", *(() if "--plan" in more else ("--budget", "5")), *more,
    ]  # fmt: skip


def trained(capsys, memory: int, *more: str) -> dict:
    capsys.readouterr()
    assert main(words(memory, *more)) == 0
    return json.loads(capsys.readouterr().out)


def needed(capsys, *more: str) -> int:
    """What the fullest processor needs where there is plenty, and a little more: prices that are measured decide in
    which order kernels run, and so how much lives at a time.
    """
    return round(1.1 * max(trained(capsys, 10**9, *more)["peak_bytes"]))


@pytest.mark.parametrize(("search", "least"), [
    ("mcmc", 2), ("one_processor", 4), *rare(("mcmc", 4), ("one_processor", 2)),
])  # fmt: skip
def test_batches_are_cut_until_a_plan_fits_and_train_as_if_that_were_said(search, least, alone, capsys):
    """The losses are those of a run that says into how many pieces; and into how many the plan's file says."""
    asked = ("--search", search)
    room = needed(capsys, *asked, "--accumulate", str(least))
    facts = trained(capsys, room, *asked, "--out", "plan.json")
    number = facts["microbatches"]
    assert facts["is_made_to_fit"] and number >= least and max(facts["peak_bytes"]) <= room
    said = trained(capsys, room, *asked, "--accumulate", str(number))
    assert not said["is_made_to_fit"] and said["losses"] == facts["losses"]
    again = trained(capsys, room, "--plan", "plan.json")
    assert again["microbatches"] == number and again["losses"] == facts["losses"]


def test_what_is_said_is_kept_to_and_what_else_would_do_is_told(alone, capsys):
    two = needed(capsys, "--search", "one_processor", "--accumulate", "2", "--recompute", "none")
    line = words(two, "--search", "one_processor", "--recompute", "none", "--accumulate", "1")
    assert main(line) == 2
    # the fastest number by what was measured until now
    advice = r"no plan fits.*; or give --accumulate (\d+), with which a known plan fits"
    said = re.search(advice, capsys.readouterr().err)
    assert said is not None and int(said[1]) >= 2
    trained(capsys, two, "--search", "one_processor", "--recompute", "none", "--accumulate", said[1])
    room = needed(capsys, "--search", "one_processor", "--accumulate", "1", "--recompute", "full")
    facts = trained(capsys, room, "--search", "one_processor", "--accumulate", "1")
    assert facts["microbatches"] == 1 and facts["is_made_to_fit"], "results are computed again instead"


def test_a_run_goes_on_with_the_pieces_that_it_was_cut_into(alone, capsys):
    asked = ("--search", "one_processor")
    room = needed(capsys, *asked, "--accumulate", "2")
    first = trained(capsys, room, *asked, "--checkpoint", "run")
    more = trained(capsys, room, *asked, "--checkpoint", "run", "--resume", "--steps", "5")
    assert first["microbatches"] == more["microbatches"] > 1
    assert (more["first_step"], more["num_steps"], more["is_made_to_fit"]) == (3, 2, False)


def test_held_out_samples_are_judged_in_the_memory_of_steps_and_as_many_at_once_as_it_has_room_for(alone, capsys):
    """A forward pass over a whole batch needs more than steps of four pieces; what is said of samples stays."""
    asked = ("--search", "one_processor", "--accumulate", "4")
    room = needed(capsys, *asked)
    figures = []
    for memory in (room, 10**9):
        assert main([word for word in words(memory, *asked) if word != "--json"]) == 0
        out = capsys.readouterr().out
        assert bool(re.search(rf"judged \d+ at a time: steps leave no memory for {BATCH}", out)) == (memory == room)
        figures.append(re.findall(r"held out: .*", out))
    assert figures[0] == figures[1] != []


def test_the_screen_says_why_steps_are_cut(alone, capsys):
    asked = ("--search", "one_processor")
    room = needed(capsys, *asked, "--accumulate", "2")
    assert main([word for word in words(room, *asked) if word != "--json"]) == 0
    told = capsys.readouterr()
    assert re.search(r"a step in \d microbatches: no known plan fits otherwise", told.out)
    assert "looking for one that does" in told.err + told.out


@pytest.mark.mpi
def test_ranks_agree_on_what_fits(alone, capsys):
    """Each is left with less than half of what a step takes; ranks that came to other steps would be refused."""
    asked = ("--search", "data_parallel")
    line = words(10**9, *asked)
    line[line.index("small.toml")] = little(round(0.4 * needed(capsys, *asked)), 2)
    status, out, err = standing.run(2, "-m", "castile", *line)
    assert status == 0, err
    facts = json.loads(out)
    assert facts["is_made_to_fit"] and facts["num_ranks"] == 2
