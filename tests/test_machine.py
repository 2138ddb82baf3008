"""Machines: presets load, files are read strictly, and the fingerprint knows kinds and numbers but no measurements."""

import re
from collections import Counter
from itertools import accumulate, product
from operator import mul

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from castile.runtime import machine as machines
from castile.runtime import strict
from castile.runtime.levels import level_name
from castile.runtime.machine import Level, Machine, Processor, from_json, parse, presets, to_json
from castile.runtime.processor import EACH, RATES, SHARES
from castile.runtime.task import NUM_LANES, Lane

CPU = Processor("cpu", 1e10, 1e10, 2**30)
GOOD = """
nodes = 2
shared_lanes = [["send", "collective"]]

[[processor]]
count = 2
kind = "fast"
flops_per_second = 1e12
bytes_per_second = 1e11
memory_bytes = 1000

[[processor]]
kind = "slow"
flops_per_second = 1e11
bytes_per_second = 1e10
memory_bytes = 1000

[[level]]
name = "board"
group = 3
latency_seconds = 1e-6
bytes_per_second = 1e10

[[level]]
name = "network"
latency_seconds = 1e-5
bytes_per_second = 1e9
"""


@pytest.mark.parametrize("name", presets())
def test_preset_loads_and_travels_as_json(name):
    machine = parse(name)
    again = from_json(to_json(machine))
    assert again == machine and again.fingerprint == machine.fingerprint
    for p in machine.processors:
        assert p.memory_bytes > p.reserved_bytes and p.flops_per_second > p.bytes_per_second / 8


@given(st.integers(1, 40))
def test_nodes_set_the_number_of_processors_and_links(nodes):
    machine = parse(f"dgx-h100:nodes={nodes}")
    assert machine.num_procs == 8 * nodes
    assert [level.name for level in machine.levels] == ["nvlink", "infiniband"][: 1 + (nodes > 1)]
    assert machine.distance(0, 7) == 1 and machine.distance(3, 3) == 0
    if nodes > 1:
        assert level_name(machine.link((0, 1, 8)).name) == "infiniband" and machine.distance(7, 8) == 2


def test_local_shares_the_memory_and_runs_transfers_beside_kernels():
    one, four = parse("local:procs=1"), parse("local:procs=4")
    assert four.num_procs == 4 and len(four.engines) == NUM_LANES
    assert len(set(four.engines)) == 2 and four.engines.count(four.engines[Lane.COMPUTE]) == 1
    assert four.processors[0].memory_bytes == one.processors[0].memory_bytes // 4
    assert parse("local").num_procs == machines.num_cores()
    assert parse("local:procs=3").algorithms == ("exchange",)


