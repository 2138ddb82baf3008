"""Plans of more transfers than can be looked at are refused before these are made, and searches do without them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from castile.launch import models
from castile.planner import folding
from castile.planner.cost import CostModel
from castile.planner.evaluator import FOLDED_FROM, Evaluator
from castile.planner.folding import MOST_TRANSFERS
from castile.planner.lower import Lowering
from castile.planner.op import find
from castile.planner.search import search
from castile.planner.seeds import seeds
from castile.planner.updates import Updates
from castile.runtime import machine as presets
from castile.runtime.transfer import TooManyTransfers
from tests import strategies

# So many processors are to be planned for.
LARGE = 4096
GPT = "gpt:layers=1,width=128,heads=16,seq=64,vocab=128"


def transfers(lowering, plan):
    """Of versions that differ, all together."""
    _, flows = lowering.instances(plan)
    return sum(len(version.patterns) for version in {flow.version for flow in flows})


@settings(max_examples=20)
@given(st.data())
def test_a_plan_is_refused_where_it_has_more_whatever_is_known(data) -> None:
    graph, machine = data.draw(strategies.problems(most_layers=3)).graph, data.draw(strategies.machines())
    plans = [data.draw(strategies.strategies(graph, machine.num_procs)) for _ in range(2)]
    fresh, warm = (Lowering(graph, machine, strategies.SGD) for _ in range(2))
    for plan in plans:
        count = transfers(warm, plan)
        for lowering in (Lowering(graph, machine, strategies.SGD), fresh, warm):
            if count:
                with pytest.raises(TooManyTransfers):
                    lowering.instances(plan, count - 1)
            _, flows = lowering.instances(plan, count)
            assert [flow.keys for flow in flows] == [flow.keys for flow in warm.instances(plan)[1]]


def known(num_nodes):
    """The known plans of a small model, with a sample for each processor, and their lowering."""
    machine = presets.parse(f"dgx-h100:nodes={num_nodes}")
    lowering = Lowering(models.parse(GPT).graph(machine.num_procs), machine, Updates(find("sgd")()))
    return lowering, seeds(lowering)


def test_what_known_plans_send_grows_no_faster_than_the_machine() -> None:
    for num_nodes in (2, 4, 8):
        lowering, plans = known(num_nodes)
        most = MOST_TRANSFERS * lowering.machine.num_procs // LARGE
        counts = {name: transfers(lowering, plans[name]) for name in ("data_parallel", "fsdp", "megatron")}
        assert max(counts.values()) < most, counts


def test_a_search_leaves_out_known_plans_of_too_many_but_not_those_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    lowering, plans = known(FOLDED_FROM // 8)
    counts = {name: transfers(lowering, plan) for name, plan in plans.items()}
    most = counts["data_parallel"]
    refused = {name for name, count in counts.items() if count > most}
    assert refused
    monkeypatch.setattr(folding, "MOST_TRANSFERS", most)
    evaluator = Evaluator(lowering, CostModel(lowering.machine))
    found = search("mcmc", evaluator, "1")
    assert "data_parallel" in found.seeds and not refused & found.seeds.keys()
    one = min(refused)
    with pytest.raises(TooManyTransfers, match="messages"):
        search("mcmc", evaluator, "1", seeds=[one])
    with pytest.raises(TooManyTransfers, match="messages"):
        search("mcmc", evaluator, "1", start={"given": plans[one]})
