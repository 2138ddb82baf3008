"""Commands on a host with GPUs, on a stand-in of CuPy: which machine they find, what they run on, what they tell."""

from __future__ import annotations

import json
import shlex
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import cast
from unittest.mock import Mock, call, patch

import numpy as np
import pytest

from castile.kernels import choice, tuning
from castile.launch import doctor, train
from castile.launch.__main__ import main
from castile.launch.here import gpus
from castile.launch.jobs import jobs, offline, profile_store
from castile.launch.jobs.execution import Execution, Prepared
from castile.launch.jobs.jobs import Job
from castile.launch.measuring import plan_choice
from castile.launch.measuring.measure import measure, sample_feed, timed_plan
from castile.launch.processes.ranks import UserError
from castile.planner.cost import CostModel
from castile.planner.known.seeds import seeds
from castile.runtime import machine as machines
from castile.runtime.comm.base import Communicator
from castile.runtime.comm.local import LocalWorld
from castile.runtime.machine import Machine, local
from castile.runtime.processor import SHARES
from castile.runtime.task import CostKey, Lane
from tests.answers import answer
from tests.late import device
from tests.stand_in.green import CUresult
from tests.threads import End, Ranks

RATES = (5e13, 7e14, 6e13, 4e12, 1e-6)


@contextmanager
def host_with_gpus() -> Iterator[Mock]:
    """Gives what measures them."""
    with device():
        from castile.runtime.backends.cuda import devices

        gpus.measure.cache_clear()
        with patch.object(devices, "rates", side_effect=lambda: devices.Rates(*RATES)) as measured:
            yield measured
    gpus.measure.cache_clear()


def test_without_gpus_local_means_the_cores() -> None:
    assert gpus.count() == 0
    assert not gpus.is_on(jobs.find_machine("local", LocalWorld(1).communicators[0], "float32"))


def test_gpus_that_are_there_and_not_used_are_told(tmp_path, capsys, monkeypatch) -> None:
    """A driver that is older than CuPy's CUDA shows no device, and steps would run on cores without a word."""
    comm = LocalWorld(1).communicators[0]

    def told() -> str:
        assert not gpus.is_on(jobs.find_machine("local", comm, "float32"))
        (finding,) = (finding for finding in doctor.examine() if finding.name == "GPUs used")
        said = capsys.readouterr().err.removeprefix("castile: the GPUs of this host are not used: ").strip()
        assert not finding.found and said in finding.words
        return said

    monkeypatch.setattr(gpus, "DRIVERS", tmp_path / "none")
    assert told() == ""
    monkeypatch.setattr(gpus, "DRIVERS", tmp_path)
    with patch.object(gpus, "find_spec", lambda name: name == "triton" or None):
        assert told() == f"CuPy is not installed: {gpus.INSTALLING}"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert told() == ""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    with host_with_gpus():
        from castile.runtime.backends.cuda import devices

        runtime = devices.cupy.cuda.runtime
        monkeypatch.setattr(devices.cupy.cuda, "is_available", lambda: False)
        monkeypatch.setattr(runtime, "driverGetVersion", lambda: 12080)
        assert told() == "the driver knows CUDA 12.8, and CuPy here needs 13.0: bring a newer driver"
        monkeypatch.setattr(runtime, "driverGetVersion", lambda: 13000)
        assert told() == "the driver shows none"


def test_hosts_of_which_one_has_no_gpu_that_can_be_used_are_refused() -> None:
    """The others would wait in what it does not come to."""

    def rank(comm: End) -> str:
        mine.host = comm.host_index
        with pytest.raises(UserError) as caught:
            jobs.find_machine("local", cast(Communicator, comm), "float32")
        return str(caught.value)

    def on_cores(comm: End) -> Machine:
        mine.host = comm.host_index
        return jobs.find_machine("local", cast(Communicator, comm), "float64")

    mine = threading.local()
    with host_with_gpus(), patch.object(gpus, "count", lambda: 0 if mine.host else 2):
        told = Ranks(3, [2, 1]).run(rank)
    said = "what steps run on is not the same on all ranks: GPUs on rank 0 (host 0), cores alone on rank 2 (host 1)"
    assert told == [f"{said}; {gpus.MEND}"] * 3
    with host_with_gpus(), patch.object(gpus, "count", lambda: 0 if mine.host else 2):
        # what no GPU computes with runs on cores, whatever else there is
        Ranks(3, [2, 1]).run(on_cores)


