"""Sizes of buckets: the best of a few is taken, and what is written and told is what the plan with it takes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, pairwise
from math import inf
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from castile.launch import models
from castile.launch.__main__ import main
from castile.launch.typed import optimizers
from castile.planner import strategy as strategies
from castile.planner.choices.pins import Pins, parse
from castile.planner.cost import CostModel
from castile.planner.evaluation import evaluator as evaluators
from castile.planner.evaluation.budget import Budget
from castile.planner.evaluation.evaluated import Evaluated
from castile.planner.evaluation.evaluator import OBJECTIVES, Evaluator
from castile.planner.evaluation.folding import Folding
from castile.planner.evaluation.sizes import HOPELESS, SIZES, SPARED, WORTH, variants
from castile.planner.families.updates import Updates
from castile.planner.known.pieces import in_pieces
from castile.planner.known.seeds import seed, seeds
from castile.planner.lower import Lowering
from castile.planner.op import find
from castile.planner.search import Run, search
from castile.planner.searching import refinement
from castile.planner.searching.refinement import refine, refine_known, with_best_buckets
from castile.planner.searching.results import SearchResult
from castile.planner.strategy import ORDERS, PATH, READY, Strategy
from castile.runtime import machine as machines
from castile.runtime import memory
from castile.runtime.transfer import TooManyTransfers
from tests.answers import answer
from tests.effort import examples, rare
from tests.strategies import machines as drawn_machines
from tests.strategies import problems
from tests.strategies import strategies as drawn
from tests.test_models import scaled

MODELS = ("gpt", "mlp", "resnet")
MACHINES = ("dgx-h100", "local:procs=4")
LATENT = "gpt:layers=2,width=256,heads=4,seq=128,vocab=512"
GPT = "gpt:layers=2,width=64,heads=2,seq=32,vocab=64"


def evaluator(model: str, on: str, batch: int | None = None) -> Evaluator:
    lowering = Lowering(models.parse(model).graph(batch), machines.parse(on), Updates(optimizers.parse("adamw")))
    return Evaluator(lowering, CostModel(lowering.machine))


def with_size(plan: Strategy, size: int, order: str = READY) -> Strategy:
    return msgspec.structs.replace(plan, bucket_bytes=size, order=order)


@pytest.mark.parametrize("on", [MACHINES[0], *rare(MACHINES[1])])
def test_a_step_is_never_longer(on: str) -> None:
    shorter = 0
    for name in MODELS:
        same = evaluator(scaled(name), on)
        for plan, strategy in seeds(same.lowering).items():
            found = with_best_buckets(same, strategy)
            each = {(s, o): same.evaluate(with_size(strategy, s, o)) for s in (0, *SIZES) for o in ORDERS}
            best, plain = each[found.bucket_bytes, found.order], each[0, READY]
            assert best.rank <= min(each[size, READY].rank for size in (0, *SIZES)), (name, plan)
            assert (1 - WORTH) * best.energy <= min(one.energy for one in each.values()), (name, plan)
            assert found.order == READY or best.energy < (1 - WORTH) * each[found.bucket_bytes, READY].energy
            assert (found == strategy) == (best.rank == plain.rank), (name, plan)
            assert best.moved_bytes == plain.moved_bytes, (name, plan)
            shorter += best.seconds < plain.seconds
    assert shorter >= len(MODELS)


def test_what_does_not_fit_is_left_as_it_is() -> None:
    """Gradients of a bucket live until the last of them is there."""
    same = evaluator("gpt:layers=4,width=32,heads=2,seq=16,vocab=64", "local:procs=4")
    strategy = Strategy(seed("data_parallel", same.lowering))
    assert with_best_buckets(same, strategy).bucket_bytes
    most = max(same.pack(strategy))
    found = with_best_buckets(same.remade("time", most_bytes=most), strategy)
    assert max(same.pack(found)) <= most
    assert with_best_buckets(same.remade("time", most_bytes=1), strategy) == strategy


def test_buckets_are_tried_unless_memory_is_far_exceeded_without() -> None:
    graph, on = models.parse("lenet").graph(64, "bfloat16"), machines.parse("dgx-h100")
    same = Evaluator(Lowering(graph, on, Updates(optimizers.parse("adamw"), clip=1.0)), CostModel(on))
    plan = seeds(same.lowering)["data_parallel_4"]
    alone, found = (max(same.evaluate(with_size(plan, size)).peak_bytes) for size in (0, 2**20))
    assert alone > 1.1 * found
    tried = variants(same.remade("time", most_bytes=found), plan, SIZES)
    assert not tried[0].fits and any(one.fits for one in tried)
    for most, is_tried in ((alone / (1 + HOPELESS) + 1, True), (alone / (1 + HOPELESS) - 1, False)):
        assert (len(variants(same.remade("time", most_bytes=int(most)), plan, SIZES)) > 1) == is_tried


@settings(max_examples=examples(15), deadline=None)
@given(st.data(), st.sampled_from(OBJECTIVES), st.sampled_from(("random", "mcmc", "data_parallel")))
def test_what_is_settled_is_behind_no_known_plan(data: st.DataObject, objective: str, name: str) -> None:
    problem, on = data.draw(problems(most_layers=3)), data.draw(drawn_machines())
    lowering = Lowering(problem.graph, on, mode="forward" if objective == "latency" else "train")
    same = Evaluator(lowering, CostModel(on)).remade(objective)
    given = {"given": data.draw(drawn(problem.graph, on.num_procs))}
    before = search(name, same, "5", start=given)
    found = refine(same, before, (*SIZES, 300))
    assert found.evaluated.rank <= before.evaluated.rank
    assert found.is_insisted == (name == "data_parallel")
    for label, worth in found.seeds.items():
        assert worth.rank <= before.seeds[label].rank, label
        assert found.is_insisted or found.evaluated.rank <= worth.rank, label
    for one in [] if found.is_insisted else [*before.finalists, *before.seeds.values()]:
        each = [same.evaluate(with_size(one.strategy, one.strategy.bucket_bytes, order)) for order in ORDERS]
        assert found.evaluated.rank <= each[0].rank
        assert all((1 - WORTH) * found.evaluated.energy <= one.energy for one in each if one.fits)
    assert not found.is_insisted or found.strategy.configs == before.strategy.configs
    assert found.arena_bytes == same.pack(found.strategy)
    predicted = found.strategy.predicted
    assert (predicted is None) == (objective == "latency")
    if predicted is not None:
        assert predicted.step_seconds == same.simulate(found.strategy)[1].seconds


def test_of_many_parts_known_plans_that_are_far_from_what_was_found_are_told_in_one_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    same = evaluator(LATENT, "dgx-h100", 64)
    found = search("mcmc", same, "200", sizes=SIZES)
    far = {name for name, one in found.seeds.items() if one.energy > refinement.MOST_SLOWDOWN * found.evaluated.energy}
    asked: dict[str, Sequence[str]] = {}

    def tried(evaluator: Evaluator, plan: Strategy, sizes: Any, is_over: Any, orders: Sequence[str], *rest: Any) -> Any:
        # What came near a search has seen too, and is tried once more then.
        asked.setdefault(plan.search, orders)
        return variants(evaluator, plan, sizes, is_over, orders, *rest)

    monkeypatch.setattr(refinement, "variants", tried)
    monkeypatch.setattr(same, "bound", lambda configs: 0.0)
    for parts, few in ((10**9, set()), (0, far - {"data_parallel"})):
        asked.clear()
        monkeypatch.setattr(refinement, "QUICK_PARTS", parts)
        ended = refine(same, found)
        assert {name for name in found.seeds if len(asked[name]) == 1} == few != far - few
        # with buckets of their best sizes all the same
        assert all(ended.seeds[name].rank <= found.seeds[name].rank for name in found.seeds)


def test_of_many_parts_known_plans_whose_kernels_alone_take_longer_than_what_was_found_are_not_settled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In no order and with no buckets would one of them be better; all others, and what is found, are as before."""
    same, settle = evaluator("mlp:layers=4,width=2048", "local:procs=4", 64), refinement.variants
    found = search("mcmc", same, "200", sizes=SIZES)
    named = {id(one.strategy): name for name, one in found.seeds.items()}
    ends, left, asked = list[SearchResult](), set[str](), set[str]()

    def tried(evaluator: Evaluator, plan: Strategy, *how: Any) -> Any:
        asked.add(named.get(id(plan), ""))
        return settle(evaluator, plan, *how)

    monkeypatch.setattr(refinement, "variants", tried)
    for parts in (10**9, 0):
        asked.clear()
        monkeypatch.setattr(refinement, "QUICK_PARTS", parts)
        ends.append(refine(same, found))
        left = {*found.seeds} - asked
        assert bool(left) == (parts == 0)
    assert ends[0].evaluated == ends[1].evaluated and "data_parallel" not in left
    for name, one in found.seeds.items():
        every = settle(same, one.strategy, (*SIZES, 300), orders=ORDERS)
        assert name not in left or min(each.energy for each in every) >= ends[1].evaluated.energy
        assert ends[1].seeds[name] == (one if name in left else ends[0].seeds[name])


