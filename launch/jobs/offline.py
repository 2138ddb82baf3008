"""What commands need that plan or simulate a model on a machine, without running anything there.

It does not know how plans are found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from castile.launch import models
from castile.launch.here import absent_gpus, compiling, gpus, hosts
from castile.launch.jobs import checks, jobs, profile_store
from castile.launch.models import DTYPES, Model
from castile.launch.processes import ranks
from castile.launch.processes.ranks import UserError, this_world
from castile.planner.cost import CostModel
from castile.planner.costs.database import Database
from castile.planner.costs.snapshot import Snapshot
from castile.planner.evaluation.evaluator import FOLDED_FROM
from castile.planner.lower import Lowering
from castile.planner.search import Evaluator
from castile.planner.searching.rewriting import choose_rewrites
from castile.planner.strategy import Strategy
from castile.runtime.machine import CPU, Machine, local, parse


@dataclass(frozen=True)
class Desk:
    """A model and a machine to plan for. The evaluator holds graph, lowering and costs, with those of the snapshot, if
    any.

    optimizer, clip   in the user's words, and the norm to which gradients are scaled; "" and None for those of the
                      model's recipe
    """

    model: Model
    machine: Machine
    evaluator: Evaluator
    snapshot: Snapshot | None = None
    optimizer: str = ""
    clip: float | None = None

    def rewritten(self) -> tuple[Desk, float]:
        """The same with the rewrites that save most work, as steps on GPUs here have them, and the share that they
        save; unchanged where the user chose rewrites.

        On cores a product takes the same time whatever stands beside it: no rewrite was seen to save anything.
        """
        if self.model.rewrite is not None or all(processor.kind == CPU for processor in self.machine.processors):
            return self, 0.0
        names, lowering, saved = choose_rewrites(self.evaluator.lowering)
        if not names:
            return self, 0.0
        evaluator = Evaluator(lowering, CostModel(self.machine, self.snapshot), self.snapshot)
        return replace(self, model=self.model.rewritten(names), evaluator=evaluator), saved

    def measured(self) -> Desk:
        """The same with measured costs of this host where the machine is `local`; call it once all of the input is
        checked.

        Where several ranks run, the others are in `is_silent` meanwhile.
        """
        machine, known = _measured(self.machine), self.evaluator.lowering
        if machine == self.machine:
            return self
        evaluator = Evaluator(known.remade(machine), CostModel(machine, self.snapshot), self.snapshot)
        return replace(self, machine=machine, evaluator=evaluator)


def find_machine(text: str) -> Machine:
    """The machine that the user names; every rank calls it.

    `local` has a processor for each rank; for a single rank one for each core or, if there are any, each GPU. Figures
    of cores are assumed until they are measured.
    """
    comm = this_world().communicator
    if comm is not None:
        return jobs.find_machine(text, comm, "float32")
    if gpus.is_meant(text, "float32"):
        gpus.use(0)
        meant = local(gpus.count()) if text == "local" else parse(text)
        return gpus.named(meant, gpus.Placing(num_near=hosts.each(meant)))
    return parse(text)


def machine_of(text: str, plan: Strategy | None, path: str) -> Machine:
    """The machine that the user names, or else that of the plan's file, or this host; every rank calls it.

    Raises UserError where the file's machine does not exist here.
    """
    if text or plan is None or not plan.machine_name:
        return find_machine(text or "local")
    try:
        return find_machine(plan.machine_name)
    except ValueError as error:
        raise UserError(f"plan {path} was made for {plan.machine_name}: {error}; name it with --machine") from error


def is_silent(machine: Machine | None) -> bool:
    """Whether this rank leaves everything to rank 0; it has then taken part in measuring the machine, if there is one.
    """
    if machine is not None and ranks.silent():
        _measured(machine)
    return ranks.silent()


def _measured(machine: Machine) -> Machine:
    return machine if gpus.is_on(machine) else hosts.measured(machine, this_world().communicator)


def desk(
    model: str,
    machine: Machine,
    batch: int | None = None,
    profile: str = "",
    dtypes: Sequence[str] = DTYPES,
    plan: Strategy | None = None,
    mode: str = "train",
    path: str = "",
    optimizer: str = "",
    clip: float | None = None,
) -> Desk:
    """The model that the user names on a machine, with costs from a profile database ("": from the machine's figures).

    batch    samples a step, None for the model's own number
    dtypes   to compute with: the first, or the one that gives the plan's graph
    plan     decides that, and rewrites that were left open
    mode     of lowering: "train" for training steps, "forward" for forward passes
    path     of the plan's file that names the model, "" where the user does
    optimizer, clip   as in `Desk`; by default those of the plan
    Raises ValueError or UserError in one sentence for a user's mistake.
    """
    compiling.watch()
    graph = plan.graph if plan is not None else ""
    try:
        named = models.parse(model)
        named = named.as_planned(plan.model) if plan is not None else named
        graphs = (named.graph(batch or named.recipe.batch, dtype) for dtype in dtypes)
        first = next(graphs)
    except ValueError as error:
        raise UserError(f"plan {path}: {error}" if path else str(error)) from error
    found = first if graph in ("", first.fingerprint) else next((g for g in graphs if g.fingerprint == graph), first)
    if plan is not None:
        optimizer, clip = optimizer or plan.optimizer, plan.clip if clip is None else clip
    updates = replace(jobs.recipe_updates(named.recipe, optimizer, clip), served=mode == "forward")
    if mode == "forward":
        checks.predicts(named.name, found)
    lowering = Lowering(found, machine, updates, mode)
    checks.trains(lowering)
    checks.attained(machine, found)
    snapshot = known(profile, machine) if profile else None
    evaluator = Evaluator(lowering, CostModel(machine, snapshot), snapshot)
    return Desk(named, machine, evaluator, snapshot, optimizer, clip)


def check_plan(plan: Strategy, path: str, model: str, desk: Desk) -> None:
    """Raises UserError in one sentence, with the file's name, where its plan is not for this model on this machine, or
    has too many transfers to simulate.
    """
    lowering = desk.evaluator.lowering
    graph = lowering.graph
    if unlike := plan.unlike(graph, model):
        raise UserError(f"plan {path} {unlike}: give the same model, settings and --batch, or plan again")
    try:
        lowering.check(plan)
        if desk.machine.num_procs >= FOLDED_FROM:
            desk.evaluator.evaluate(plan)
    except ValueError as error:
        raise UserError(f"plan {path}: {error}") from error


def known(profile: str, machine: Machine) -> Snapshot:
    """The measurements in a profile database of this host with a rank at work for each processor of the machine; for
    GPUs that are not here, the estimates.

    Raises UserError where there is no such file, and where it has nothing on that.
    """
    if not Path(profile).is_file():
        raise UserError(f"profile database {profile}: no such file; `castile train` and `castile profile` make one")
    database = Database(profile)
    if absent_gpus.is_known(machine):
        kind = absent_gpus.kind_of(machine)
        found = database.snapshot(absent_gpus.environment(kind, profile_store.kernels_hash()))
        if not found.rows:
            raise UserError(
                f"profile database {profile}: nothing in it was told of kernels compiled for {kind}, these and by this "
                f"Triton: castile profile MODEL --machine {machine.name} --profile {profile}, or leave --profile out"
            )
        return found
    environment = profile_store.environment(machine)
    if machine.num_procs > 1 and environment.threads == 0 and not gpus.is_on(machine):
        # Ranks that share a host have one thread each, unless the user says otherwise.
        environment = msgspec.structs.replace(environment, threads=1)
    found = database.snapshot(environment)
    if not found.rows:
        others = database.num_others(environment)
        raise UserError(
            f"profile database {profile}: nothing in it was measured on this host with {machine.num_procs} ranks and "
            f"these kernels ({others} other measurements): train or profile here first, or leave --profile out"
        )
    return found
