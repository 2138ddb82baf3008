"""Plans as data: what is written is read back, and whatever else a file holds is refused in one sentence."""

import copy
import json
import random
import re

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from castile.launch.processes.ranks import is_users_mistake
from castile.planner.choices.space import space_of
from castile.planner.graph import Graph
from castile.planner.known.seeds import seeds
from castile.planner.lower import Lowering
from castile.planner.strategy import (
    ORDERS,
    PATH,
    SCHEMA,
    Config,
    Predicted,
    Strategy,
    check,
    check_config,
    decode,
    encode,
    parts,
    read,
)
from castile.runtime import machine as machines
from tests.effort import examples


def network(features: int = 6) -> Graph:
    g = Graph("net", "float64")
    image = g.input("image", (4, 1, 6, 6), "b c h w")
    label = g.input("label", (4,), "b", "int64")
    x = g.layer_norm("norm", g.reshape("flat", g.conv2d("conv", image, channels=3, kernel=3), "b c h w -> b (c h w)"))
    x = g.linear("fc", x, features=features)
    g.minimise(g.cross_entropy("loss", x, label))
    g.outputs = [x.name]
    return g


GRAPH, MACHINE = network(), machines.parse("local:procs=4")
LOWERING = Lowering(GRAPH, MACHINE)
PLAN = msgspec.structs.replace(
    seeds(LOWERING)["data_parallel"], predicted=Predicted(1e-3, 4096, 512), cost_snapshot="0123456789abcdef", seed=3
)


def checked(plan: Strategy, graph: Graph = GRAPH, lowering: Lowering = LOWERING, machine=MACHINE) -> None:
    check(plan, lowering.names, graph, machine)


def changed(**fields) -> Strategy:
    return msgspec.structs.replace(PLAN, **fields)


def with_config(name: str, config: Config) -> Strategy:
    return changed(configs={**PLAN.configs, name: config})


@given(st.integers(0, 10**6))
def test_what_is_written_is_read_back(seed):
    rng = random.Random(seed)
    configs = {name: space_of(node, 4).draw(rng) for name, node in GRAPH.nodes.items()}
    size, order = rng.choice((0, rng.randrange(2**40))), rng.choice(ORDERS)
    plan = changed(configs=configs, seed=seed, bucket_bytes=size, order=order, ahead=rng.choice((0, 1, 7)))
    again = decode(encode(plan))
    assert again == plan and encode(again) == encode(plan)
    assert list(again.configs) == list(plan.configs)
    checked(again)


def test_a_plan_goes_through_a_file(tmp_path):
    path = tmp_path / "plan.json"
    path.write_bytes(encode(PLAN))
    assert read(path) == PLAN


def test_a_missing_plan_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"plan .*none\.json: No such file or directory"):
        read(tmp_path / "none.json")
    with pytest.raises(ValueError, match="Is a directory"):
        read(tmp_path)


def refused(data: bytes) -> str:
    """The one sentence with which the text of a plan is refused."""
    with pytest.raises(ValueError) as caught:
        decode(data, "plan x.json")
    assert is_users_mistake(caught.value)
    assert str(caught.value).startswith("plan x.json") and "\n" not in str(caught.value)
    return str(caught.value)


def test_every_truncated_plan_is_refused():
    data = encode(PLAN).rstrip()
    for length in range(len(data)):
        refused(data[:length])


TREE = json.loads(encode(PLAN))


def text(**fields) -> bytes:
    return json.dumps({**TREE, **fields}).encode()


def test_an_unknown_key_is_refused_with_the_nearest():
    assert "unknown field 'num_proc' (did you mean 'num_procs'?)" in refused(text(num_proc=1))
    inner = refused(text(configs={"fc": {"splitt": {}}}))
    assert "splitt' (did you mean 'split'?)" in inner and "configs" in inner


def test_a_key_that_occurs_twice_is_refused():
    assert "'fc' occurs twice" in refused(b'{"configs": {"fc": {}, "fc": {}}}')
    assert "'configs' occurs twice" in refused(b'{"configs": {}, "configs": {}}')


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"configs": []}, "configs"),
        ({"configs": {"fc": 3}}, "configs"),
        ({"configs": {"fc": {"split": {"b": "2"}}}}, "split"),
        ({"configs": {"fc": {"split": {"b": 2.5}}}}, "split"),
        ({"configs": {"fc": {"procs": [0, None]}}}, "procs"),
        ({"num_procs": "4"}, "num_procs"),
        ({"seed": True}, "seed"),
        ({"predicted": {"step_seconds": 1.0}}, "predicted"),
        ({"bucket_bytes": 2.5}, "bucket_bytes"),
        ({"order": 1}, "order"),
        ({"ahead": 1.5}, "ahead"),
        ({"schema": "1"}, "schema"),
    ],
)
def test_a_value_of_another_kind_is_refused_by_its_path(fields, path):
    assert path in refused(text(**fields))


