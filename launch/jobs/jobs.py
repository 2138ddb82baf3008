"""Jobs: what a command needs to run plans: ranks, the machine they make, the model, and what was learned.

It does not know what is done with them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from castile.launch import data, models
from castile.launch.data import Dataset
from castile.launch.here import compiling, consistency, gpus, hosts
from castile.launch.here.leader import communicator, from_leader
from castile.launch.jobs import checks, input_matching, kernel_choices, profile_store, sample_checks
from castile.launch.jobs.execution import Execution, Prepared, prepare
from castile.launch.models import Model, Recipe
from castile.launch.processes.ranks import UserError
from castile.launch.typed import optimizers
from castile.planner import strategy as strategies
from castile.planner.cost import CostModel
from castile.planner.costs import snapshot as snapshots
from castile.planner.costs.database import Database, Way
from castile.planner.costs.learn import learn
from castile.planner.costs.snapshot import Snapshot
from castile.planner.families.updates import Updates
from castile.planner.graph import Graph
from castile.planner.lower import Lowering
from castile.planner.searching.rewriting import choose_rewrites
from castile.planner.simulation import meetings
from castile.planner.simulation.meetings import MeasuredSteps
from castile.planner.step.recompute import Recomputation
from castile.planner.strategy import Strategy
from castile.runtime import machine as machines
from castile.runtime.backends.base import Arenas, Backend, Look, State
from castile.runtime.comm.base import Communicator
from castile.runtime.comm.processors import rank_of
from castile.runtime.machine import Machine, parse
from castile.runtime.runner import whole_step
from castile.runtime.timeline import Timeline


@dataclass
class Job:
    """A job: its communicator, machine, model, graph, lowering, and measurements.

    Everything that decides what is run is rank 0's and the same on all ranks.

    ways     the choices for kernel calls that were timed here, of which the fastest are used
    travel   how arrays go from GPU to GPU, in words; "" where they do not
    procs    the processors of this rank
    """

    comm: Communicator
    machine: Machine
    model: Model
    graph: Graph
    lowering: Lowering
    snapshot: Snapshot
    database: Database | None
    ways: tuple[Way, ...] = ()
    travel: str = ""
    procs: tuple[int, ...] = field(init=False)
    # One for each time that steps were measured, on rank 0; and the snapshot before all of them.
    _measured_steps: list[MeasuredSteps] = field(default_factory=list, init=False)
    _known: Snapshot = field(init=False)
    _cost: CostModel | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._known = self.snapshot
        ranks = rank_of(self.machine.num_procs, self.comm.size)
        self.procs = tuple(p for p, rank in enumerate(ranks) if rank == self.comm.rank)

    @property
    def leads(self) -> bool:
        """Whether this is the rank that decides and reports."""
        return self.comm.rank == 0

    @property
    def backend(self) -> str:
        """The backend that runs the processors' tasks."""
        return "cuda" if gpus.is_on(self.machine) else "numpy"

    def dataset(self, text: str, seed: int, needed: Collection[str] | None = None) -> Dataset:
        """The data set that the user named, "" for the model's own; its samples match the graph's inputs.

        needed   the inputs that they must have where nothing is trained, and where they may be fewer than a batch
        Raises ValueError or UserError in one sentence where they do not match.
        """
        found = data.load(text or self.model.recipe.data, seed, sample_checks.taken(self.graph))
        input_matching.check(self.model, self.graph, found, needed)
        if needed is None:
            if found.fault:
                raise UserError(found.fault)
            found.num_steps(self.graph.batch)
        sample_checks.check(self.graph, found, trained=needed is None)
        return found

    @cached_property
    def evaluation(self) -> Graph:
        """The model's graph for evaluation, over the parameters of training."""
        return self.model.graph(self.graph.batch, self.graph.dtype, training=False)

    @property
    def cost(self) -> CostModel:
        """The cost model with all that has been learned so far: the same object until more is."""
        if self._cost is None or self._cost.machine is not self.machine or self._cost.snapshot is not self.snapshot:
            self._cost = CostModel(self.machine, self.snapshot)
        return self._cost

    def measure(self) -> None:
        """Measure the figures of `local` on these hosts, if they never were.

        All ranks call it when all input has been checked, and before any cost is computed.
        """
        if gpus.is_on(self.machine):
            return
        found, known = hosts.measured(self.machine, self.comm if self.comm.size > 1 else None), self.lowering
        self.machine = machines.from_json(self.agree(lambda: machines.to_json(found)))
        self.lowering = known.remade(self.machine)

    def agree(self, make: Callable[[], bytes]) -> bytes:
        """The bytes that rank 0 makes, on every rank; all ranks call it."""
        return from_leader(self.comm, make)

    def agreed_plan(self, make: Callable[[], Strategy]) -> Strategy:
        """The plan that rank 0 makes or reads, on every rank."""
        return strategies.decode(self.agree(lambda: strategies.encode(make())))

    def plan_of(self, path: str) -> Strategy:
        """The plan of a file, on every rank. Raises UserError where it does not fit graph and machine."""
        plan = self.agreed_plan(lambda: strategies.read(path))
        if plan.num_procs != self.machine.num_procs:
            here = f"{self.machine.name} has {self.machine.num_procs}" if gpus.is_virtual(self.machine) else ""
            raise UserError(
                f"plan {path}: it is for {_processors(plan.num_procs)}, but {here or _run(self.comm.size)}: start as "
                f"many with `castile launch -n {plan.num_procs} ...`, or plan again"
            )
        if unlike := plan.unlike(self.graph, self.model.text):
            same = "give the same model, settings, --batch and --dtype, or plan again"
            raise UserError(f"plan {path} {unlike}, in {self.graph.dtype}: {same}")
        try:
            self.lowering.check(plan)
        except ValueError as error:
            raise UserError(f"plan {path}: {error}") from error
        return plan

    def prepare(self, plan: Strategy, lowering: Lowering | None = None) -> Prepared:
        """Lower, simulate and pack a plan; raises RuntimeError where the ranks' results differ."""
        prepared = prepare(lowering or self.lowering, plan, self.cost)
        digests = self.comm.gather_bytes(prepared.digest.encode())
        if digests is not None and len(set(digests)) > 1:
            names = ", ".join(digest.decode() for digest in digests)
            raise RuntimeError(f"the ranks came to different tasks, or another order of them, for one plan: {names}")
        return prepared

    def execute(
        self, prepared: Prepared, seed: int, state: State | None = None, graph: Graph | None = None,
        lent: Arenas | None = None, look: Look | None = None,
    ) -> Execution:  # fmt: skip
        """This rank's part of a prepared plan of a graph, its parameters initialised unless they came with `state`.

        look   called with each task that has run on a CPU, as `watched` does
        """
        held, backend = {} if state is None else state, self.backend if look is None else _watched(look)
        made = Execution(graph or self.graph, prepared, self.comm, self.procs, held, seed, backend, lent=lent)
        if state is None:
            made.initialise(seed)
        return made

    def gather(self, timeline: Timeline) -> Timeline | None:
        """One timeline of all ranks' parts of a step, on rank 0."""
        numbers = np.concatenate([timeline.task, timeline.start, timeline.end, [timeline.delayed]])
        parts = self.comm.gather_bytes(numbers.astype(np.int64).tobytes())
        if parts is None:
            return None
        each = []
        for part in parts:
            numbers = np.frombuffer(part, np.int64)
            task, start, end = numbers[:-1].reshape(3, -1)
            each.append(Timeline(task, start, end, int(numbers[-1])))
        return whole_step(each)

    def learn(self, prepared: Prepared, steps: Sequence[Timeline]) -> None:
        """Learn from measured steps on rank 0; every rank gets the new snapshot."""

        def learned() -> Snapshot:
            spans = learn(self.snapshot, prepared.tasks, list(steps))
            measured = meetings.measured_steps(prepared.tasks, steps)
            self._measured_steps += [measured] if measured is not None else []
            return meetings.learn(spans, self._known, self.machine, self._measured_steps)

        self.snapshot = snapshots.from_json(self.agree(lambda: snapshots.to_json(learned())))

    def keep(self) -> None:
        """Store what was learned in the profile database."""
        if self.database is not None and self.leads:
            self.database.add(self.snapshot)


