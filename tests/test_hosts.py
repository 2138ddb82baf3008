"""Several hosts: links within one are told from those between, each has its own figures, and all must be alike."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from castile.launch.here import consistency, hosts, link_timing, probe
from castile.launch.measuring import links
from castile.launch.processes.ranks import UserError
from castile.runtime import machine as machines
from castile.runtime.levels import level_name
from tests.threads import Ranks

FIGURES = probe.Figures(1e11, 5e10, 2e10, 4e-6, 1e-8, 1e-9, link_timing.Link(1e-6, 8e9, 3e-6, 4e-6, 2.0))
SLOW = msgspec.structs.replace(FIGURES, float32_flops_per_second=1e9)
SIZES = st.lists(st.integers(1, 6), min_size=1, max_size=6)


def place(sizes):
    """The host of each processor."""
    return [host for host, size in enumerate(sizes) for _ in range(size)]


@given(SIZES)
def test_no_link_between_hosts_is_taken_for_one_within(sizes):
    machine, host = machines.hosts(sizes), place(sizes)
    pairs = [(p, q) for p in range(sum(sizes)) for q in range(p)]
    far = {(p, q) for p, q in pairs if level_name(machine.link((p, q)).name) == hosts.NETWORK}
    assert far >= {(p, q) for p, q in pairs if host[p] != host[q]}
    if len({*sizes[:-1], max(sizes)}) == 1:
        assert far == {(p, q) for p, q in pairs if host[p] != host[q]}
    assert machine.processors[0].memory_bytes == machines.local(1).processors[0].memory_bytes // max(sizes)


@given(SIZES)
def test_the_name_is_one_of_a_machine_with_as_many_processors(sizes):
    machine = machines.hosts(sizes)
    assert machines.parse(machine.name).num_procs == machine.num_procs
    if len(set(sizes)) == 1:
        assert machines.parse(machine.name) == machine


@given(st.integers(1, 4), st.integers(1, 4))
def test_messages_over_links_of_every_level_are_measured(each, num_hosts):
    machine, found = machines.hosts([each] * num_hosts), set()
    for exchange in links.exchanges(machine, "float32"):
        procs = [p for group in exchange.groups for p in group]
        assert len(procs) == len(set(procs)) and max(procs) < machine.num_procs
        if exchange.form == "move":
            found |= {level_name(machine.link(group).name) for group in exchange.groups}
    assert found == {level.name for level in machine.levels}


@pytest.fixture
def reaches(tmp_path, monkeypatch):
    """What each host reaches by its index, and what the network does; counts what is measured."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    counts = {"hosts": 0, "network": 0}

    def of_host(near, procs):
        counts["hosts"] += near.rank == 0
        return FIGURES

    def link(comm, ends, guess, is_crowded):
        assert [comm.host_sizes[0], 0] == [ends[1], ends[0]]
        counts["network"] += comm.rank == 0
        return link_timing.Link(5e-5, 1e9, 2e-6, 5e-6, 1.0) if comm.rank == 0 else None

    monkeypatch.setattr(probe, "of_host", of_host)
    monkeypatch.setattr(link_timing, "link", link)
    return counts


def measured(sizes, work=lambda comm: None):
    def rank(comm):
        work(comm)
        return hosts.measured(machines.hosts(sizes), comm)

    return Ranks(sum(sizes), sizes).run(rank)[0]


def test_links_between_hosts_are_measured_once_for_those_hosts(reaches):
    first = measured([2, 2])
    names = ("name", "latency_seconds", "bytes_per_second", "message_seconds", "collective_seconds", "step_factor")
    assert [tuple(getattr(level, name) for name in names) for level in first.levels] == [
        ("host", 1e-6, 8e9, 3e-6, 4e-6, 2.0), ("network", 5e-5, 1e9, 2e-6, 5e-6, 1.0)
    ]  # fmt: skip
    assert first.levels[1].shared_by == 2
    assert measured([2, 2]) == first and reaches == {"hosts": 4, "network": 1}

    def renamed(comm):
        comm.host = f"other {comm.host}"

    assert measured([2, 2], renamed) == first and reaches["network"] == 2


def test_one_host_alone_asks_for_no_network(reaches):
    assert [level.name for level in measured([3]).levels] == ["host"] and reaches["network"] == 0


HOSTS = st.lists(
    st.builds(hosts.Host, st.sampled_from("ab"), st.integers(1, 9), st.sampled_from([FIGURES, SLOW])),
    min_size=1,
    max_size=6,
)


@given(HOSTS)
def test_hosts_of_a_kind_have_the_figures_of_their_first_and_all_the_least_memory(each):
    made = hosts._with(machines.local(1, len(each)), each, None)
    for processor, host in zip(made.processors, each, strict=True):
        first = next(other for other in each if other.kind == host.kind)
        assert processor.flops_per_second == first.figures.float32_flops_per_second
        assert processor.memory_bytes == min(other.memory_bytes for other in each)


@pytest.mark.parametrize("odd", [1, 2])
def test_what_is_not_the_same_on_all_hosts_is_refused_on_all_ranks_in_one_sentence(odd):
    def rank(comm):
        with pytest.raises(UserError) as caught:
            consistency.check(comm, "the thing", lambda: "other" if comm.host_index == odd else "this")
        return str(caught.value)

    told = Ranks(5, (2, 2, 1)).run(rank)
    assert (
        told == [f"the thing is not the same on all hosts: this on host 0, other on host {odd}; {consistency.MEND}"] * 5
    )


def test_what_is_the_same_is_not_told_and_one_host_is_not_asked():
    asked = []

    def rank(comm):
        consistency.check(comm, "the thing", lambda: asked.append(comm.rank) or "this")

    Ranks(5, (2, 2, 1)).run(rank)
    assert sorted(asked) == [0, 2, 4]
    Ranks(2).run(rank)
    assert len(asked) == 3