def test_another_schema_is_refused():
    assert f"schema {SCHEMA + 1}, this castile reads schema {SCHEMA}: plan again" in refused(text(schema=SCHEMA + 1))


NO_PLANS = [
    b"", b"null", b"[]", b"3", b"\xff\xfe", b"\x00" * 40, b"{}", b'{"configs": {}', b"[" * 100_000, b'{"a":' * 100_000,
    b'{"configs": {}, "seed": 1e400}', b'{"configs": {}, "num_procs": NaN}', b'{"configs": {"fc": {"replicas": 1.5}}}',
]  # fmt: skip


@pytest.mark.parametrize("data", NO_PLANS, ids=lambda data: repr(data[:30]))
def test_what_is_no_plan_is_refused(data):
    refused(data)


@settings(max_examples=examples(400))
@given(st.data())
def test_a_damaged_plan_raises_nothing_but_a_users_mistake(data):
    """Bytes are replaced, dropped or doubled: what can still be read is lowered, and all else refused in words."""
    damaged = bytearray(encode(PLAN))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(damaged) - 1))
        how = data.draw(st.sampled_from(["replace", "drop", "double", "swap"]))
        if how == "replace":
            damaged[at] = data.draw(st.sampled_from(b'0123456789-.,:"{}[]eEx\x00\xff tfn'))
        elif how == "drop":
            del damaged[at : at + data.draw(st.integers(1, 30))]
        elif how == "double":
            damaged[at:at] = damaged[at : at + data.draw(st.integers(1, 30))]
        else:
            other = data.draw(st.integers(0, len(damaged) - 1))
            damaged[at], damaged[other] = damaged[other], damaged[at]
        if not damaged:
            break
    try:
        plan = decode(bytes(damaged))
        LOWERING.lower(plan)
    except ValueError as error:
        assert is_users_mistake(error), repr(error)
        assert "\n" not in str(error)


leaves = st.sampled_from(
    [0, -1, 1, 2, 5, 2**40, -(2**70), 1.5, "b", "", None, True, [], {}, [0, 1], {"b": 2}, {"b": 10**9}]
)


@settings(max_examples=examples(400))
@given(st.data())
def test_a_plan_with_another_value_raises_nothing_but_a_users_mistake(data):
    tree = json.loads(encode(PLAN))
    for _ in range(data.draw(st.integers(1, 2))):
        place = tree
        while True:
            keys = sorted(place) if isinstance(place, dict) else list(range(len(place)))
            if not keys:
                break
            key = data.draw(st.sampled_from(keys))
            if not isinstance(place[key], dict | list) or data.draw(st.integers(0, 3)) == 0:
                place[key] = copy.deepcopy(data.draw(leaves))
                break
            place = place[key]
    try:
        LOWERING.lower(decode(json.dumps(tree).encode()))
    except ValueError as error:
        assert is_users_mistake(error), repr(error)


def says(pattern: str, plan: Strategy, **others) -> None:
    with pytest.raises(ValueError, match=pattern) as caught:
        checked(plan, **others)
    assert is_users_mistake(caught.value)


def test_a_plan_for_another_model_is_refused():
    other = network(features=7)
    says("made for .*, and not for .* give the same model", PLAN, graph=other, lowering=Lowering(other, MACHINE))
    assert network().fingerprint == GRAPH.fingerprint


def test_a_plan_for_another_machine_is_refused():
    other = machines.parse("dgx-h100:nodes=1")
    says("made for another machine", PLAN, lowering=Lowering(GRAPH, other), machine=other)


def test_a_plan_for_more_processors_is_refused():
    two = machines.parse("local:procs=2")
    says("needs 4 processors, .* has 2: name the machine", PLAN, lowering=Lowering(GRAPH, two), machine=two)


def test_a_node_that_is_missing_unknown_or_misspelt_is_refused():
    says("no entry for node 'fc'", changed(configs={n: c for n, c in PLAN.configs.items() if n != "fc"}))
    says(r"node 'convv' .* \(did you mean 'conv'", with_config("convv", Config()))
    says("'nonsense'", with_config("nonsense", Config()))
    checked(with_config("fc.weight/update", Config({"o": 2}, 1, (1, 0))))


def test_a_plan_that_says_nothing_of_buckets_has_none():
    tree = {name: value for name, value in TREE.items() if name != "bucket_bytes"}
    assert decode(json.dumps(tree).encode()) == PLAN and PLAN.bucket_bytes == 0
    says("buckets of -1 bytes", changed(bucket_bytes=-1))