@pytest.fixture
def of_gpus(tmp_path: Path) -> str:
    """A machine in a file, of processors as ranks on GPUs have them."""
    path, known = tmp_path / "gpus.toml", machines.PRESETS / "virtual.toml"
    path.write_text(known.read_text().replace("divided = true\n", ""))
    return str(path)


def refusal(name: str, mine: threading.local, comm: End) -> str:
    """The sentence with which a rank refuses a machine."""
    mine.rank = comm.rank
    with pytest.raises(UserError) as caught:
        jobs.find_machine(name, cast(Communicator, comm), "float32")
    return str(caught.value)


@pytest.mark.parametrize("name", ["local", "virtual:procs=2", ""])
def test_ranks_of_one_host_of_which_one_sees_no_gpu_are_refused(name: str, of_gpus: str) -> None:
    """As where more ranks are started than GPUs, each told to use the one of its number."""
    mine = threading.local()
    with host_with_gpus(), patch.object(gpus, "count", lambda: int(mine.rank < 2)):
        told = Ranks(3).run(partial(refusal, name or of_gpus, mine))
    assert len(set(told)) == 1 and "cores alone on rank 2" in told[0] and told[0].endswith(gpus.MEND)


@pytest.mark.parametrize("name", ["local", ""])
def test_gpus_of_several_kinds_are_refused(name: str, of_gpus: str) -> None:
    """Kernels are chosen for all of them on one, and each kind rounds as it likes."""
    mine = threading.local()
    with host_with_gpus():
        from castile.runtime.backends.cuda import devices

        with patch.object(devices, "current", lambda: devices.Device(f"GPU {mine.rank // 2}", 2**31, 0)):
            told = Ranks(3).run(partial(refusal, name or of_gpus, mine))
    said = f"the GPU is not the same on all ranks: GPU 0 on rank 0 (host 0), GPU 1 on rank 2 (host 0); {gpus.MEND}"
    assert told == [said] * 3


def test_what_others_hold_of_the_fullest_gpu_is_left_to_them() -> None:
    def rank(comm: End) -> Machine:
        mine.rank = comm.rank
        return jobs.find_machine("local", cast(Communicator, comm), "float32")

    mine = threading.local()
    with host_with_gpus():
        from castile.runtime.backends.cuda import devices

        def current() -> devices.Device:
            return devices.Device("one", 80 * 2**30, (1 + 5 * (mine.rank == 1)) * 2**30)

        with patch.object(devices, "current", current), patch.object(devices, "bus", lambda: str(mine.rank)):
            found = Ranks(2).run(rank)
        gpus.measure.cache_clear()
        with patch.object(devices, "current", lambda: devices.Device("one", 80 * 2**30, 0)):
            none = gpus.machine(machines.hosts([2]), gpus.Placing(1, 2)).processors[0].reserved_bytes
    assert [p.reserved_bytes - none for machine in found for p in machine.processors] == [6 * 2**30] * 4


def test_local_means_a_gpu_for_each_rank() -> None:
    with host_with_gpus():
        found = jobs.find_machine("local", LocalWorld(1).communicators[0], "float32")
        assert [p.kind for p in found.processors] == ["gpu"]
        (processor,) = found.processors
        assert (processor.flops_rate("float32"), processor.flops_rate("bfloat16")) == RATES[:2]
        assert processor.memory_bytes == 2**31 and 2**30 <= processor.reserved_bytes <= 2**31
        assert offline.find_machine("local").num_procs == gpus.count()
        assert gpus.is_on(offline.find_machine("local:procs=3"))


def test_transfers_that_share_a_stream_share_an_engine() -> None:
    """What a rank sends, gets and sums comes one by one there, so none runs beside another when it is simulated."""
    with host_with_gpus():
        engines = gpus.machine(local(2), gpus.Placing()).engines
    transfers = {engines[lane] for lane in (Lane.SEND, Lane.RECEIVE, Lane.COLLECTIVE)}
    assert len(transfers) == 1 and engines[Lane.COMPUTE] not in transfers