def test_file_of_unequal_processors(tmp_path):
    path = tmp_path / "lab.toml"
    path.write_text(GOOD)
    machine = parse(str(path))
    assert [p.kind for p in machine.processors] == ["fast", "fast", "slow"] * 2
    assert machine.engines[Lane.SEND] == machine.engines[Lane.COLLECTIVE] != machine.engines[Lane.RECEIVE]
    assert parse(f"{path}:nodes=1").levels[-1].name == "board"
    assert parse(f"{path}:nodes=5").num_procs == 15
    assert machine.algorithms == ("ring", "tree", "hierarchical")
    assert [machine.kinds[n] for n in machine.kind_of] == list(machine.processors) and len(machine.kinds) == 2


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("count = 2", "cout = 2", ["processor[0].cout", "'count'"]),
        ("nodes = 2", "node = 2", ["'node'", "'nodes'"]),
        ("nodes = 2", "nodes = 2\nnodes = 3", ["TOML", "line 3"]),
        ("nodes = 2", "nodes = '2'", ["nodes", "expected a whole number"]),
        ("nodes = 2", "nodes = 0", ["nodes", "at least 1"]),
        ("memory_bytes = 1000", "memory_bytes = 0", ["processor.memory_bytes must be at least 1, not 0"]),
        ("memory_bytes = 1000", "memory_bytes = 'x'", ["processor[0].memory_bytes", "expected a whole number"]),
        ("flops_per_second = 1e12", "flops_per_second = inf", ["flops_per_second", "finite"]),
        *(
            ("flops_per_second = 1e12", f"flops_per_second = 1e12\n{field} = {value}", [field, value])
            for field in ("task_overhead_seconds", *EACH, *RATES[1:])
            for value in ("inf", "nan", "-1.0")
        ),
        ("flops_per_second = 1e12", "flops_per_second = -1.0", ["flops_per_second", "-1.0"]),
        *(
            ("kind =", f'{field} = [["gelu.F", {value}]]\nkind =', [f"processor.{field}", "gelu.F", value])
            for field in SHARES
            for value in ("0.0", "1.5", "nan", "-1.0")
        ),
        *(
            (f"{field} = {known}", f"{field} = {value}", ["level 'network'", field, value])
            for field, known in (("latency_seconds", "1e-5"), ("bytes_per_second", "1e9\n"))
            for value in ("inf", "nan", "-1.0")
        ),
        *(
            ("group = 3", f"group = 3\n{field} = {value}", ["level 'board'", field, value])
            for field in ("message_seconds", "collective_seconds")
            for value in ("inf", "nan", "-1.0")
        ),
        *(
            ("group = 3", f"group = 3\nstep_factor = {value}", ["level 'board'", "step_factor", "at least 1", value])
            for value in ("inf", "nan", "0.5")
        ),
        ("group = 3", "group = 1", ["board", "group 1"]),
        ("group = 3", "group = 3\nshared_by = 0", ["board", "shared_by", "at least 1"]),
        ('name = "network"', 'name = "board"', ["board", "name of its own"]),
        ('name = "network"', 'name = "net:2"', ["net:2", "no colon"]),
        ("nodes = 2", 'nodes = 2\nalgorithms = ["rings"]', ["algorithms", "'rings'", "'ring'"]),
        ("nodes = 2", 'nodes = 2\nalgorithms = ["tree"]', ["algorithms", "'ring'", "'exchange'"]),
        ('"send"', '"sent"', ["shared_lanes[0]", "'send'"]),
        ("[[processor]]", "[[processor]", ["TOML"]),
    ],
)
def test_faulty_file_is_refused_in_one_sentence(tmp_path, old, new, words):
    path = tmp_path / "lab.toml"
    path.write_text(GOOD.replace(old, new, 1))
    with pytest.raises(ValueError) as caught:
        parse(str(path))
    text = str(caught.value)
    assert str(path) in text and "\n" not in text
    assert all(word in text for word in words), text


def test_a_level_has_what_its_file_says(tmp_path):
    path = tmp_path / "lab.toml"
    figures = "shared_by = 2\nmessage_seconds = 1e-6\ncollective_seconds = 5e-6\nstep_factor = 1.5"
    path.write_text(GOOD.replace("group = 3", f"group = 3\n{figures}"))
    assert parse(str(path)).levels == (
        Level("board", 3, 1e-6, 1e10, 2, 1e-6, 5e-6, 1.5),
        Level("network", 6, 1e-5, 1e9),
    )


def test_bytes_that_are_no_text_are_refused(tmp_path):
    path = tmp_path / "x.toml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="not TOML"):
        parse(str(path))


@pytest.mark.parametrize(
    ("text", "word"),
    [("dgx-h10", "dgx-h100"), ("dgx-h100:node=2", "'nodes'"), ("dgx-h100:nodes=0", "nodes must be at least 1, not 0"),
     ("dgx-h100:nodes=8193", "has 65544 processors; plans are made for 65536 at most"),
     (f"local:procs={10**30}", "65536 at most"),
     ("", "local"), ("dgx-h100:", "key=number"), ("local:procs=two", "key=number"), ("virtual:nodes=2", "procs"),
     ("local:procs=²", "key=number"),
     ("dgx-h100:nodes=1,nodes=2", "twice"), ("/nowhere/x.toml", "No such file"), ("x.tomlnodes=2", "toml:key="),
     ("../machines/local", "no machine")],
)  # fmt: skip
def test_faulty_name_is_refused_in_one_sentence(text, word):
    with pytest.raises(ValueError) as caught:
        parse(text)
    assert word in str(caught.value) and "\n" not in str(caught.value)


def chain(*groups, rate=1e9, kind="cpu", memory=2**30):
    levels = tuple(Level(f"l{i}", g, 1e-6, rate) for i, g in enumerate(groups))
    return Machine("m", (Processor(kind, rate, rate, memory),) * groups[-1], levels)


def test_fingerprint_ignores_measured_figures_only():
    base = chain(2, 8)
    assert chain(2, 8, rate=5e9).fingerprint == base.fingerprint
    others = [chain(4, 8), chain(8), chain(2, 16), chain(2, 8, kind="gpu"), chain(2, 8, memory=2**31)]
    assert len({base.fingerprint, *(m.fingerprint for m in others)}) == 6


