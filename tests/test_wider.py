"""Copies made wider than what is wanted of them, so that they can be gathered: the keys before each position. And terms
made wider, so that they can be summed together: the gradients of these.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from castile.launch import models
from castile.planner.cost import CostModel
from castile.planner.evaluation.evaluator import Evaluator
from castile.planner.known.megatron import TensorCuts
from castile.planner.known.plans import context_parallel
from castile.planner.lower import Lowering
from castile.runtime import machine
from castile.runtime.collectives import plan
from castile.runtime.region import Box, blocks
from castile.runtime.task import Kind
from castile.runtime.transfer import Source, Transfer
from tests.effort import examples
from tests.training import SGD
from tests.transfers import Read, expected, links, results


def causal(num_procs: int, is_folded: bool, places: int, samples: int = 1) -> tuple[list[Source], list[Read]]:
    """Pieces of positions, one for each processor or one from either end, each of which wants all before its own."""
    whose = [*range(num_procs), *(reversed(range(num_procs)) if is_folded else ())]
    pieces = blocks(places, len(whose))
    sources = [Source(Box((0, lo, 0), (samples, hi, 2)), (p,)) for p, (lo, hi) in zip(whose, pieces, strict=True)]
    return sources, [(p, Box((0, 0, 0), (samples, hi, 2))) for p, (_, hi) in zip(whose, pieces, strict=True)]


def sent(t: Transfer) -> Counter[str]:
    return Counter(p.comm.form for p in t.patterns if p.comm)


@pytest.mark.parametrize("is_folded", [False, True])
@pytest.mark.parametrize("num_procs", [2, 3, 4, 8])
@settings(max_examples=examples(20), deadline=None)
@given(st.data())
def test_what_comes_before_each_is_gathered_for_all(num_procs: int, is_folded: bool, data: st.DataObject) -> None:
    """Of whole blocks and uneven ones, of one sample or several; to the last bit as sent one by one."""
    samples, places = data.draw(st.integers(1, 3)), data.draw(st.integers(2 * num_procs, 30))
    sources, reads = causal(num_procs, is_folded, places, samples)
    held = [np.random.default_rng(n).normal(size=source.box.shape) for n, source in enumerate(sources)]
    gathered, apart = (plan(sources, reads, "float64", links(), forms) for forms in (("all_gather",), ()))
    rounds = zip(results(gathered, held, reads), results(apart, held, reads), reads, strict=True)
    for found, general, (_, box) in rounds:
        assert found.tobytes() == general.tobytes() == expected(sources, held, box).tobytes()
    if num_procs > 2:
        assert sent(gathered) == {"all_gather": 1 + is_folded}
    written = [piece for pattern in gathered.patterns for piece in pattern.writes]
    assert len(written) == len({*written})


@pytest.mark.parametrize("is_folded", [False, True])
@pytest.mark.parametrize("num_procs", [2, 3, 4, 8])
@settings(max_examples=examples(20), deadline=None)
@given(st.data())
def test_what_all_give_to_those_before_is_summed_by_all(num_procs: int, is_folded: bool, data: st.DataObject) -> None:
    """The other way: gradients, whose sums come to the last bit as when terms are sent one by one."""
    samples, places = data.draw(st.integers(1, 3)), data.draw(st.integers(2 * num_procs, 30))
    wanting, having = causal(num_procs, is_folded, places, samples)
    sources, reads = [Source(box, (proc,)) for proc, box in having], [(s.procs[0], s.box) for s in wanting]
    held = [np.random.default_rng(n).normal(size=source.box.shape) for n, source in enumerate(sources)]
    scattered, apart = (plan(sources, reads, "float64", links(), forms) for forms in (("reduce_scatter",), ()))
    rounds = zip(results(scattered, held, reads), results(apart, held, reads), reads, strict=True)
    for found, general, (_, box) in rounds:
        assert found.tobytes() == general.tobytes()
        assert np.allclose(found, expected(sources, held, box), rtol=1e-13, atol=1e-13)
    # of few there are no more messages than processors for the second half
    if num_procs > 4 or (num_procs > 3 and not is_folded):
        assert sent(scattered) == {"reduce_scatter": 1 + is_folded}


def test_nothing_is_gathered_of_which_little_is_wanted() -> None:
    """Nor where what is wanted comes from few, nor summed by all where each gives little."""
    n = 8
    pieces = [Box((p,), (p + 1,)) for p in range(n)]
    sources = [Source(box, (p,)) for p, box in enumerate(pieces)]
    some = [(p, Box((max(0, p - 1),), (p + 1,))) for p in range(n)]
    # One wants all, as the host does that reads a result, the others what lies beside their own.
    for reads in (some, [(0, Box((0,), (n,))), *some[1:]]):
        assert not sent(plan(sources, reads, "float64", links())).keys() & {"all_gather"}
    given, owned = [Source(box, (proc,)) for proc, box in some], [(s.procs[0], s.box) for s in sources]
    assert not sent(plan(given, owned, "float64", links())).keys() & {"reduce_scatter"}


def test_one_who_gives_to_two_sends_to_each() -> None:
    """A collective would let all three wait, where there are two messages."""
    half = [Box((0, 0), (4, 8)), Box((4, 0), (8, 8))]
    sources = [Source(Box((0, 0), (8, 8)), (0,)), Source(half[0], (1,)), Source(half[1], (2,))]
    assert sent(plan(sources, [(1, half[0]), (2, half[1])], "float64", links())) == {"move": 2}


def test_no_key_of_a_long_text_goes_one_by_one_and_nobody_waits_for_whom_it_sends_to() -> None:
    """Nor any gradient: messages between all, who come to them at different times, made a second layer take a multiple
    of the first.
    """
    on, seconds = machine.parse("dgx-h100:nodes=2"), []
    for layers in (1, 2):
        graph = models.parse(f"gpt:layers={layers},width=2048,heads=16,vocab=256,seq=32768").graph(1, "bfloat16")
        known = Evaluator(Lowering(graph, on, SGD), CostModel(on))
        configs = context_parallel(TensorCuts(graph), on.num_procs)
        assert configs["block1.attention"].split == {"s": 2 * on.num_procs}
        tasks, simulated = known.simulate(known.lowering.plan(configs))
        assert not [task.name for task in tasks.tasks if task.kind == Kind.MOVE]
        seconds.append(simulated.seconds)
    assert seconds[1] < 2.5 * seconds[0]
