"""Blocking exchanges: the seconds for which pipeline stages are idle while their own processors exchange data.

In a tensor-parallel stage the next pass reads what is sent, and kernels of other microbatches seldom fill that time:
matrices cut eight ways in pairs send for a quarter as long as they compute. Walks leave this out, as they change one
node at a time, and seldom how a whole stage is cut. It does not know the other times of a step.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from castile.planner.lowering.stages import stages
from castile.planner.sketch.sketch import Sketch
from castile.planner.strategy import Config


def blocked_seconds(sketch: Sketch, configs: Mapping[str, Config]) -> float:
    """Seconds to add to the sketch's last estimate, which was of this plan; 0 with one stage."""
    room, (begin, end, more) = sketch.room, sketch.program.micro_steps.tolist()
    turn, num_stages = float(room.micro[0, 1]), int(room.num_stages[0])
    if num_stages == 1:
        return 0.0
    stage = np.array(stages(configs[name].procs for name in sketch.names))
    work = room.work / (more + 2)
    firsts = np.unique(stage, return_index=True)[1]
    each = np.array([work[list(configs[sketch.names[n]].procs)].max() for n in firsts])
    # As in `sweep.step_seconds`.
    busiest = float(work.max())
    sooner = max(0.0, min(turn * sketch.program.slopes * (1 - 1 / num_stages), turn - busiest))
    said = min(max((turn - sooner) / num_stages, busiest), turn)
    taken = float((each + _sent_within(sketch, stage, begin, end)).max())
    return (more + 1) * max(0.0, taken - said)


def _sent_within(sketch: Sketch, stage: np.ndarray, begin: int, end: int) -> np.ndarray:
    """float64[stages]: the seconds for which each stage sends to itself, in steps `begin` to `end`.

    stage   int[N], the stage of each node
    """
    program, uses = sketch.program, sketch.uses
    of_step, (first, last) = stage[program.node], program.read_ptr[[begin, end]].tolist()
    reader = np.repeat(np.arange(begin, end), np.diff(program.read_ptr[begin : end + 1]))
    sources = uses.source_ptr[first : last + 1]
    read, source = np.repeat(np.arange(last - first), np.diff(sources)), uses.source[sources[0] : sources[-1]]
    is_within = (source >= begin) & (source < end) & (of_step[source] == of_step[reader[read]])
    is_own = np.bincount(read, is_within, last - first) == np.maximum(1, np.diff(sources))
    # A step that only sends waits for nothing.
    is_own &= program.row[reader] >= 0
    seconds = np.where(is_own, sketch.room.transfer[first:last].clip(0), 0.0)
    return np.bincount(of_step[reader], seconds, 1 + int(stage.max()))