def test_sums_are_priced_as_rings_where_each_rank_has_its_gpu() -> None:
    """And an exchange as what all GPUs of a host send to another by the link that they share."""
    with host_with_gpus():
        own, shared = (gpus.machine(machines.hosts([8, 8]), gpus.Placing(n, 8)) for n in (1, 2))
    assert own.algorithms == ("ring",) and shared.algorithms == ("exchange",)
    link, nbytes = own.level(own.link(range(16)).name), 10**8
    key = CostKey("all_to_all", "", "float32", 0, nbytes, own.link(range(16)).name, 16)
    assert CostModel(own).seconds(key).seconds > 8 * nbytes / 2 / link.bytes_per_second


def test_what_nccl_takes_of_several_gpus_is_left_to_it() -> None:
    """A plan that fills the rest would end at the first transfer."""
    with host_with_gpus(), patch.object(gpus, "measure", lambda: gpus.Figures("one", 80 * 2**30, 2**29, *RATES)):
        one, two, eight, far, unlike = (
            gpus.machine(machines.hosts(sizes), gpus.Placing(1, max(sizes))).processors[0].reserved_bytes / 2**30
            for sizes in ([1], [2], [8], [8, 8], [4, 8])
        )
        taken = gpus.machine(local(1), gpus.Placing(reserved_bytes=2**31)).processors[0].reserved_bytes / 2**30
    assert one == 1.5 and two == pytest.approx(1.5 + 0.375 + 0.5625)
    assert eight == far == unlike == pytest.approx(1.5 + 7 * 0.375 + 0.5625)
    # of what others hold of any rank's GPU the most counts
    assert taken == 3


@pytest.mark.parametrize("name", [*gpus.SHEETS, "NVIDIA L40S"])
@pytest.mark.parametrize("num_sharers", [1, 2])
def test_a_gpu_has_the_peaks_of_its_data_sheet(name: str, num_sharers: int) -> None:
    """As far as it is known; and no less than what was measured."""
    figures = gpus.Figures(name, 80 * 2**30, 2**29, 1e13, 1e14, 1e15, 4e12, 1e-6)
    with host_with_gpus(), patch.object(gpus, "measure", lambda: figures):
        found = gpus.machine(local(2), gpus.Placing(num_sharers, 2)).processors[0]
    like = machines.parse(gpus.SHEETS.get(name, gpus.MEASURED)).processors[0]
    assert all(getattr(found, field) == getattr(like, field) for field in SHARES)
    if name in gpus.SHEETS:
        assert found.peak_rate("bfloat16") == dict(like.peaks)["bfloat16"] / num_sharers
        assert found.peak_rate("float64") == 1e15 / num_sharers
    else:
        assert found.peaks == ()


def test_ranks_that_share_a_gpu_have_parts_of_it() -> None:
    with host_with_gpus():
        whole, half = (gpus.machine(local(4), gpus.Placing(n, 4)).processors[0] for n in (1, 2))
        assert half.memory_bytes == whole.memory_bytes // 2
        assert half.flops_per_second == whole.flops_per_second / 2


@pytest.mark.parametrize("num_seen", [1, 2, 6])
@pytest.mark.parametrize("num_sharers", [1, 2])
def test_ranks_share_a_gpu_only_where_they_have_the_same(num_seen: int, num_sharers: int) -> None:
    """However many each of them sees: what starts ranks may show each its own alone."""
    num_hosts, each, mine = 2, 3, threading.local()

    def rank(comm: End) -> int:
        # hosts name their devices alike
        mine.gpu = f"0000:{comm.local_rank % each:02x}:00.0"
        return gpus.placing(cast(Communicator, comm)).num_sharers

    with host_with_gpus(), patch.object(gpus, "count", lambda: num_seen):
        from castile.runtime.backends.cuda import devices

        with patch.object(devices, "bus", lambda: mine.gpu):
            found = Ranks(num_hosts * each * num_sharers, [each * num_sharers] * num_hosts).run(rank)
    # rank 0 makes the machine; others are told of it
    assert found[0] == num_sharers


