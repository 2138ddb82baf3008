"""Presets: their attainable figures stand below the published peaks, and not far; any number of nodes; topologies."""

import tracemalloc

import pytest

from castile.runtime.machine import parse, presets
from castile.runtime.processor import SHARES
from castile.runtime.task import Lane

# Published peaks: float32 as products are computed (TF32 where there is one), float16 and float64 in teraflop/s, memory
# in GB/s and GiB, one link of each level in one direction in GB/s.
PEAKS = {
    "flexflow-p100": (10.6, 21.2, 5.3, 732, 16, {"nvlink": 20, "infiniband": 12.5}),
    "flexflow-k80": (4.37, None, 1.46, 240, 12, {"pcie": 15.75, "pcie-switch": 15.75, "infiniband": 7}),
    "p3.16xlarge": (15.7, 125, 7.8, 900, 16, {"nvlink": 150, "ethernet": 3.125}),
    "dgx-a100": (19.5, 312, 19.5, 2039, 80, {"nvlink": 300, "infiniband": 25}),
    "dgx-h100": (66.9, 989.4, 66.9, 3350, 80, {"nvlink": 450, "infiniband": 50}),
    "h200": (66.9, 989.4, 66.9, 4800, 141, {"nvlink": 450, "infiniband": 50}),
}
# Chips since Ampere, of which kernels were measured or compiled, and bfloat16 is as fast as float16.
NEWER = ("dgx-a100", "dgx-h100", "h200")
NODES = {"flexflow-p100": (4, 4), "flexflow-k80": (16, 4), "p3.16xlarge": (1, 8), "dgx-a100": (1, 8),
         "dgx-h100": (1, 8), "h200": (1, 8)}  # fmt: skip


def below(figure, peak):
    return 0.6 * peak <= figure <= peak


def test_every_preset_of_gpus_has_published_peaks():
    assert sorted([*PEAKS, "local", "virtual"]) == presets()


@pytest.mark.parametrize("name", PEAKS)
def test_figures_stand_below_the_published_peaks(name):
    float32, float16, float64, memory, gib, links = PEAKS[name]
    machine = parse(f"{name}:nodes=2")
    for p in machine.processors:
        assert below(p.flops_rate("float32"), float32 * 1e12) and below(p.flops_rate("float64"), float64 * 1e12)
        assert p.float16_flops_per_second is None if float16 is None else below(p.flops_rate("float16"), float16 * 1e12)
        assert below(p.bytes_per_second, memory * 1e9) and 0.9 * gib <= p.memory_bytes / 2**30 <= gib
    assert [level.name for level in machine.levels] == list(links)
    for level in machine.levels:
        assert below(level.bytes_per_second, links[level.name] * 1e9)


@pytest.mark.parametrize("name", PEAKS)
def test_peaks_are_the_published_ones(name):
    float32, float16, float64 = PEAKS[name][:3]
    (p,) = parse(f"{name}:nodes=1").kinds
    told = {"float32": float32, "float16": float16, "float64": float64}
    for dtype, peak in told.items():
        assert p.peak_rate(dtype) == (peak and pytest.approx(peak * 1e12, rel=5e-3))
    has_it = name in NEWER
    assert p.peak_rate("bfloat16") == (p.peak_rate("float16") if has_it else None)


@pytest.mark.parametrize("name", PEAKS)
def test_bfloat16_is_as_fast_as_float16_where_chips_have_it_and_as_float32_before_ampere(name):
    (p,) = parse(f"{name}:nodes=1").kinds
    has_it = name in NEWER
    assert p.flops_rate("bfloat16") == p.flops_rate("float16" if has_it else "float32")


# By how many processors a link of each level is shared.
SHARED_BY = {
    "flexflow-p100": (1, 4),
    "flexflow-k80": (1, 2, 4),
    "p3.16xlarge": (1, 8),
    "dgx-a100": (1, 1),
    "dgx-h100": (1, 1),
    "h200": (1, 1),
}


@pytest.mark.parametrize("name", PEAKS)
def test_times_and_shares_are_of_the_magnitude_that_launches_messages_and_kernels_have(name):
    """Of a network more than within a node; the paper's clusters have links without latency."""
    machine = parse(f"{name}:nodes=2")
    for p in machine.processors:
        assert 2e-6 <= p.task_overhead_seconds <= 1e-5 and 2**29 <= p.reserved_bytes <= 2**31
        assert all(0.3 <= share <= 0.8 for field in SHARES for _, share in getattr(p, field))
        assert all(bool(getattr(p, field)) == (name in NEWER) for field in SHARES)
    latencies = [level.latency_seconds for level in machine.levels]
    assert latencies == ([0.0] * len(latencies) if name.startswith("flexflow") else sorted(latencies))
    assert name.startswith("flexflow") or 1e-6 <= latencies[0] < latencies[-1] <= 5e-5
    assert tuple(level.shared_by for level in machine.levels) == SHARED_BY[name]
    # What goes out by one port goes out one after the other, and what comes in comes beside it.
    assert machine.engines[Lane.SEND] == machine.engines[Lane.COLLECTIVE]
    assert len({machine.engines[lane] for lane in (Lane.COMPUTE, Lane.SEND, Lane.RECEIVE, Lane.HOST)}) == 4


@pytest.mark.parametrize("name", PEAKS)
@pytest.mark.parametrize("nodes", [None, 1, 3, 16])
def test_any_number_of_nodes(name, nodes):
    default, gpus = NODES[name]
    machine = parse(name if nodes is None else f"{name}:nodes={nodes}")
    assert machine.num_procs == gpus * (default if nodes is None else nodes)
    assert machine.fingerprint == parse(f"{name}:nodes={machine.num_procs // gpus}").fingerprint
    inside = {machine.distance(p, q) for p in range(gpus) for q in range(gpus)}
    assert machine.num_procs == gpus or machine.distance(gpus - 1, gpus) == max(inside) + 1


def test_k80_boards_hang_on_switches_of_their_own():
    machine = parse("flexflow-k80")
    assert [machine.link((0, q)).name for q in (1, 2, 3, 4)] == ["pcie", "pcie-switch", "pcie-switch", "infiniband"]
    assert machine.link((2, 3)).name == "pcie" and machine.link((1, 2)).name == "pcie-switch"


def test_thousands_of_processors_have_no_tables_of_pairs():
    tracemalloc.start()
    machine = parse("dgx-h100:nodes=512")
    link = machine.link(tuple(range(4096)))
    assert link.name == "infiniband" and machine.spread(link.name, 4096).counts == (8, 512)
    assert machine.link((0, 4095)).name == "infiniband" and len(machine.kind_of) == 4096
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4096 * 4096 / 4
