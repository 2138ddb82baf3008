"""What must be the same on every host of a job: software, model and data. Differences are refused in one sentence.

Each rank loads these by itself, and nothing else would notice: results of unlike hosts would be combined all the same.
It does not know how they are used.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Callable
from contextlib import suppress
from importlib import resources
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
import xxhash

import castile
from castile.launch.data import Dataset, Samples
from castile.launch.models import Model
from castile.launch.processes.ranks import UserError
from castile.planner.graph import Graph
from castile.runtime.comm.base import Communicator

# Of data so many samples are looked at: enough to tell one from another.
NUM_SAMPLES = 64
# What computes, besides castile itself.
PACKAGES = ("numpy", "scipy", "numba", "cupy-cuda13x", "cupy-cuda12x", "triton")
MEND = "bring the same to all hosts"


def check(comm: Communicator, what: str, mine: Callable[[], str]) -> None:
    """Raises UserError, on all ranks, where the first rank of a host differs from rank 0.

    what   in words
    mine   a short description; called only where there are several hosts
    """
    if len(comm.host_sizes) > 1:
        _compare(comm, f"{what} is not the same on all hosts", comm.host, "" if comm.local_rank else mine(), MEND)


def check_ranks(comm: Communicator, what: str, mine: str, mend: str) -> None:
    """Raises UserError, on all ranks, where a rank's short description differs from rank 0's."""
    _compare(comm, f"{what} is not the same on all ranks", f"rank {comm.rank} ({comm.host})", mine, mend)


def _compare(comm: Communicator, fault: str, place: str, mine: str, mend: str) -> None:
    """Empty descriptions are not compared."""
    gathered = comm.gather_bytes(json.dumps([place, mine]).encode())
    verdict = None
    if gathered is not None:
        (first, ours), *others = [json.loads(one) for one in gathered]
        other, theirs = next(((place, has) for place, has in others if has not in ("", ours)), ("", ""))
        ours, theirs = _only(ours, theirs), _only(theirs, ours)
        verdict = f"{fault}: {ours} on {first}, {theirs} on {other}; {mend}" if other else ""
    if text := comm.bcast_bytes(None if verdict is None else verdict.encode()).decode():
        raise UserError(text)


def _only(ours: str, theirs: str) -> str:
    """The comma-separated parts that the other one lacks."""
    return ", ".join(part for part in ours.split(", ") if part not in theirs.split(", ")) or "no more"


def check_software(comm: Communicator) -> None:
    """Raises UserError, on all ranks, where hosts have other versions of libraries or of castile."""
    check(comm, "what is installed", software)


def check_model(comm: Communicator, model: Model, graph: Graph) -> None:
    """Raises UserError, on all ranks, where hosts build another graph, or have another file to build it from."""
    check(comm, f"model {model.name}", lambda: f"{_short(graph.fingerprint.encode())}, {_file(model.file)}")


def check_data(comm: Communicator, dataset: Dataset) -> None:
    """Raises UserError, on all ranks, where hosts read other samples, as far as some of them show."""
    check(comm, f"data set {dataset.name}", lambda: samples(dataset))


def check_file(comm: Communicator, option: str, path: str) -> None:
    """Raises UserError, on all ranks, where hosts have another file at that path; "" is none."""
    if path:
        check(comm, f"{option} {path}", lambda: _file(path))


def software() -> str:
    """Versions of numerical libraries, and a hash of castile's sources."""
    found = [f"castile {castile.__version__} (sources {_sources()})", f"Python {platform.python_version()}"]
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            found.append(f"{package} {version(package)}")
    return ", ".join(found)


def samples(dataset: Dataset) -> str:
    """The number of samples, and a hash of some of them; of sequential samples, of the first."""
    parts = [_some(dataset.train, dataset.shuffled), _some(dataset.held_out, True)]
    held_out = f" and {dataset.num_held_out} held out"
    return f"{dataset.num_samples} samples{held_out if dataset.num_held_out else ''} ({_short(*parts)})"


def _file(path: str) -> str:
    """The size of a file, and a hash of it."""
    found = xxhash.xxh3_64()
    with open(path, "rb") as file:
        while piece := file.read(2**24):
            found.update(piece)
    return f"{Path(path).stat().st_size} bytes ({found.hexdigest()[:8]})"


def _some(samples: Samples, any_order: bool) -> bytes:
    count = min(len(samples), NUM_SAMPLES if any_order else 1)
    numbers = np.linspace(0, len(samples) - 1, count).astype(np.int64) if any_order else np.arange(count)
    taken = samples.take(dict.fromkeys(samples.shapes, numbers)) if count else {}
    parts = ((f"{name} {rows.dtype} {rows.shape}".encode(), rows.tobytes()) for name, rows in sorted(taken.items()))
    return b"".join(head + data for head, data in parts)


def _sources() -> str:
    folders = (Path(str(resources.files(f"castile.{name}"))) for name in ("kernels", "runtime", "planner", "launch"))
    paths = (path for folder in folders for path in sorted(folder.rglob("*.py")))
    return _short(*(path.name.encode() + path.read_bytes() for path in paths))


def _short(*parts: bytes) -> str:
    found = xxhash.xxh3_64()
    for part in parts:
        found.update(part)
    return found.hexdigest()[:8]