@pytest.mark.parametrize("is_offline", [False, True])
def test_the_first_rank_alone_measures(is_offline: bool) -> None:
    """Others that share its GPU would take their part of what it reaches."""

    def rank(comm: End) -> Machine:
        mine.communicator = comm
        if is_offline:
            return offline.find_machine("local")
        return jobs.find_machine("local", cast(Communicator, comm), "float32")

    mine = threading.local()
    with host_with_gpus():
        from castile.runtime.backends.cuda import devices

        named = Mock(wraps=gpus.named)
        with (
            patch.object(gpus, "named", named),
            patch.object(devices, "bus", lambda: "0"),
            patch.object(offline, "this_world", lambda: mine),
        ):
            found = Ranks(3).run(rank)
        (processor, *_), whole = found[0].processors, gpus.machine(local(1), gpus.Placing()).processors[0]
    assert named.call_count == 1 and found == [found[0]] * 3
    assert processor.bytes_per_second == whole.bytes_per_second / 3


def test_a_gpu_is_measured_once() -> None:
    with host_with_gpus() as measured:
        for procs, num_sharers in ((1, 1), (4, 1), (4, 4)):
            gpus.named(local(procs), gpus.Placing(num_sharers))
        for text in ("virtual", "local", "local:procs=3"):
            offline.find_machine(text)
        jobs.find_machine("local", LocalWorld(1).communicators[0], "float32")
        assert measured.call_count == 1


def test_numbers_that_no_gpu_computes_with_stay_on_the_cores() -> None:
    with host_with_gpus():
        assert not gpus.is_on(jobs.find_machine("local", LocalWorld(1).communicators[0], "float64"))


def test_each_rank_of_a_host_takes_its_gpu() -> None:
    with host_with_gpus():
        import cupy

        taken = []
        for comm in LocalWorld(2 * gpus.count()).communicators:
            gpus.use(comm.local_rank)
            taken.append(cupy.cuda.runtime.getDevice())
        assert taken == [*range(gpus.count())] * 2


def test_the_first_rank_of_a_host_shows_what_is_compiled() -> None:
    with host_with_gpus(), patch("castile.launch.reports.progress.bar") as bar:
        from castile.runtime.backends.cuda import kernels

        few = tuning.dense((4,), "float32")

        def compiled(calls: object, tell: Callable[[int, int], None]) -> None:
            tell(1, 2)

        for rank in range(2):
            gpus.use(rank)
            with patch.object(kernels.tuning, "precompile", compiled):
                kernels.compile_ahead({choice.key(choice.kernel_call("copy", (few,), (few,), {}, False))})
                kernels.compile_ahead(set())
        assert bar.call_args_list == [call(True, "compiling"), call(False, "compiling")]
        assert bar().__enter__().mock_calls == [call("kernels", 1, 2)] * 2


def test_what_is_measured_holds_for_the_gpu() -> None:
    with host_with_gpus(), patch.object(gpus, "version", lambda name: "1.0"):
        found = profile_store.environment(gpus.machine(local(1), gpus.Placing()))
        assert found.device == "stand-in" and "triton 1.0" in found.libraries
    assert profile_store.environment(offline.find_machine("local")).device != "stand-in"


