"""Plans of more transfers than can be looked at are refused before these are made, and searches do without them."""

import pickle
from math import inf
from pathlib import Path
from unittest.mock import Mock

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from castile.launch import explain, models, simulate, validate
from castile.launch.explain import Explain
from castile.launch.jobs import execution, offline
from castile.launch.processes.ranks import UserError
from castile.launch.simulate import Simulate
from castile.planner import explanation, strategy
from castile.planner.alternatives import alternatives, differences, switches
from castile.planner.cost import CostModel
from castile.planner.evaluation import folding
from castile.planner.evaluation.budget import Budget
from castile.planner.evaluation.evaluated import Evaluated
from castile.planner.evaluation.evaluator import FOLDED_FROM, Configs, Evaluator
from castile.planner.evaluation.folding import MOST_TRANSFERS
from castile.planner.families.updates import Updates
from castile.planner.known.seeds import seeds
from castile.planner.lower import Lowering
from castile.planner.lowering.contraction import Contracted
from castile.planner.op import find
from castile.planner.search import search
from castile.planner.searches import reinforce
from castile.planner.searching.refinement import with_best_buckets
from castile.planner.strategy import Strategy
from castile.runtime import machine as presets
from castile.runtime.transfer import TooManyTransfers
from tests import little, strategies
from tests.effort import examples

# So many processors are to be planned for.
LARGE = 4096
GPT = "gpt:layers=1,width=128,heads=16,seq=64,vocab=128"


def transfers(lowering, plan):
    """Of versions that differ, all together."""
    _, flows = lowering.instances(plan)
    return sum(len(version.patterns) for version in {flow.version for flow in flows})


@settings(max_examples=examples(20))
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
    with pytest.raises(TooManyTransfers, match=f"plan {one}: .*tasks of transfers"):
        search("mcmc", evaluator, "1", seeds=[one])
    with pytest.raises(TooManyTransfers, match=r"plan given: .*tasks of transfers"):
        search("mcmc", evaluator, "1", start={"given": plans[one]})
    for name in {"fsdp", "megatron"} & refused:
        with pytest.raises(TooManyTransfers, match=f"plan {name}: .*tasks of transfers"):
            search(name, evaluator)


def test_what_was_refused_elsewhere_says_the_same_here() -> None:
    for error in (TooManyTransfers(), TooManyTransfers("plan x: too many")):
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is TooManyTransfers and str(again) == str(error)


@pytest.fixture
def refusing(monkeypatch: pytest.MonkeyPatch):
    """Refuses plans of more transfers than one has, and fails where all tasks of such a plan are written out."""

    def refuse(lowering: Lowering, plan: Strategy) -> None:
        most, contracted = transfers(lowering, plan), Lowering.contracted

        def watched(self: Lowering, plan: Strategy) -> Contracted:
            assert transfers(self, plan) <= most
            return contracted(self, plan)

        monkeypatch.setattr(folding, "MOST_TRANSFERS", most)
        monkeypatch.setattr(Lowering, "contracted", watched)

    return refuse


def prepared(evaluator: Evaluator, plan: Strategy) -> execution.Prepared:
    """As ranks prepare a plan that they are to run."""
    return execution.prepare(evaluator.lowering, plan, evaluator.cost)