@given(st.lists(st.integers(2, 4), min_size=1, max_size=3), st.data())
def test_distance_is_an_ultrametric_and_link_is_the_farthest(factors, data):
    groups = [factors[0]]
    for factor in factors[1:]:
        groups.append(groups[-1] * factor)
    machine = chain(*groups)
    p, q, r = (data.draw(st.integers(0, machine.num_procs - 1)) for _ in range(3))
    assert machine.distance(p, q) == machine.distance(q, p) <= max(machine.distance(p, r), machine.distance(r, q))
    assert (machine.distance(p, q) == 0) == (p == q)
    farthest = max(machine.distance(a, b) for a in (p, q, r) for b in (p, q, r))
    if farthest:
        assert machine.level(machine.link(tuple({p, q, r})).name) is machine.levels[farthest - 1]
        if p != q:
            assert machine.link((p, q)) is machine.levels[machine.distance(p, q) - 1]


@given(st.lists(st.integers(2, 4), min_size=1, max_size=3), st.data())
def test_a_part_has_its_processors_as_far_from_each_other_as_they_are(factors, data):
    machine = chain(*accumulate(factors, mul))
    inner = data.draw(st.sampled_from([1, *(level.group for level in machine.levels)]))
    some = data.draw(st.sets(st.integers(0, machine.num_procs // inner - 1), min_size=1))
    procs = [p for p in range(machine.num_procs) if p // inner in some]
    part = machine.part(procs)
    touched = [(level.group, Counter(p // level.group for p in procs)) for level in machine.levels]
    is_one = all(len(of) == 1 or {*of.values()} == {group} for group, of in touched)
    assert (part is not None) == is_one
    for p, q in product(range(len(procs)), repeat=2) if part is not None else ():
        assert part.distance(p, q) == machine.distance(procs[p], procs[q])


def test_what_is_no_machine_of_its_own():
    machine = parse("dgx-h100:nodes=3")
    assert machine.part(range(16, 24)).levels == parse("dgx-h100:nodes=1").levels
    assert machine.part([*range(8), *range(16, 24)]).levels == parse("dgx-h100:nodes=2").levels
    for procs in (range(12), range(4, 12), range(1, 24), [0, 1, 8, 9]):
        assert machine.part(procs) is None


@pytest.mark.parametrize("levels", [(), (Level("a", 2, 1e-6, 1e9),)])
def test_levels_must_hold_all_processors(levels):
    with pytest.raises(ValueError, match="all 4 processors"):
        Machine("m", (CPU,) * 4, levels)


@pytest.mark.parametrize("groups", [(4, 2, 8), (2, 3, 12), (2, 2)])
def test_levels_must_nest(groups):
    with pytest.raises(ValueError, match="must be a multiple"):
        chain(*groups)


def test_rate_of_a_dtype_falls_back_to_float32():
    p = msgspec.structs.replace(CPU, float64_flops_per_second=5e9)
    assert [p.flops_rate(d) for d in ("float32", "float64", "bfloat16")] == [1e10, 5e9, 1e10]


def test_bfloat16_has_a_rate_of_its_own_where_chips_compute_only_float16_faster():
    both = msgspec.structs.replace(CPU, float16_flops_per_second=4e10)
    alone = msgspec.structs.replace(both, bfloat16_flops_per_second=1e10)
    assert [p.flops_rate(d) for p in (both, alone) for d in ("float16", "bfloat16")] == [4e10, 4e10, 4e10, 1e10]
    one = machines.divided(Machine("one", (alone, alone), (Level("link", 2, 1e-6, 1e9),)))
    assert {(p.flops_rate("bfloat16"), p.flops_rate("float16")) for p in one.processors} == {(5e9, 2e10)}


def test_kernels_that_attain_less_than_products_have_a_share_of_each_rate():
    p = msgspec.structs.replace(CPU, float64_flops_per_second=5e9, attained=(("attention.B", 0.5),))
    assert [p.flops_rate(d, "attention.B") for d in ("float32", "float64")] == [5e9, 2.5e9]
    assert p.flops_rate("float32", "attention.F") == p.flops_rate("float32") == 1e10


def test_rows_of_narrow_numbers_that_begin_anywhere_have_a_share_of_what_a_kernel_attains():
    p = msgspec.structs.replace(CPU, attained=(("linear.F", 0.5),), unaligned=(("linear.F", 0.25), ("linear.B", 0.2)))
    odd = ["unaligned"]
    assert [p.flops_rate(dtype, "linear.F", odd) for dtype in ("bfloat16", "float16")] == [1.25e9, 1.25e9]
    assert [p.flops_rate(dtype, "linear.F", odd) for dtype in ("float32", "float64")] == [5e9, 5e9]
    assert (p.flops_rate("float16", "linear.B", odd), p.flops_rate("float16", "linear.W", odd)) == (2e9, 1e10)
    assert p.flops_rate("float16", "linear.B") == 1e10


def test_images_whose_channels_lie_apart_have_a_share_of_what_a_kernel_attains():
    p = msgspec.structs.replace(CPU, attained=(("conv2d.F", 0.5),), planar=(("conv2d.F", 0.5),))
    assert p.has_traits and not CPU.has_traits
    assert [p.flops_rate("float16", "conv2d.F", traits) for traits in ((), ["planar"])] == [5e9, 2.5e9]
    assert p.flops_rate("float16", "conv2d.F", ["planar", "unaligned"]) == 2.5e9
    assert p.flops_rate("float16", "conv2d.B", ["planar"]) == 1e10
    assert p.flops_rate("float32", "conv2d.F", ["planar"]) == 5e9


def test_peaks_are_no_less_than_what_products_attain_and_of_dtypes_that_there_are():
    p = msgspec.structs.replace(CPU, float16_flops_per_second=2e10, peaks=(("float32", 1e10), ("float16", 3e10)))
    assert [p.peak_rate(dtype) for dtype in ("float32", "float16", "bfloat16", "float64")] == [1e10, 3e10, None, None]
    p.check("p")
    for peaks, told in [
        ((("float32", 9e9),), "'float32' must be finite and no less than the 1e"),
        ((("float16", float("nan")),), "'float16' must be finite"), ((("float64", float("inf")),), "must be finite"),
        ((("bf16", 1e12),), "no dtype 'bf16'; there are float32, float64, float16, bfloat16"),
    ]:  # fmt: skip
        with pytest.raises(ValueError, match=f"^p.peaks: .*{told}"):
            msgspec.structs.replace(p, peaks=peaks).check("p")
    halves = machines.divided(Machine("one", (p, p), (Level("link", 2, 1e-6, 1e9),)))
    assert {half.peak_rate("float16") for half in halves.processors} == {1.5e10}


def test_json_with_duplicate_or_unknown_keys_is_refused():
    with pytest.raises(ValueError, match="'kind' occurs twice"):
        strict.from_json('{"kind": "a", "kind": "b"}', Processor, "p.json")
    with pytest.raises(ValueError, match=r"p\.json: unknown field 'kin' \(did you mean 'kind'\?"):
        strict.from_json('{"kin": "a"}', Processor, "p.json")
    with pytest.raises(ValueError, match="not JSON"):
        strict.from_json(to_json(parse("dgx-a100"))[:100], Machine, "m.json")


@given(st.sampled_from(presets()), st.data())
def test_a_part_of_a_name_or_other_capitals_mean_a_name_that_holds_them(name, data):
    known = list(presets())
    begin = data.draw(st.integers(0, len(name) - strict.LEAST_HELD))
    part = name[begin : data.draw(st.integers(begin + strict.LEAST_HELD, len(name)))]
    meant = re.fullmatch(r" \(did you mean '(.+)'\?\)", strict.suggestion(part.upper(), known))[1]
    assert part in meant and len(meant) <= len(name)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=3))
def test_hosts_have_the_name_of_a_machine_with_as_many_processors(sizes: list[int]) -> None:
    found = machines.hosts(sizes)
    assert parse(found.name).num_procs == found.num_procs == sum(sizes)


@pytest.mark.parametrize("name", presets())
def test_shares_of_a_device_make_up_the_device(name: str) -> None:
    """All figures that are a device's, not a task's, by the units in their names."""
    whole = parse(name)
    parts, n = machines.divided(whole), whole.num_procs
    for one, part in [*zip(whole.processors, parts.processors), *zip(whole.levels, parts.levels)]:
        for field in one.__struct_fields__:
            mine, theirs = getattr(part, field), getattr(one, field)
            if field == "peaks":
                assert mine == tuple((dtype, pytest.approx(peak / n)) for dtype, peak in theirs)
                continue
            if field in EACH:
                assert mine == pytest.approx(theirs * n)
                continue
            is_shared = field.endswith(("_bytes", "_per_second")) and theirs is not None
            assert mine == (pytest.approx(theirs / n, abs=1) if is_shared else theirs), field
