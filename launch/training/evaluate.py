"""Evaluation: a second graph uses the parameters of training in place, under the same plan, on any samples.

In that graph dropout is off and running statistics replace those of the batch. It does not know how the model was
trained, nor how its outputs are used.
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
from castile.launch.training import scoring
from castile.launch.training.scoring import HeldOut, Scorer
from castile.planner.graph import Graph, Node
from castile.planner.known.pipelines import divisors
from castile.planner.lower import Lowering
from castile.planner.op import Tensor
from castile.planner.strategy import Config, Strategy, check_config
from castile.runtime import memory

Arrays = dict[str, np.ndarray]


def truths(job: Job, samples: Samples) -> dict[str, str]:
    """The input with which each of the model's outputs is compared on these samples, as `scoring.truths` finds them.

    None where the model names no output to judge, or there is nothing to compare the first with.
    """
    return scoring.truths(job.evaluation, samples.shapes) if len(samples) else {}


@dataclass(frozen=True, eq=False)
class ForwardPass:
    """A forward pass over as many samples as its graph has."""

    graph: Graph
    prepared: Prepared


def forward_pass(job: Job, plan: Strategy, trained: Prepared) -> ForwardPass:
    """The forward pass over held-out samples under a training plan; all ranks call it.

    It has a batch, or the largest equal piece of one that fits into memory: steps lend it their memory while none runs.
    Raises ValueError where not even one sample fits.
    """
    refused, room = list[ValueError](), job.machine.capacity - trained.packing.peak_bytes
    for graph in _pieces(job):
        try:
            prepared = job.prepare(adapted(plan, job.lowering, graph), forward(job, graph))
        except ValueError as error:
            refused.append(error)
            continue
        if (extra_bytes(trained, prepared) <= room).all():
            return ForwardPass(graph, prepared)
        refused.append(ValueError("held-out samples take more memory than steps leave: give more to accumulate"))
    raise refused[-1]


def _pieces(job: Job) -> Iterator[Graph]:
    """The graph for evaluation of whole batches, and of pieces as small as the model allows."""
    yield job.evaluation
    for number in divisors(job.graph.batch)[1:]:
        with suppress(ValueError):
            yield job.model.graph(job.graph.batch // number, job.graph.dtype, training=False)


def extra_bytes(trained: Prepared, prepared: Prepared) -> np.ndarray:
    """int64[P]: an upper bound of the bytes that a forward pass takes beyond the arenas that steps lend it."""
    lent, arena = (p.packing.peak_bytes - memory.lasting(p.tasks) for p in (trained, prepared))
    lasting = memory.lasting(prepared.tasks, but="carried")
    return np.where(arena > lent, arena, 0) + np.where(arena + lasting > lent, lasting, 0)


def held_out(
    job: Job, passing: Callable[[], ForwardPass], dataset: Dataset, trained: Execution,
    advance: Advance = lambda *_: None, is_over: Callable[[], bool] = lambda: False,
) -> HeldOut | None:  # fmt: skip
    """Evaluate on all held-out samples; rank 0 gets the figures. None where there is nothing to judge (`truths`).

    passing   the `forward_pass` of the plan that the model is trained with
    trained   runs its steps; none is in progress
    advance   called on all ranks with the number of samples that are done, and their number in all
    is_over   whether to end before the next batch, asked on all ranks; figures are then of those before, or None
    """
    labels = truths(job, dataset.held_out)
    if not labels:
        return None
    way = passing()
    # What a pass is given and makes lies where the next step writes.
    execution = job.execute(way.prepared, 0, {**trained.state}, way.graph, trained.runner.arenas)
    batches = outputs_of(execution, dataset.held_out, set(labels.values()), advance, is_over)
    return judge(execution.graph, labels, batches, dataset.num_held_out)


def judge(
    graph: Graph, labels: Mapping[str, str], batches: Iterable[tuple[Arrays, Arrays]], num_samples: int,
    tell: Callable[[np.ndarray], None] = lambda losses: None,
) -> HeldOut | None:  # fmt: skip
    """Score outputs against their labels, batch by batch; None where there are no batches.

    tell   called with the losses of the first output's predictions in each batch
    """
    each = {output: Scorer(graph, output, name) for output, name in labels.items()}
    for outputs, given in batches:
        losses = [one.add(outputs[output], given[labels[output]]) for output, one in each.items()]
        tell(losses[0])
    first, *others = [one.figures(num_samples) for one in each.values()]
    names = list(labels)[1:]
    return first and replace(first, others={n: one for n, one in zip(names, others, strict=True) if one is not None})


def forward(job: Job, graph: Graph, served: bool = False) -> Lowering:
    """The lowering of plans of an evaluation graph: over parameters of training, or parameters that are only served,
    which lie as they are used.
    """
    return Lowering(graph, job.machine, replace(job.lowering.updates, served=served), mode="forward")


def adapted(plan: Strategy, trained: Lowering, graph: Graph) -> Strategy:
    """The plan for a graph that uses a training plan's parameters in place.

    Nodes keep their Configs; new nodes, and those for which it is not legal, are whole on processor 0.
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


def outputs_of(
    execution: Execution, samples: Samples, besides: Collection[str] = (), advance: Advance = lambda *_: None,
    is_over: Callable[[], bool] = lambda: False,
) -> Iterator[tuple[Arrays, Arrays]]:  # fmt: skip
    """The outputs of a forward pass for each batch of samples, valid until the next, and the inputs in `besides`.
    Nothing on ranks that do not hold them; all ranks go through all of it.

    advance   called on all ranks with the number of samples that are done, and their number in all
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
    """An input's rows in the graph's kind of dtype: 3 may be a class, or an amount."""
    is_class = np.dtype(tensor.dtype).kind in "iu"
    return rows if is_class or rows.dtype.kind == "f" else rows.astype(np.float64)


def needed(graph: Graph) -> set[str]:
    """The inputs that the graph's outputs depend on."""
    before = scoring.ancestors(graph)
    return {name for name in graph.inputs if name in before}