def test_what_is_looked_at_task_by_task_is_refused_before(refusing) -> None:
    lowering, plans = known(FOLDED_FROM // 8)
    refusing(lowering, plans["data_parallel"])
    evaluator = Evaluator(lowering, CostModel(lowering.machine))
    for look in (explanation.explain, with_best_buckets, prepared):
        look(evaluator, plans["data_parallel"])
        with pytest.raises(TooManyTransfers):
            look(evaluator, plans["megatron"])


def test_what_is_prepared_is_analysed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    analysed, counts, made = Lowering._flow_template, [], [0]

    def counted(self: Lowering, *given: object) -> object:
        made[0] += 1
        return analysed(self, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(Lowering, "_flow_template", counted)
    for look in (prepared, lambda evaluator, plan: evaluator.lowering.lower(plan)):
        lowering, plans = known(FOLDED_FROM // 8)
        made[0] = 0
        look(Evaluator(lowering, CostModel(lowering.machine)), plans["data_parallel"])
        counts.append(made[0])
    assert counts[0] == counts[1] > 0


def test_none_of_too_many_is_drawn_to_be_measured(refusing, monkeypatch: pytest.MonkeyPatch) -> None:
    lowering, plans = known(FOLDED_FROM // 8)
    refusing(lowering, plans["data_parallel"])
    monkeypatch.setattr(validate, "POOL", 4)
    job = Mock(lowering=lowering, cost=CostModel(lowering.machine), graph=lowering.graph, machine=lowering.machine)
    job.agree = lambda make: make()
    drawn = validate.draw(job, 4, 0)
    most = transfers(lowering, plans["data_parallel"])
    assert len(drawn) == 4 and all(transfers(lowering, plan) <= most for plan in drawn.values())
    with pytest.raises(UserError, match=r"--plans 100: there are \d to draw from"):
        validate.draw(job, 100, 0)


def test_what_differs_is_told_without_what_has_too_many(refusing) -> None:
    lowering, plans = known(FOLDED_FROM // 8)
    plan, other = plans["data_parallel"], plans["megatron"]
    evaluator, groups = Evaluator(lowering, CostModel(lowering.machine)), differences(plan.configs, other.configs)
    every = switches(evaluator, plan, other, Budget(proposals=100)).best
    assert len(every) == len(groups)
    refusing(lowering, plan)
    evaluator = Evaluator(lowering, CostModel(lowering.machine))
    told = switches(evaluator, plan, other, Budget(proposals=100))
    some = told.best
    assert [s.names for s in some] == [s.names for s in every if s in some] and len(some) < len(every)
    assert (told.num_left, told.num_refused) == (0, len(every) - len(some))
    assert switches(evaluator, plan, other, Budget(proposals=1)).num_left == len(groups) - 1
    name = next(name for one in every if one not in some for name in one.names if name in lowering.graph.nodes)
    found = alternatives(evaluator, plan, name, Budget(proposals=100), most=100)
    assert len(found.best) == found.num_simulated and found.num_refused


def test_a_plan_that_is_asked_for_is_refused_by_its_name(refusing, tmp_path: Path) -> None:
    machine, batch = f"dgx-h100:nodes={FOLDED_FROM // 8}", FOLDED_FROM
    lowering = offline.desk(GPT, presets.parse(machine), batch, "").evaluator.lowering
    plans = seeds(lowering)
    for name in ("data_parallel", "megatron"):
        (tmp_path / f"{name}.json").write_bytes(strategy.encode(msgspec.structs.replace(plans[name], model=GPT)))
    refusing(lowering, plans["data_parallel"])
    few, many = (str(tmp_path / f"{name}.json") for name in ("data_parallel", "megatron"))
    for module, command in (
        (simulate, Simulate(many, machine, batch=batch)),
        (simulate, Simulate(GPT, machine, many, batch=batch)),
        (explain, Explain(many, machine=machine, batch=batch)),
    ):
        with pytest.raises(UserError, match=r"plan .*megatron\.json: .*tasks of transfers.*: lay"):
            module.run(command)
    with pytest.raises(UserError, match=r"--why-not megatron: .*tasks of transfers"):
        explain.run(Explain(few, why_not="megatron", machine=machine, batch=batch))
    refusing(lowering, plans["one_processor"])
    with pytest.raises(UserError, match=r"plan data_parallel: .*tasks of transfers"):
        simulate.run(Simulate(GPT, machine, batch=batch))


@pytest.mark.parametrize("every", [1, 2])
def test_a_policy_learns_from_what_is_not_refused(every: int) -> None:
    run = little.run(little.evaluator(little.two_layers(), little.machine(2)), "40")
    propose = run.propose

    def refused(configs: Configs, most: float = inf) -> Evaluated | None:
        found = propose(configs, most)
        return found if run.num_proposals % every else None

    run.propose = refused  # type: ignore[method-assign]
    reinforce.search(run)
    assert run.num_proposals == 40
