"""Every kernel call of every model has a form on a GPU: what had none would run on the host, and could not be captured.

Shapes and steps of what is bound are looked at; nothing is computed.
"""

from collections import Counter
from functools import cache

import pytest

pytest.importorskip("triton")

from castile.kernels import choice
from castile.kernels.choice import Array
from castile.kernels.table import Table
from castile.launch import models
from castile.launch.measuring import tuning as jobs
from castile.launch.typed import optimizers
from castile.planner import rewrite
from castile.planner.families.updates import Updates
from castile.planner.graph import Graph
from castile.planner.lower import Lowering
from castile.planner.strategy import Strategy
from tests.effort import rare
from tests.little import machine
from tests.strategies import regular, whole_on
from tests.test_models import scaled
from tests.triton_arrays import array
from tests.triton_cases import plan

# Whether there is a form hardly depends on what it computes with: of other numbers a plan with parts is enough.
PLANS = {"float32": ("last", *rare("first", "whole"))} | dict(rare(("float16", ("last",))))


def calls(graph: Graph, how: str, updates: Updates) -> set[str]:
    """What the kernel calls of a step are looked up by, on two processors."""
    cut = Strategy({name: regular(node, how, (0, 1)) for name, node in graph.nodes.items()})
    tasks = Lowering(graph, machine(2), updates).lower(whole_on(graph) if how == "whole" else cut)
    return set(jobs.names(Table("triton"), tasks, range(len(tasks.tasks))))


@cache
def on_host(name: str) -> bool:
    """Whether no form takes a call."""
    call = choice.call_of(name)
    outs, args = (
        tuple(array(x.shape, x.dtype) if isinstance(x, Array) else x for x in xs) for xs in (call.outs, call.args)
    )
    return (
        call.kernel not in Table("triton").forms
        or plan(call.kernel, outs, (args, call.params), call.accumulate) is None
    )


@pytest.mark.parametrize("dtype", PLANS)
@pytest.mark.parametrize("name", models.available())
def test_every_kernel_of_a_model_runs_on_a_gpu(name: str, dtype: str) -> None:
    graph = models.parse(scaled(name)).graph(batch=4, dtype=dtype)
    updates = Updates(optimizers.parse("sgd:momentum=0.5"), clip=1.0)
    every = set().union(*(calls(graph, how, updates) for how in PLANS[dtype]))
    assert len(every) > 3
    assert Counter(choice.call_of(one).kernel for one in every if on_host(one)) == {}


@pytest.mark.parametrize("name", models.available())
def test_every_kernel_of_a_rewritten_model_runs_on_a_gpu(name: str) -> None:
    graph = rewrite.apply("+".join(rewrite.available()), models.parse(scaled(name)).graph(batch=4, dtype="bfloat16"))
    every = calls(graph, "last", Updates(optimizers.parse("sgd")))
    assert Counter(choice.call_of(one).kernel for one in every if on_host(one)) == {}
