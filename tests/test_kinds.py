"""Kinds of tasks: what nodes compute under a plan is what the tasks that are lowered of them cost."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from castile.launch import models
from castile.launch.__main__ import main
from castile.launch.jobs.jobs import recipe_updates
from castile.launch.measuring.task_kinds import is_among, of_nodes, owners
from castile.planner.known.seeds import seeds
from castile.planner.lower import Lowering
from castile.planner.strategy import Strategy
from castile.runtime import machine as machines
from castile.runtime.task import CostKey, Kind, TaskGraph
from tests import little
from tests.effort import examples

MODELS = ("mlp", "convnet", "lstm:layers=1,width=8,seq=3", "gpt:layers=2,width=16,heads=2,seq=4", "dlrm")


# bias/update.F@1[0~1]: a pass of a node, of a microbatch, by a part
TASK = re.compile(r"(.+)\.[^.@\[]+(@\d+)?\[.*\]")


# Many examples have a graph, and some a plan, that others have.
@cache
def lowered(model: str, num_procs: int, micro: int) -> tuple[Lowering, dict[str, Strategy]]:
    named = models.parse(model)
    lowering = Lowering(named.graph(8), machines.local(num_procs), recipe_updates(named.recipe), "train", micro)
    return lowering, seeds(lowering)


@cache
def told_of(model: str, num_procs: int, micro: int, name: str) -> tuple[Lowering, Strategy, TaskGraph]:
    """A known plan with its tasks."""
    lowering, plans = lowered(model, num_procs, micro)
    return lowering, plans[name], lowering.lower(plans[name])


@st.composite
def known(draw: st.DrawFn) -> tuple[Lowering, Strategy, TaskGraph]:
    of = draw(st.sampled_from(MODELS)), draw(st.sampled_from([1, 2, 4])), draw(st.sampled_from([1, 4]))
    return told_of(*of, draw(st.sampled_from(sorted(lowered(*of)[1]))))


@settings(max_examples=examples(100))
@given(known(), st.data())
def test_nodes_have_the_kinds_of_the_tasks_that_are_lowered_of_them(
    known: tuple[Lowering, Strategy, TaskGraph], data: st.DataObject
) -> None:
    """Of some nodes those of tasks by their names, of all of them those of all tasks that compute, and no others."""
    lowering, plan, tasks = known
    of: dict[str, set[CostKey]] = {}
    for t in np.flatnonzero(tasks.kind == Kind.COMPUTE).tolist():
        key, name = tasks.cost_keys[tasks.cost[t]], TASK.fullmatch(tasks.tasks[t].name)
        if name is not None:
            of.setdefault(name[1], set()).add(key.dense or key)
    some = data.draw(st.lists(st.sampled_from(sorted(of)), unique=True))
    only = of_nodes(lowering, [plan], some)
    assert only == set().union(*(of[name] for name in some))
    assert of_nodes(lowering, [plan], ["*"]) == set().union(*of.values())
    assert {key.dense or key for key in tasks.cost_keys if is_among(key, only)} == only


@settings(max_examples=examples(100))
@given(known())
def test_a_kind_belongs_to_the_nodes_that_have_it(known: tuple[Lowering, Strategy, TaskGraph]) -> None:
    """And what is sent to no node, but to what is sent of one."""
    lowering, plan, tasks = known
    found = owners(tasks, set(tasks.cost_keys))
    assert {key for key, names in found.items() if names} == {tasks.cost_keys[k] for k in np.unique(tasks.cost)}
    computing = {key: names for key, names in found.items() if not key.link and "." in key.work}
    for name in {name for names in computing.values() for name in names}:
        mine = {key.dense or key for key, names in computing.items() if name in names}
        assert mine == of_nodes(lowering, [plan], [name])
    made = {*lowering.graph.tensors, "gradients"}
    for names in (names for key, names in found.items() if key.link):
        assert {name.partition("/")[0] for name in names} <= made
    assert not owners(tasks, set())


def test_what_several_do_together_is_the_firsts_with_the_number_of_others() -> None:
    lowering = Lowering(models.parse("mlp").graph(64), little.machine(2))
    tasks = lowering.lower(msgspec.structs.replace(seeds(lowering)["data_parallel"], bucket_bytes=2**25))
    found = owners(tasks, set(tasks.cost_keys))
    told = {name for key, names in found.items() for name in names if key.name in ("sgd.F", "all_reduce")}
    assert told == {"fc1.weight/update and 4 more", "head.bias/update", "fc1.bias/grad and 4 more"}


@pytest.mark.parametrize(
    ("op", "told"),
    [
        ("conw*", "--op conw*: no node has a name like that (did you mean 'conv2'?)"),
        ("*/fetch", "--op */fetch: these nodes compute nothing of their own in data_parallel"),
    ],
)
def test_nodes_of_which_nothing_can_be_measured_are_refused(
    op: str, told: str, alone: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["profile", "convnet", "--machine", "local:procs=1", "--op", op]) == 2
    assert told in capsys.readouterr().err