@pytest.fixture
def briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans are measured no longer than need be: what is chosen is not the question."""
    monkeypatch.setattr(plan_choice, "ROUNDS", plan_choice.LEAST_ROUNDS)


def trained(words: str, folder: str, capsys: pytest.CaptureFixture[str]) -> dict:
    train.run(train.parse([*words.split(), "--json", "--profile", f"{folder}/profile.db", "--steps", "12"]))
    return json.loads(capsys.readouterr().out)


@pytest.mark.usefixtures("briefly")
def test_training_there_says_what_runs_as_measured(tmp_path, capsys, monkeypatch) -> None:
    """And the command that it names measures the rest, for whoever trains again."""
    kernels = pytest.importorskip("castile.kernels.tuning")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(kernels, "gpu", lambda: None)
    monkeypatch.setattr(kernels, "precompile", lambda calls, tell: None)
    monkeypatch.setattr(kernels, "tune", lambda table, name, meter: dict.fromkeys(kernels.choices(table, name), 1.0))
    given = ["train", *f"mlp:layers=2,width=16 --steps 4 --profile {tmp_path}/p".split()]
    words = [*given, "--search", "data_parallel"]
    with host_with_gpus(), patch.object(gpus, "version", lambda name: "1.0"):
        assert main(words) == 0
        assert "here: train with --out PLAN.json, then castile profile mlp" in capsys.readouterr().out
        assert main([*words, "--out", f"{tmp_path}/plan.json"]) == 0
        (line,) = [one for one in capsys.readouterr().out.splitlines() if one.startswith("kernels: ")]
        said, _, command = line.partition(" here: castile ")
        assert "run with default settings" in said
        assert main(shlex.split(command)) == 0
        assert "several ways were timed" in capsys.readouterr().out
        assert main([*given, "--plan", f"{tmp_path}/plan.json"]) == 0
        assert "run as was fastest here" in capsys.readouterr().out


@pytest.mark.usefixtures("briefly")
def test_training_there_learns_what_training_on_cores_does(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    words = f"mlp:layers=2,width=16 --search data_parallel --checkpoint {tmp_path}/saved --evaluate-every 8"
    on_cores = trained(words.replace("saved", "cores"), str(tmp_path), capsys)
    with host_with_gpus(), patch.object(gpus, "version", lambda name: "1.0"):
        found = trained(words, str(tmp_path), capsys)
    assert np.allclose(found["losses"], on_cores["losses"], 1e-4)
    assert found["held_out_loss"] == pytest.approx(on_cores["held_out_loss"], 1e-3)
    assert found["checkpoints"][-1]["complete"]
    # what it was planned with were the GPU's rates
    assert found["untaught_step_seconds"] < on_cores["untaught_step_seconds"]


@pytest.mark.usefixtures("briefly")
def test_steps_there_are_rewritten_and_what_they_save_is_not(tmp_path, alone, capsys, monkeypatch) -> None:
    """A training goes on, and its network predicts, wherever that is and whatever steps compute with there."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    network = "resnet:depth=small,size=8,width=4"
    own = "--batch 8 --checkpoint saved --data synthetic:samples=160".split()

    def train_on(model: str, steps: int, *more: str) -> dict:
        search = [] if "--plan" in more else ["--search", "data_parallel"]
        return answer(capsys, "train", model, *own, *search, "--steps", str(steps), *more)

    with host_with_gpus(), patch.object(gpus, "version", lambda name: "1.0"):
        first = train_on(network, 2, "--out", "plan.json")
        again = train_on(network, 3, "--resume")
        assert again["run"]["model"] == first["run"]["model"] == f"{network},rewrite=fuse"
        assert train_on(f"{network},rewrite=none", 4, "--resume")["run"]["model"] == f"{network},rewrite=none"
        assert train_on(network, 5, "--resume", "--plan", "plan.json")["run"]["model"] == f"{network},rewrite=fuse"
        there = answer(capsys, "predict", network, "--checkpoint", "saved", "--out", "there.npz")
    here = answer(capsys, "predict", network, "--checkpoint", "saved", "--out", "here.npz")
    assert there["outputs"] == here["outputs"]
    for one, other in zip(np.load("there.npz").values(), np.load("here.npz").values(), strict=True):
        assert np.allclose(one, other, 1e-3, 1e-4)
    assert train_on(network, 6, "--resume")["run"]["model"] == network
    assert {row["model"] for row in answer(capsys, "checkpoint", "ls", "saved")["checkpoints"]} == {network}