@pytest.mark.parametrize("num_stages", [1, 2])
def test_of_still_more_parts_known_pipelines_other_than_what_was_found_are_tried_in_few_orders(
    num_stages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    same, asked = evaluator(LATENT, "dgx-h100", 64), dict[bool, set[str]]()
    found = search("mcmc", same, "200", sizes=SIZES)

    def tried(evaluator: Evaluator, plan: Strategy, sizes: Any, is_over: Any, orders: Sequence[str], *rest: Any) -> Any:
        asked.setdefault(plan.configs == found.strategy.configs, set()).update(orders)
        return variants(evaluator, plan, sizes, is_over, orders, *rest)

    monkeypatch.setattr(refinement, "variants", tried)
    monkeypatch.setattr(refinement, "num_stages", lambda plan, nodes: num_stages)
    for parts, few in ((10**9, ORDERS), (0, refinement.KNOWN_PLAN_ORDERS if num_stages > 1 else ORDERS)):
        asked.clear()
        monkeypatch.setattr(refinement, "SEARCHED_PARTS", parts)
        refine(same, found)
        assert asked == {True: {*ORDERS}, False: {*few}}


@pytest.mark.parametrize(
    ("name", "model", "on"),
    [("mcmc", LATENT, "dgx-h100"), *rare(("mcmc", LATENT, "local:procs=4")), ("dynamic", "mlp:width=256", "dgx-h100")],
)
def test_a_search_that_knows_sizes_is_behind_no_known_plan_with_buckets(name: str, model: str, on: str) -> None:
    same = evaluator(model, on, 64)
    plain, found = (search(name, same, "1000", sizes=sizes) for sizes in ((), SIZES))
    ended = refine(same, found)
    for label, worth in refine(same, plain).seeds.items():
        assert ended.evaluated.rank <= worth.rank, label
        assert label not in found.seeds or (found.seeds[label], ended.seeds[label]) == (plain.seeds[label], worth)
    assert found.evaluated == replace(same.evaluate(found.strategy), strategy=found.strategy)
    assert found.arena_bytes == same.pack(found.strategy)
    assert bool(found.strategy.bucket_bytes) == (on == "dgx-h100")
    assert found.evaluated.seconds == min(seconds for _, seconds in found.history)


def test_where_buckets_are_worth_nothing_a_search_finds_the_same() -> None:
    graph, on = models.parse("lenet").graph(256), machines.parse("flexflow-k80:nodes=1")
    same = Evaluator(Lowering(graph, on, Updates(optimizers.parse("sgd"))), CostModel(on))
    plain, found = (search("mcmc", same, "1500", sizes=sizes) for sizes in ((), SIZES))
    assert replace(found, elapsed_seconds=0) == replace(plain, elapsed_seconds=0)


def test_what_is_shorter_with_buckets_than_its_work_without_is_not_refused() -> None:
    same = evaluator("mlp:layers=6,width=16", "local:procs=1")
    plan = seeds(same.lowering)["data_parallel"]
    known = same.evaluate(msgspec.structs.replace(plan, configs=same.lowering.configs(plan)))
    run = Run(same, Budget(proposals=9), random.Random(0), {"known": known}, sizes=SIZES)
    assert run.propose(known.strategy.configs, known.energy / 2) is None
    run.choose_bucket_size()
    best = run.seeds["known"]
    assert run.bucket_bytes == best.strategy.bucket_bytes > 0
    assert same.bound(best.strategy.configs) > best.energy
    again = run.propose(best.strategy.configs, best.energy)
    assert again is not None and again.energy == best.energy


@pytest.mark.parametrize("is_slower_first", [False, True])
def test_of_a_plan_with_several_sizes_the_best_comes_first_whatever_was_judged_first(is_slower_first: bool) -> None:
    same = evaluator("mlp:layers=6,width=16", "local:procs=1")
    known = same.evaluate(seeds(same.lowering)["data_parallel"])
    each = sorted([same.evaluate(with_size(known.strategy, size)) for size in (0, SIZES[0])], key=lambda one: one.rank)
    assert each[0].seconds < each[1].seconds
    run = Run(same, Budget(proposals=9), random.Random(0), {})
    for one in each[::-1] if is_slower_first else each:
        run.simulate(one.strategy.configs, 1, one.strategy.bucket_bytes)
    assert [one.rank for one in run.finalists] == [one.rank for one in each]
    assert run.history[-1] == (1, each[0].seconds)


def test_what_is_adopted_keeps_its_buckets_where_pins_change_it() -> None:
    same = evaluator("mlp:layers=6,width=16", "local:procs=2")
    plan = with_size(seeds(same.lowering)["data_parallel"], SIZES[0])
    pins = Pins([parse("fc1: {b: 1}")], same.lowering.names, 2)
    run = Run(same, Budget(proposals=9), random.Random(0), {}, pins=pins)
    run.adopt(1, [same.evaluate(plan)])
    assert run.best.strategy.configs == pins.apply(plan.configs) != plan.configs
    assert run.best.strategy.bucket_bytes == plan.bucket_bytes


def test_what_was_evaluated_is_not_folded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    same = evaluator(GPT, "dgx-h100:nodes=8", 64)
    plan = seeds(same.lowering)["data_parallel"]
    first = variants(same, plan, SIZES)
    assert len(first) > 1
    monkeypatch.setattr(Folding, "by_roles", lambda self, strategy: pytest.fail("folded again"))
    assert variants(same, plan, [one.strategy.bucket_bytes for one in first]) == first


def test_of_sizes_that_make_no_difference_one_is_tried_in_other_orders(monkeypatch: pytest.MonkeyPatch) -> None:
    """The best of them; those that make one are all tried."""
    same, tried = evaluator(GPT, "dgx-h100"), list[Evaluated]()
    evaluate = same.evaluate_within
    monkeypatch.setattr(same, "evaluate_within", lambda plan, most: tried.append(evaluate(plan, inf)) or tried[-1])
    sizes = sorted({size + more for size in SIZES for more in range(3)})
    variants(same, seeds(same.lowering)["data_parallel"], sizes, orders=(READY, PATH))
    ready = {one.strategy.bucket_bytes: one.energy for one in tried if one.strategy.order == READY}
    others = [one.strategy.bucket_bytes for one in tried if one.strategy.order == PATH]
    assert 1 < len(others) < len(ready) == len(sizes) + 1
    least, worth = WORTH * ready[0], [ready[size] for size in others]
    assert all(abs(one - other) > least for one, other in combinations(worth, 2))
    assert all(min(abs(energy - other) for other in worth) <= least for energy in ready.values())


def test_what_is_not_looked_at_to_its_end_would_not_have_been_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some plans are given up as soon as they take longer in PATH, or with more begun ahead; asked for later they are
    worth what they are.
    """
    graph, on = models.parse(LATENT).graph(64), machines.parse("p3.16xlarge:nodes=1")
    given_up, within = list[tuple[Strategy, float]](), Evaluator.evaluate_within
    for objective, cut in (("time", 8), ("memory", 2), ("time", 1)):
        lowering = Lowering(graph, on, Updates(find("sgd")()), microbatches=cut)
        same, other = (Evaluator(lowering, CostModel(on), objective=objective) for _ in range(2))
        monkeypatch.setattr(other, "evaluate_within", lambda plan, most, other=other: within(other, plan, inf))

        def watched(plan: Strategy, most: float, same: Evaluator = same) -> Evaluated | None:
            found = within(same, plan, most)
            given_up.extend([(plan, most)] if found is None else [])
            return found

        monkeypatch.setattr(same, "evaluate_within", watched)
        before = len(given_up)
        known = seeds(lowering)
        few = [name for name in ("data_parallel", "fsdp", "megatron", "pipeline_2", "pipeline_4") if name in known]
        for plan in [known[name] for name in (*few, *rare(*sorted(known.keys() - few)))]:
            assert variants(same, plan, SIZES[:2], orders=ORDERS) == variants(other, plan, SIZES[:2], orders=ORDERS)
        assert objective == "time" or len(given_up) == before
        for plan, most in given_up[before:]:
            assert watched(plan, most) is None and same.evaluate(plan) == other.evaluate(plan)
            # what is kept of the best plan is that of another order at most
            assert same.evaluate(plan) == Evaluator(lowering, CostModel(on), objective=objective).evaluate(plan)
            assert same.evaluate(plan).energy > (1 - 1e-9) * most
    kinds = {(plan.order == PATH, plan.ahead > 0) for plan, _ in given_up}
    assert kinds == {(True, False), (True, True), (False, True)}


def test_of_equal_plans_the_one_without_buckets_is_taken() -> None:
    same = evaluator("mlp:layers=1,width=16", "local:procs=1")
    found = refine(same, search("random", same, "3"), ())
    assert found.strategy.bucket_bytes == 0 == with_best_buckets(same, found.strategy, ()).bucket_bytes


def test_a_known_plan_that_buckets_make_better_is_taken() -> None:
    same = evaluator(GPT, "dgx-h100")
    before = search("fsdp", same)
    plan, base = before.strategy, before.seeds["data_parallel"]
    assert with_best_buckets(same, base.strategy).bucket_bytes
    found = refine(same, replace(before, is_insisted=False))
    known = min(found.seeds.values(), key=lambda worth: worth.rank)
    assert found.evaluated.rank == known.rank < same.evaluate(plan).rank


def test_the_best_has_its_updates_in_pieces_where_that_is_better() -> None:
    """As pins allow; unless the search was for this very plan, or there is no time."""
    same = evaluator("gpt:layers=2,width=2048,heads=16,seq=128,vocab=512", "dgx-h100", 16)
    before = replace(search("megatron_2", same, seeds=["megatron_2"]), is_insisted=False)
    shared = msgspec.structs.replace(before.strategy, configs=in_pieces(same.lowering, before.strategy.configs))
    assert same.evaluate(shared).rank < before.evaluated.rank
    found = refine(same, before)
    assert found.strategy.configs == shared.configs and found.equals == ""
    every = [same.evaluate(with_size(shared, size, found.strategy.order)) for size in (0, *SIZES)]
    assert found.evaluated.rank == min(one.rank for one in every)
    update = "block1.up.weight/update"
    pins = Pins([parse(f"{update}: {{replicas: 4}}")], same.lowering.names, 8)
    pinned = refine(same, before, pins=pins).strategy.configs[update]
    assert shared.configs[update].replicas == 1 and pinned.replicas == 4
    for left in (refine(same, replace(before, is_insisted=True)), refine(same, before, is_over=lambda: True)):
        assert left.strategy.configs.keys() == before.strategy.configs.keys()


def test_a_known_plan_that_pins_make_another_is_settled() -> None:
    on = machines.parse("local:procs=4")
    lowering = Lowering(models.parse("mlp").graph(64), on, Updates(optimizers.parse("adamw")), microbatches=4)
    same = Evaluator(lowering, CostModel(on))
    pins = Pins([parse("*: {b: 4, replicas: 1, procs: [0-3]}")], lowering.names, 4)
    known = seeds(lowering, ["data_parallel", "pipeline_4"], pins=pins)
    assert list(known) == ["data_parallel"]
    (plan,) = seeds(lowering, ["pipeline_4"], pins=pins).values()
    found = refine_known(same, plan, pins, lambda: False, ORDERS)
    assert pins.meets(found.strategy.configs) and found.evaluated.rank <= same.evaluate(known["data_parallel"]).rank


@pytest.mark.parametrize("front", [True, *rare(False)])
def test_what_is_written_is_what_is_told_and_simulated(front, tmp_path, capsys):
    out = str(tmp_path / "plan.json")
    words = ["--machine", "dgx-h100", "--json"]
    # Of a larger batch a front takes many microbatches, and of more processors longer.
    small = ["mlp:layers=6,width=64", "--without", "2-7", "--batch", "2", "--budget", "20"]
    facts = answer(capsys, "plan", *small, *words[:2], "--out", out, *(["--front"] if front else []))
    written = strategies.read(out)
    assert written.bucket_bytes in SIZES and facts["buckets"]["size_bytes"] == written.bucket_bytes
    assert facts["buckets"]["num_collectives"] <= facts["buckets"]["num_collectives_alone"]
    assert facts["buckets"]["num_tasks"] == facts["num_tasks"] < facts["buckets"]["num_tasks_alone"]
    for path in (out, *(row["file"] for row in facts.get("front", ()))):
        plan = strategies.read(path)
        told = answer(capsys, "simulate", path, *words[:2])
        assert plan.predicted is not None and told["step_seconds"] == plan.predicted.step_seconds
        assert max(row["peak_bytes"] for row in told["procs"]) == plan.predicted.peak_bytes
        assert (told["buckets"] is None) == (plan.bucket_bytes == 0)
        explained = answer(capsys, "explain", path, *words[:2])
        assert (explained["step_seconds"], explained["buckets"]) == (told["step_seconds"], told["buckets"])


def test_people_are_told_the_same(tmp_path, capsys):
    out, other = str(tmp_path / "plan.json"), str(tmp_path / "plain.json")
    words = ["plan", GPT, "--machine", "dgx-h100", "--search", "data_parallel", "--out", out]
    row = answer(capsys, *words)["buckets"]
    counts = f"{row['num_collectives_alone']} collectives became {row['num_collectives']} in buckets of 25.0 MiB"
    Path(other).write_bytes(strategies.encode(with_size(strategies.read(out), 0)))
    for command in (words, ["simulate", out, *words[2:4]], ["explain", out, *words[2:4]]):
        assert main(command) == 0
        told = capsys.readouterr().out
        assert counts in told and "collectives in buckets of at most 25.0 MiB" in told, command
    assert main(["simulate", other, *words[2:4]]) == 0
    assert "buckets" not in capsys.readouterr().out
    assert main(["diff", other, out]) == 0
    assert f"bucket: none -> {memory.written(row['size_bytes'])}" in capsys.readouterr().out


def test_a_search_goes_on_from_a_plan_with_buckets_of_its_own(tmp_path, capsys):
    path = str(tmp_path / "given.json")
    same = evaluator(GPT, "dgx-h100")
    Path(path).write_bytes(strategies.encode(Strategy(seed("fsdp", same.lowering), bucket_bytes=12345)))
    words = ["--machine", "dgx-h100"]
    step = answer(capsys, "simulate", GPT, "--plan", path, *words)["step_seconds"]
    facts = answer(capsys, "plan", GPT, *words, "--budget", "1", "--seeds", "data_parallel", "--from", path)
    assert facts["seeds"]["given"]["step_seconds"] <= step and facts["found"]["step_seconds"] <= step


def test_as_many_microbatches_are_begun_ahead_as_pay_and_fit() -> None:
    """Sums of one go beside another's kernels; of a plan of one microbatch there is none to begin."""
    graph, on = models.parse(LATENT).graph(64), machines.parse("p3.16xlarge:nodes=2")
    cut = Evaluator(Lowering(graph, on, Updates(find("sgd")()), microbatches=16), CostModel(on))
    plan = seeds(cut.lowering)["pipeline_2_megatron_8"]
    found = variants(cut, plan, SIZES, orders=ORDERS)
    best, plain = min(found, key=lambda one: one.energy), [one for one in found if not one.strategy.ahead]
    assert best.strategy.ahead and best.seconds < 0.95 * min(one.seconds for one in plain)
    as_ready = [one for one in found if one.strategy.order == READY]
    ready = {(one.strategy.bucket_bytes, one.strategy.ahead): one.energy for one in as_ready}
    unsized = [ready[0, ahead] for ahead in (0, 1, 3, 7, 15) if (0, ahead) in ready]
    assert len(unsized) > 1 and all((1 - WORTH) * a > b for a, b in pairwise(unsized))
    size = min((size for size, ahead in ready if not ahead), key=lambda size: ready[size, 0])
    assert size and min(ready.values()) == ready[size, max(ahead for _, ahead in ready)]
    assert all(not one.strategy.ahead for one in variants(cut, plan, SIZES, orders=ORDERS, most=best.seconds))
    tight = cut.remade("time", most_bytes=max(max(one.peak_bytes) for one in plain))
    few = variants(tight, plan, (), orders=ORDERS)
    assert max(one.strategy.ahead for one in few if one.fits) < best.strategy.ahead
    whole = evaluator(LATENT, "p3.16xlarge:nodes=2", 64)
    assert all(not one.strategy.ahead for one in variants(whole, seeds(whole.lowering)["megatron"], (), orders=ORDERS))


def test_what_is_too_large_to_look_at_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where few microbatches say what all take none is copied; of a pipeline many are."""
    graph, on = models.parse(GPT).graph(64), machines.parse("p3.16xlarge")
    cut = Evaluator(Lowering(graph, on, Updates(find("sgd")()), microbatches=16), CostModel(on))
    known = seeds(cut.lowering)
    alike, piped = known["data_parallel"], known["pipeline_4"]
    every = variants(cut.remade("time"), alike, (), orders=ORDERS)
    monkeypatch.setattr(evaluators, "MOST_TASKS", 1)
    few = Evaluator(cut.lowering, cut.cost)
    with pytest.raises(TooManyTransfers, match=r"of its [0-9]+ tasks no few say what all take"):
        few.evaluate(piped)
    found = variants(few, alike, (), orders=ORDERS)
    assert found and all(one in every for one in found)


@pytest.mark.parametrize("lacks", [0.0, SPARED / 2, 2 * SPARED, 0.1])
def test_what_lacks_memory_as_it_gets_ready_is_not_tried_by_path(lacks: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """With as many microbatches begun ahead, where it lacks much."""
    graph, on = models.parse(LATENT).graph(64), machines.parse("p3.16xlarge:nodes=2")
    cut = Evaluator(Lowering(graph, on, Updates(find("sgd")()), microbatches=16), CostModel(on))
    plan, tried = seeds(cut.lowering)["pipeline_2_megatron_8"], list[tuple[str, int]]()
    began, more = (cut.evaluate(msgspec.structs.replace(plan, ahead=ahead)) for ahead in (0, 1))
    by_path = cut.evaluate(msgspec.structs.replace(plan, order=PATH))
    room = int(max(more.peak_bytes) / (1 + lacks))
    assert by_path.energy <= began.energy and max(*began.peak_bytes, *by_path.peak_bytes) <= room
    tight, evaluate = cut.remade("time", most_bytes=room), Evaluator.evaluate_within

    def watched(self: Evaluator, strategy: Strategy, most: float) -> Evaluated | None:
        tried.append((strategy.order, strategy.ahead))
        return evaluate(self, strategy, most)

    monkeypatch.setattr(Evaluator, "evaluate_within", watched)
    variants(tight, plan, (), orders=(READY, PATH))
    assert (READY, 1) in tried and ((PATH, 1) in tried) == (lacks <= SPARED)
