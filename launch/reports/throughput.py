"""Throughput of a step, and the model FLOPs utilisation (MFU) of PaLM (Chowdhery et al., 2022, appendix B): the share
of the processors' peaks that its network needs.

It does not know how long a step takes, nor why.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from castile.launch.reports import report
from castile.planner.graph import Graph
from castile.planner.lower import Lowering
from castile.planner.strategy import Strategy
from castile.runtime.machine import Machine

# Of a sample that is a sequence its positions are this axis of an input.
POSITIONS = "s"
# In a training step the gradients of inputs and of parameters cost as much as the forward pass each.
GRADIENTS = {"train": 2, "forward": 0}


def facts(lowering: Lowering, seconds: float) -> dict[str, Any]:
    """The figures of a step; None for tokens where there are none, and for MFU where peaks are unknown, with the kinds
    of processors that lack one where others have one.
    """
    graph, needed, peak = lowering.graph, model_flops(lowering), peak_rate(lowering.machine, lowering.graph.dtype)
    tokens = tokens_of(graph)
    return {
        "samples_per_second": graph.batch / seconds,
        "tokens_per_second": tokens and tokens / seconds,
        "model_flops": needed,
        "model_flops_utilisation": peak and needed / seconds / peak,
        "kinds_without_peak": without_peak(lowering.machine, graph.dtype),
    }


def model_flops(lowering: Lowering) -> float:
    """The floating-point operations that a step needs, however it is split, without updates and recomputation.

    Three times those of the forward pass for a training step, less the gradients that frozen parameters save; causal
    attention counts what it sees.
    """
    graph = lowering.graph
    now = every = _passes(lowering, graph)
    if graph.frozen:
        every = _passes(lowering, replace(graph, frozen=frozenset()))
    needed = 0.0
    for name in now["F"]:
        node = graph.nodes[name]
        kept, all_of_it = (sum(name in passes[which] for which in ("B", "W")) for passes in (now, every))
        share = kept / all_of_it if all_of_it else 1.0
        needed += (1 + GRADIENTS[lowering.mode] * share) * node.op.flops("F", node.whole())
    return needed


def _passes(lowering: Lowering, graph: Graph) -> dict[str, set[str]]:
    """The nodes of the graph that have a forward pass, gradients of inputs, and gradients of parameters."""
    program = lowering.remade(graph=graph, microbatches=1, recompute=()).program(Strategy({}))
    found: dict[str, set[str]] = {"F": set(), "B": set(), "W": set()}
    for step in program.steps:
        if step.node.name in graph.nodes:
            found[step.which].add(step.node.name)
    return found


def peak_rate(machine: Machine, dtype: str) -> float | None:
    """Operations a second by the data sheets of all processors; None where the machine does not say."""
    peaks = [processor.peak_rate(dtype) for processor in machine.processors]
    return None if None in peaks else float(sum(peak for peak in peaks if peak))


def without_peak(machine: Machine, dtype: str) -> list[str]:
    """The kinds of processors without a peak for a dtype, where others have one."""
    known = {is_known: {p.kind for p in machine.processors if (p.peak_rate(dtype) is not None) == is_known}
             for is_known in (True, False)}  # fmt: skip
    return sorted(known[False]) if known[True] else []


def tokens_of(graph: Graph) -> int | None:
    """The positions in a batch of sequences: of the first input whose axes are the samples' and positions."""
    tensors = [graph.tensors[name] for name in graph.inputs]
    return next((t.shape[0] * t.shape[1] for t in tensors if t.axes[1:] == (POSITIONS,)), None)


def words(facts: Mapping[str, Any]) -> str:
    """Samples a second, tokens a second and MFU in words, as far as they are known."""
    parts = [report.pace(facts["samples_per_second"])]
    if facts["tokens_per_second"] is not None:
        parts.append(report.pace(facts["tokens_per_second"], "tokens"))
    if facts["model_flops_utilisation"] is not None:
        parts.append(f"MFU {report.percent(facts['model_flops_utilisation'])}")
    return ", ".join(parts + hidden(facts))


def hidden(facts: Mapping[str, Any]) -> list[str]:
    """Why MFU is not reported, in words, where only some kinds of processors have peaks."""
    kinds = facts["kinds_without_peak"]
    return [f"no MFU, as no peak of {', '.join(kinds)} is known"] if kinds else []