@pytest.mark.usefixtures("briefly")
def test_one_gpu_trains_as_several_processors(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    words = f"mlp:layers=2,width=16 --search data_parallel --out {tmp_path}/plan.json"
    on_cores = trained(words, str(tmp_path), capsys)
    with host_with_gpus(), patch.object(gpus, "version", lambda name: "1.0"):
        machine = "--machine virtual:procs=3"
        found = trained(f"{words} {machine} --checkpoint {tmp_path}/saved", str(tmp_path), capsys)
        with patch.object(Execution, "timeline", autospec=True, side_effect=Execution.timeline) as whole:
            again = trained(f"mlp:layers=2,width=16 --plan {tmp_path}/plan.json {machine}", str(tmp_path), capsys)
        assert profile_store.environment(gpus.virtual(2)) != profile_store.environment(
            gpus.machine(local(2), gpus.Placing())
        )
    assert len(found["peak_bytes"]) == 3 and found["remarks"] == [] and found["checkpoints"][-1]["complete"]
    assert np.allclose(found["losses"], on_cores["losses"], 1e-4)
    assert again["losses"] == found["losses"]
    # most of a short run's steps are one graph too
    assert 1 <= whole.call_count <= 12 / 4


def test_plans_are_measured_one_at_a_time_there() -> None:
    """The memory of one has been given back before the next is there."""
    with host_with_gpus(), patch.object(gpus, "version", lambda name: "1.0"):
        job = jobs.start("mlp:layers=1,width=8", "virtual:procs=2", None, "")
        trials = [timed_plan(job, name, plan, 0) for name, plan in seeds(job.lowering).items()]
        living: list[weakref.ref[Execution]] = []
        alive: list[int] = []

        def execute(prepared: Prepared, seed: int) -> Execution:
            alive.append(sum(one() is not None for one in living))
            made = Job.execute(job, prepared, seed)
            living.append(weakref.ref(made))
            return made

        with patch.object(job, "execute", execute):
            measure(job, trials, sample_feed(job), 0.0, 2)
        assert len(trials) > 1 and alive == [0] * len(trials)
        assert all(len(t.steps) == 2 for t in trials)


def test_virtual_devices_have_equal_parts_of_one() -> None:
    with host_with_gpus():
        whole = gpus.machine(local(1), gpus.Placing()).processors[0]
        part, other = offline.find_machine("virtual").processors
        assert part == other and part.memory_bytes == whole.memory_bytes // 2
        assert part.flops_rate("bfloat16") == whole.flops_rate("bfloat16") / 2
    # and where there is none, of the one that is assumed
    one, four = (offline.find_machine(f"virtual:procs={n}") for n in (1, 4))
    assert four.processors[3].bytes_per_second == one.processors[0].bytes_per_second / 4 and not one.levels


def test_what_cannot_be_divided_says_why(monkeypatch) -> None:
    with pytest.raises(UserError, match="kind 'gpu', and steps run on this host's cpu"):
        jobs.start("mlp", "virtual", None, "")
    with host_with_gpus(), patch.object(gpus, "version", lambda name: "1.0"):
        with pytest.raises(ValueError, match="132 multiprocessors: at most 16 parts of 8"):
            jobs.start("mlp", "virtual:procs=17", None, "")
        with patch("cuda.bindings.driver.cuGreenCtxCreate", lambda *a: (CUresult(914), None)):
            with pytest.raises(ValueError, match="does not divide this GPU: CUDA_ERROR_INVALID_RESOURCE"):
                jobs.start("mlp", "virtual:procs=2", None, "")
        for name in ("cuda", "cuda.bindings", "cuda.bindings.driver"):
            monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(ValueError, match="need the library cuda-bindings"):
            jobs.start("mlp", "virtual:procs=2", None, "")
        monkeypatch.undo()


def test_a_machine_of_gpus_needs_them_here(tmp_path) -> None:
    text = (
        "[[processor]]\nkind = 'gpu'\nflops_per_second = 1e13\nbytes_per_second = 1e12\nmemory_bytes = 1_000_000_000\n"
    )
    (tmp_path / "mine.toml").write_text(text)
    with pytest.raises(UserError, match="kind 'gpu', and steps run on this host's cpu"):
        jobs.start("mlp", str(tmp_path / "mine.toml"), None, "")
    with host_with_gpus(), patch.object(gpus, "version", lambda name: "1.0"):
        assert jobs.start("mlp", str(tmp_path / "mine.toml"), None, "").backend == "cuda"


def test_doctor_tells_how_ranks_would_talk() -> None:
    (none,) = (finding for finding in doctor.examine() if finding.name == "GPUs used")
    assert not none.found
    with host_with_gpus():
        (some,) = (finding for finding in doctor.examine() if finding.name == "GPUs used")
        (virtual,) = (finding for finding in doctor.examine() if finding.name == "virtual GPUs")
    assert virtual.found and virtual.facts["most_parts"] == 16
    assert some.found and some.facts["num_gpus"] > 1 and "a GPU for each rank" in some.facts["talk"]
