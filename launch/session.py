"""Sessions: what a command that runs plans needs: the job's ranks, their machine, the model, what was learned.

It does not know what is done with them.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import msgspec
import numpy as np

from castile.launch import models, probe
from castile.launch.execution import Execution, Prepared, prepare
from castile.launch.models import Model
from castile.launch.ranks import UserError, this_world
from castile.planner import snapshot as snapshots
from castile.planner import strategy as strategies
from castile.planner.cost import CostModel
from castile.planner.database import Database
from castile.planner.graph import Graph
from castile.planner.learn import learn
from castile.planner.lower import Lowering
from castile.planner.op import find
from castile.planner.snapshot import Environment, Snapshot
from castile.planner.strategy import Strategy
from castile.runtime import machine as machines
from castile.runtime.backends.base import State
from castile.runtime.comm.base import Communicator
from castile.runtime.comm.local import LocalWorld
from castile.runtime.machine import Machine
from castile.runtime.runner import whole_step
from castile.runtime.timeline import Timeline


@dataclass
class Session:
    """One job: its communicator, machine, model and graph, how plans of it are lowered, and what has been measured.

    Everything that decides comes from rank 0 and is the same on all ranks. procs: the processors of this rank.
    """

    comm: Communicator
    machine: Machine
    model: Model
    graph: Graph
    lowering: Lowering
    snapshot: Snapshot
    database: Database | None
    procs: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.procs = tuple(p for p in range(self.machine.num_procs) if p == self.comm.rank)

    @property
    def leads(self) -> bool:
        """Whether this is the rank that decides and speaks."""
        return self.comm.rank == 0

    @property
    def cost(self) -> CostModel:
        """The cost model with all that has been learned so far."""
        return CostModel(self.machine, self.snapshot)

    def agree(self, make: Callable[[], bytes]) -> bytes:
        """What rank 0 makes, on every rank."""
        return self.comm.bcast_bytes(make() if self.leads else None)

    def agreed_plan(self, make: Callable[[], Strategy]) -> Strategy:
        """The plan that rank 0 makes or reads, on every rank."""
        return strategies.decode(self.agree(lambda: strategies.encode(make())))

    def prepare(self, plan: Strategy, lowering: Lowering | None = None) -> Prepared:
        """Lower, simulate and pack a plan; raises RuntimeError where the ranks do not come to the same tasks."""
        prepared = prepare(lowering or self.lowering, plan, self.cost)
        digests = self.comm.gather_bytes(prepared.tasks.digest.encode())
        if digests is not None and len(set(digests)) > 1:
            raise RuntimeError(f"the ranks lowered one plan to different tasks: {[d.decode() for d in digests]}")
        return prepared

    def execute(self, prepared: Prepared, seed: int, state: State | None = None) -> Execution:
        """This rank's part of a prepared plan, its parameters filled unless they came with `state`."""
        made = Execution(self.graph, prepared, self.comm, self.procs, {} if state is None else state)
        if state is None:
            made.initialise(seed)
        return made

    def gather(self, timeline: Timeline) -> Timeline | None:
        """One timeline of all ranks' parts of a step, on rank 0."""
        rows = np.stack([timeline.task, timeline.start, timeline.end])
        parts = self.comm.gather_bytes(rows.astype(np.int64).tobytes())
        if parts is None:
            return None
        return whole_step([Timeline(*np.frombuffer(part, np.int64).reshape(3, -1)) for part in parts])

    def learn(self, prepared: Prepared, steps: Sequence[Timeline]) -> None:
        """Learn from measured steps on rank 0; every rank gets the new snapshot."""
        made = self.agree(lambda: snapshots.to_json(learn(self.snapshot, prepared.tasks, list(steps))))
        self.snapshot = snapshots.from_json(made)

    def keep(self) -> None:
        """Write what was learned to the profile database."""
        if self.database is not None and self.leads:
            self.database.add(self.snapshot)


def start(model: str, machine: str, batch: int | None, profile: str) -> Session:
    """Begin a session. Raises ValueError or UserError in one sentence for a user's mistake."""
    comm = communicator()
    named = models.parse(model)
    graph = named.graph(batch or named.recipe.batch)
    found = find_machine(machine, comm)
    if found.num_procs > comm.size:
        raise UserError(
            f"{found.name} has {found.num_procs} processors but {comm.size} ranks run: start it with "
            f"`castile launch -n {found.num_procs} ...`"
        )
    lowering = Lowering(graph, found, find("sgd")(momentum=named.recipe.momentum))
    environment = environment_of(comm)
    database = Database(profile) if profile and comm.rank == 0 else None
    known = comm.bcast_bytes(snapshots.to_json(database.snapshot(environment) if database else Snapshot(environment))
                             if comm.rank == 0 else None)  # fmt: skip
    return Session(comm, found, named, graph, lowering, snapshots.from_json(known), database)


def communicator() -> Communicator:
    """The job's communicator; a rank alone talks to itself."""
    return this_world().communicator or LocalWorld(1).communicators[0]


def find_machine(text: str, comm: Communicator) -> Machine:
    """The machine that the user names, as rank 0 sees it; plain `local` has a processor for each rank."""
    text = f"local:procs={comm.size}" if text == "local" else text
    found = probe.find_machine(text, comm if comm.size > 1 else None)
    return machines.from_json(comm.bcast_bytes(machines.to_json(found) if comm.rank == 0 else None))


def environment_of(comm: Communicator) -> Environment:
    """What measurements of this job hold for; rank 0's on every rank."""
    mine = probe.environment(_kernels(), comm.size)
    told = comm.bcast_bytes(msgspec.json.encode(mine) if comm.rank == 0 else None)
    return msgspec.json.decode(told, type=Environment)


@cache
def _kernels() -> str:
    """A hash of the sources of all kernels."""
    from castile.kernels.table import Table

    table = Table("numpy")
    return hashlib.sha256("".join(table.source_hash(name) for name in table.names()).encode()).hexdigest()[:16]


def default_profile() -> str:
    """Where measurements are kept unless the user says otherwise."""
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return str(Path(base) / "castile" / "profile.db")