def test_an_order_is_written_where_it_is_not_the_one_that_is_taken_without():
    assert "order" not in TREE and json.loads(encode(changed(order=PATH)))["order"] == PATH
    says(r"kernels in order 'paths' \(did you mean 'path'\?\); there are ready, program, path", changed(order="paths"))


def test_microbatches_begun_ahead_are_written_where_there_are_any():
    assert "ahead" not in TREE and PLAN.ahead == 0 and json.loads(encode(changed(ahead=2)))["ahead"] == 2
    says("the plan has -1 microbatches begun ahead; 0 is for none", changed(ahead=-1))


def test_many_processors_out_of_order_are_told_briefly():
    in_turn = tuple(32 * j + i for i in range(32) for j in range(8))
    assert str(Config({"o": 256}, 1, in_turn)) == "o:256 on 0-255 in the order 0,32,64,96,..."
    assert len(str(Config({"o": 500}, 1, tuple(range(0, 1000, 2))))) < 120
    assert str(Config({"o": 6}, 1, (0, 1, 2, 5, 7, 8))) == "o:6 on 0-2,5,7,8"


@pytest.mark.parametrize(
    ("node", "config", "pattern"),
    [
        ("fc", Config({"q": 2}, 1, (0, 1)), "fc: no axis 'q' to split.* its axes are b, i, o"),
        ("norm", Config({"d": 2}, 1, (0, 1)), r"norm: axis '\w+' of layer_norm may not be split|norm: no axis 'd'"),
        ("loss", Config({"v": 2}, 1, (0, 1)), "loss: axis 'v' of cross_entropy may not be split"),
        ("conv", Config({"r": 3}, 1, (0, 1, 2)), "conv: axis 'r' of conv2d may not be split"),
        ("fc", Config({"b": 5}, 1, (0, 1, 2, 3, 0)), "fc: axis 'b' has 4 elements, too few for 5 parts"),
        ("fc", Config({"b": 0}, 1, (0,)), "fc: axis 'b' is split 0 times"),
        ("fc", Config({"b": -2}, 1, (0,)), "fc: axis 'b' is split -2 times"),
        ("fc", Config({"b": 2}, 1, (0,)), "fc: 2 parts x 1 replicas need 2 processors, 1 are named"),
        ("fc", Config({}, 0, ()), "fc: 0 replicas"),
        ("fc", Config({}, 2, (1, 1)), "fc: part 0 is replicated twice on one processor"),
        ("fc", Config({}, 1, (4,)), "fc: processor 4 is out of range; the machine has 4, counted from 0"),
        ("fc", Config({}, 1, (-1,)), "fc: processor -1 is out of range"),
    ],
)
def test_an_illegal_config_is_refused_in_the_users_words(node, config, pattern):
    says(pattern, with_config(node, config))


def test_every_frozen_axis_of_every_node_is_refused():
    nodes = {**LOWERING.names.nodes, **LOWERING.names.optional}
    frozen = [(node, axis) for node in nodes.values() for axis in node.alignment.frozen]
    assert len(frozen) >= 5
    for node, axis in frozen:
        if node.alignment.extents[axis] > 1:
            with pytest.raises(ValueError, match=f"{re.escape(node.name)}: axis '{axis}' of .* may not be split"):
                check_config(node, Config({axis: 2}, 1, (0, 1)), 4)


def test_configs_that_mean_the_same_are_equal():
    assert Config({"b": 2, "o": 2}, 1, (0, 1, 2, 3)) == Config({"o": 2, "b": 2}, 1, (0, 1, 2, 3))
    assert hash(Config({"b": 2, "o": 2}, 1, (0, 1, 2, 3))) == hash(Config({"o": 2, "b": 2}, 1, (0, 1, 2, 3)))


@given(st.sampled_from(["fc", "conv", "loss"]), st.integers(0, 10**6))
def test_parts_are_in_the_order_of_the_axis_line_and_tile_the_whole(name, seed):
    node = GRAPH.nodes[name]
    config = space_of(node, 4).draw(random.Random(seed))
    pieces = parts(node, config.split)
    assert len(pieces) == config.num_parts
    ranges = [tuple(piece.ranges[a] for a in node.alignment.axes) for piece in pieces]
    assert ranges == sorted(ranges) and len(set(ranges)) == len(ranges)
    volume = 0
    for piece in ranges:
        size = 1
        for lo, hi in piece:
            size *= hi - lo
        volume += size
    whole = 1
    for extent in node.alignment.extents.values():
        whole *= extent
    assert volume == whole