def _watched(look: Look) -> type[Backend]:
    # commands that run nothing do without kernels
    from castile.runtime.backends.numpy import watched

    return watched(look)


def start(
    model: str,
    machine: str,
    batch: int | None,
    profile: str | None,
    updates: Updates | None = None,
    microbatches: int = 1,
    recompute: str = "",
    dataset: str = "",
    seed: int = 0,
    dtype: str = "float32",
    plan: str = "",
) -> Job:
    """Begin a job, nothing measured yet; all ranks call it.

    profile         the database to learn from and into, "" for none; None for the user's own, if it can be had
    updates         by default those of the model's recipe
    recompute       which results are not kept for gradients, as `Recomputation.named` has it
    dataset, seed   the data that decide settings which were left open
    plan            the file that decides rewrites which were left open, "" for none: on GPUs they are chosen then
    Raises ValueError or UserError in one sentence for a user's mistake, such as hosts that are not alike.
    """
    comm = communicator()
    consistency.check_software(comm)
    if comm.rank == 0:
        compiling.watch()
    named = _named_model(comm, model, plan, dataset, seed)
    graph = named.graph(named.recipe.batch if batch is None else batch, dtype)
    consistency.check_model(comm, named, graph)
    on = find_machine(machine, comm, dtype)
    _check_runs_here(on, comm.size)
    updates = updates or recipe_updates(named.recipe)
    built = Lowering(graph, on, updates)
    checks.trains(built)
    if not plan:
        named = _rewritten(comm, named, built)
        graph = named.graph(graph.batch, dtype)
    again = checks.recomputed(recompute, Recomputation(graph, updates))
    lowering = Lowering(graph, on, updates, "train", microbatches, again)
    if gpus.is_virtual(on):
        gpus.split(on.num_procs)
    comm, travel = _joined(comm, on)
    database = profile_store.database(profile) if profile != "" and comm.rank == 0 else None
    known, timed = profile_store.measured_before(comm, database, profile_store.environment_of(comm, on))
    kernel_choices.apply_choices(timed)
    return Job(comm, on, named, graph, lowering, known, database, timed, travel)


