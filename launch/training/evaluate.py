"""Evaluation: a second graph uses the parameters where training has them, under the same plan, on any samples.

In that graph dropout is off and running statistics stand for those of the batch. It does not know how the model was
trained, nor what becomes of what it says.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from castile.launch.data import Dataset, Samples, full_batch
from castile.launch.jobs.execution import Execution, Prepared, feed_from
from castile.launch.jobs.jobs import Job
from castile.launch.reports.progress import Advance
from castile.launch.training import judging
from castile.launch.training.judging import HeldOut, Judging
from castile.planner.graph import Graph, Node
from castile.planner.known.pipelines import divisors
from castile.planner.lower import Lowering
from castile.planner.op import Tensor
from castile.planner.strategy import Config, Strategy, check_config
from castile.runtime import memory

Arrays = dict[str, np.ndarray]


def truths(job: Job, samples: Samples) -> dict[str, str]:
    """The input with which each of the model's outputs is compared on these samples, as `judging.truths` finds them.

    None where the model names no output to judge, or there is nothing to compare the first with.
    """
    return judging.truths(job.evaluation, samples.shapes) if len(samples) else {}


@dataclass(frozen=True, eq=False)
class Passing:
    """A forward pass over so many samples as its graph has."""

    graph: Graph
    prepared: Prepared


def passing(job: Job, plan: Strategy, trained: Prepared) -> Passing:
    """What a plan that the model is trained with is in a forward pass over held-out samples; all ranks call it.

    It goes over a batch, or over the largest equal piece of one for which there is memory: steps lend it what they use
    while they run. Raises ValueError where there is for none.
    """
    refused, room = list[ValueError](), job.machine.capacity - trained.packing.peak_bytes
    for graph in _pieces(job):
        try:
            prepared = job.prepare(adapted(plan, job.lowering, graph), forward(job, graph))
        except ValueError as error:
            refused.append(error)
            continue
        if (beside(trained, prepared) <= room).all():
            return Passing(graph, prepared)
        refused.append(ValueError("held-out samples take more memory than steps leave: give more to accumulate"))
    raise refused[-1]


def _pieces(job: Job) -> Iterator[Graph]:
    """The graph for evaluation, of whole batches, and of pieces as far as the model comes in these."""
    yield job.evaluation
    for number in divisors(job.graph.batch)[1:]:
        with suppress(ValueError):
            yield job.model.graph(job.graph.batch // number, job.graph.dtype, training=False)


def beside(trained: Prepared, prepared: Prepared) -> np.ndarray:
    """int64[P]: at most so many bytes more a forward pass takes than the steps that lend it their arenas."""
    lent, arena = (p.packing.peak_bytes - memory.lasting(p.tasks) for p in (trained, prepared))
    lasting = memory.lasting(prepared.tasks, but="carried")
    return np.where(arena > lent, arena, 0) + np.where(arena + lasting > lent, lasting, 0)


def held_out(
    job: Job, passing: Callable[[], Passing], dataset: Dataset, trained: Execution,
    advance: Advance = lambda *_: None, is_over: Callable[[], bool] = lambda: False,
) -> HeldOut | None:  # fmt: skip
    """Evaluate on all held-out samples; rank 0 gets the figures. None where there is nothing to judge (`truths`).

    passing   what `passing` gives for the plan that the model is trained with
    trained   what runs its steps, none of which is under way
    advance   is told, on all ranks, how many of how many samples are done
    is_over   whether to end before the next batch, asked on all ranks; figures are then of those before, or None
    """
    labels = truths(job, dataset.held_out)
    if not labels:
        return None
    way = passing()
    # What a pass is given and makes lies where the next step writes.
    execution = job.execute(way.prepared, 0, {**trained.state}, way.graph, trained.runner.arenas)
    batches = says(execution, dataset.held_out, set(labels.values()), advance, is_over)
    return judge(execution.graph, labels, batches, dataset.num_held_out)


def judge(
    graph: Graph, labels: Mapping[str, str], batches: Iterable[tuple[Arrays, Arrays]], num_samples: int,
    tell: Callable[[np.ndarray], None] = lambda losses: None,
) -> HeldOut | None:  # fmt: skip
    """What outputs are worth beside their labels, given batch by batch; None where there are no batches.

    tell   is given the losses of the first output's predictions in each batch
    """
    each = {output: Judging(graph, output, name) for output, name in labels.items()}
    for outputs, given in batches:
        losses = [one.add(outputs[output], given[labels[output]]) for output, one in each.items()]
        tell(losses[0])
    first, *others = [one.figures(num_samples) for one in each.values()]
    names = list(labels)[1:]
    return first and replace(first, others={n: one for n, one in zip(names, others, strict=True) if one is not None})


def forward(job: Job, graph: Graph, served: bool = False) -> Lowering:
    """How plans of a graph for evaluation are lowered: over the parameters of training, or parameters that are served
    alone, which lie as they are used.
    """
    return Lowering(graph, job.machine, replace(job.lowering.updates, served=served), mode="forward")


def adapted(plan: Strategy, trained: Lowering, graph: Graph) -> Strategy:
    """The plan for a graph that uses a training plan's parameters where they lie.

    Nodes have the Config that they have there; those that are not there, or where it is not legal, are whole on
    processor 0.
    """
    known = trained.configs(plan)
    configs = {name: known.get(name, Config()) for name in graph.nodes}
    configs = {name: config if _legal(graph.nodes[name], config) else Config() for name, config in configs.items()}
    homes = {name: config for name, config in known.items() if name.endswith("/update")}
    return Strategy(configs | homes, num_procs=plan.num_procs)


def _legal(node: Node, config: Config) -> bool:
    try:
        check_config(node, config)
    except ValueError:
        return False
    return True


def says(
    execution: Execution, samples: Samples, besides: Collection[str] = (), advance: Advance = lambda *_: None,
    is_over: Callable[[], bool] = lambda: False,
) -> Iterator[tuple[Arrays, Arrays]]:  # fmt: skip
    """What a forward pass says of each batch of samples: its outputs, which hold until the next, and those inputs
    besides. Nothing on ranks that do not hold them; all ranks go through all of it.

    advance   is told, on all ranks, how many of how many samples are done
    is_over   whether to end before the next batch, asked on all ranks
    """
    graph, total = execution.graph, len(samples)
    fed = {name for name, _ in execution.inputs}
    for begin in range(0, total, graph.batch):
        if is_over():
            break
        # labels are looked at where outputs are
        wanted = fed.union(besides) if execution.comm.rank == 0 else fed
        arrays = full_batch(samples, begin, graph.batch, wanted)
        execution.feed(feed_from(arrays))
        execution.run()
        count = min(graph.batch, total - begin)
        advance("", begin + count, total)
        outputs = {name: execution.output(name) for name in graph.outputs}
        if held := {name: array[:count] for name, array in outputs.items() if array is not None}:
            yield held, {name: _as_taken(graph.tensors[name], arrays[name][:count]) for name in besides}


def _as_taken(tensor: Tensor, rows: np.ndarray) -> np.ndarray:
    """An input's rows as numbers of the kind that the graph takes: 3 may be a class, or how much there is."""
    is_class = np.dtype(tensor.dtype).kind in "iu"
    return rows if is_class or rows.dtype.kind == "f" else rows.astype(np.float64)


def needed(graph: Graph) -> set[str]:
    """The inputs that the graph's outputs depend on."""
    before = judging.before(graph)
    return {name for name in graph.inputs if name in before}