def _named_model(comm: Communicator, model: str, plan: str, dataset: str, seed: int) -> Model:
    """The model of that name, with what was left open as the plan's file has it, and as the data do."""
    named = models.parse(model)
    if plan:
        named = named.as_planned(from_leader(comm, lambda: strategies.read(plan).model.encode()).decode())
    return fitted(named, dataset, seed)


def _rewritten(comm: Communicator, named: Model, built: Lowering) -> Model:
    """The model with the rewrites that compute it with least work on GPUs, where rewrites were left open."""
    if named.rewrite is not None or not gpus.is_on(built.machine):
        return named
    names = from_leader(comm, lambda: choose_rewrites(built)[0].encode()).decode()
    return named.rewritten(names) if names else named


def fitted(model: Model, dataset: str, seed: int) -> Model:
    """The model with those settings from its data set that the user left open.

    sizes: rows of each category's table; numbers: how many numbers a sample has
    """
    if all(name in model.settings or not model.takes(name) for name in ("sizes", "numbers")):
        return model
    found = data.load(dataset or model.recipe.data, seed)
    known: dict[str, object] = {"sizes": "+".join(map(str, found.sizes.values()))} if found.sizes else {}
    known |= {"numbers": found.shapes["numbers"][0]} if "numbers" in found.shapes else {}
    wanted = {name: value for name, value in known.items() if model.takes(name)}
    return replace(model, settings={**wanted, **model.settings})


def recipe_updates(recipe: Recipe, optimizer: str = "", clip: float | None = None) -> Updates:
    """What a recipe says of optimizer, clipping and weight decay, but for what is said here; a clip of 0 is none."""
    norm = recipe.clip if clip is None else clip
    return optimizers.updates(optimizer or recipe.updated_by, norm, recipe.undecayed)


def _joined(comm: Communicator, on: Machine) -> tuple[Communicator, str]:
    """The communicator for processors of that kind, and how arrays travel between them, as in `Job.travel`."""
    return gpus.joined(comm) if gpus.is_on(on) and comm.size > 1 else (comm, "")


def _check_runs_here(machine: Machine, num_ranks: int) -> None:
    here = gpus.KIND if gpus.is_on(machine) and gpus.count() else machines.CPU
    foreign = next((p.kind for p in machine.processors if p.kind != here), None)
    if foreign:
        raise UserError(
            f"--machine {machine.name}: its processors are of kind {foreign!r}, and steps run on this host's {here}: "
            "leave --machine out here, or let `castile plan` think about that machine"
        )
    if gpus.is_virtual(machine) and num_ranks > 1:
        raise UserError(
            f"--machine {machine.name}: its processors are parts of one GPU and belong to one rank, but "
            f"{_run(num_ranks)}: start one, or leave --machine out"
        )
    if machine.num_procs != num_ranks and not gpus.is_virtual(machine):
        raise UserError(
            f"--machine {machine.name}: it has {_processors(machine.num_procs)}, but {_run(num_ranks)}: "
            f"start as many with `castile launch -n {machine.num_procs} ...`, or leave --machine out"
        )


def _run(num_ranks: int) -> str:
    return "1 rank runs" if num_ranks == 1 else f"{num_ranks} ranks run"


def _processors(count: int) -> str:
    return "1 processor" if count == 1 else f"{count} processors"


def find_machine(text: str, comm: Communicator, dtype: str) -> Machine:
    """The machine that the user names, as rank 0 sees it; plain `local` has a processor for each rank, on as many hosts
    as there are. Of cores its figures are assumed ones until `Job.measure`.

    Where it is one of GPUs, this rank's is in use from here on. Raises UserError where one rank has one and another
    has none or one of another kind.
    """
    named = machines.from_json(from_leader(comm, lambda: machines.to_json(_named(text, comm.host_sizes))))
    gpus.check(comm, text, named, dtype)
    is_meant = gpus.is_meant(text, dtype)
    if is_meant or (gpus.is_on(named) and gpus.count()):
        gpus.use(comm.local_rank)
        gpus.check_kind(comm)
    elif comm.rank == 0 and named.name.startswith("local") and (why := gpus.unused()):
        print(f"castile: the GPUs of this host are not used: {why}", file=sys.stderr, flush=True)
    if not is_meant:
        return named
    # What one rank measures would be half of it while another that shares its GPU does, too.
    placed = gpus.placing(comm)
    return machines.from_json(from_leader(comm, lambda: machines.to_json(gpus.named(named, placed))))


def _named(text: str, sizes: Sequence[int]) -> Machine:
    """The machine of a name; `local` as these hosts, whatever the name says of them, where they have as many ranks."""
    named = parse(text) if text != "local" else None
    is_here = named is None or (text.startswith("local:") and named.num_procs == sum(sizes))
    return machines.hosts(sizes) if named is None or is_here else named
