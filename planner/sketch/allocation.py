"""Allocation of the arrays in which a sketch times plans, with the sizes of a program and its Configs.

It does not know how plans are timed.
"""

from __future__ import annotations

import numpy as np

from castile.planner.lowering.ragged import ranges, row_pointers
from castile.planner.sketch.arrays import Classes, Log, Program, Room, Spaces, Uses
from castile.planner.sketch.sweep import STRIDE
from castile.planner.sketch.transfer_costs import MOST_DIMS


def room_for(num_procs: int, num_levels: int, num_contents: int, program: Program, spaces: Spaces) -> Room:
    """Allocate `Room` for a kept plan and a tried one."""
    most, width = max(int(spaces.parts.max(initial=1)), num_procs), spaces.degree.shape[1]
    num_steps, num_reads, num_flows = len(program.node), len(program.flow), len(program.itemsize)
    num_marks = -(-num_steps // STRIDE) + 1
    procs, steps, reads = np.zeros((6, num_procs)), np.zeros((2, num_steps)), np.zeros((3, num_reads))
    marks, longest = np.zeros((2, num_marks, 3, num_procs)), np.zeros((2, num_marks))
    slack, stamps = np.zeros((2, 3, num_marks)), np.zeros((2, num_marks), np.int64)
    flows = np.zeros((2, num_flows), np.int64)
    offsets = np.zeros((2, most + 1), np.int64)
    scratch = (*np.zeros((6, max(MOST_DIMS, width)), np.int64), *np.zeros((2, num_levels + 2)))
    return Room(
        procs[0], procs[1], procs[2], steps[0], reads[0], reads[1], np.zeros(num_reads, np.int64), steps[1], reads[2],
        marks[0], longest[0], marks[1], longest[1], slack[0], slack[1], np.zeros(num_marks), stamps[0], stamps[1],
        np.zeros((2, 2)), procs[3], procs[4], procs[5], np.zeros(num_procs, np.int64), np.ones(2, np.int64),
        np.ones(2), np.zeros(len(program.made), np.int64), flows[0], flows[1], np.zeros(num_contents + 1, np.int64),
        np.zeros(2, np.int64), offsets[0], offsets[1], scratch,
    )  # fmt: skip


def classes_for(num_procs: int, spaces: Spaces) -> Classes:
    """Allocate `Classes` for two plans."""
    num_bags, num_names = len(spaces.salt), int(spaces.bag_ptr[-1])
    first, each = np.zeros((2, 2, num_procs), np.int64)
    size, listed_in = np.zeros((2, 2, num_bags), np.int64)
    num_first, state = np.zeros((2, 2), np.int64)
    sign, side, listed = np.zeros(num_procs, np.int64), np.zeros(1, np.int64), np.zeros((2, num_names), np.int64)
    return Classes(sign, side, first, each, num_first, listed, size, state, listed_in)


def log_for(num_procs: int, program: Program) -> Log:
    """Allocate `Log` for one proposal."""
    num_reads, num_flows = len(program.flow), len(program.itemsize)
    procs, reads = np.zeros((3, num_procs)), np.zeros((2, num_reads), np.int64)
    ones, turned = np.zeros((2, 1), np.int64), np.zeros(len(program.space), np.int64)
    return Log(
        procs[0], procs[1], procs[2], np.zeros(num_procs, np.int64), ones[0], reads[0], np.zeros(num_reads), reads[1],
        ones[1], turned, np.zeros(num_flows, np.int64),
    )  # fmt: skip


def uses_of(program: Program) -> Uses:
    """`Uses` of a program."""
    num_flows, num_nodes = len(program.made_ptr) - 1, len(program.space)
    reader = np.repeat(program.node, np.diff(program.read_ptr))
    made = np.repeat(np.arange(num_flows), np.diff(program.made_ptr))
    counts = np.bincount(program.flow, minlength=num_flows)
    nodes, flows = np.concatenate([program.owner, reader]), np.concatenate([made, program.flow])
    is_read = counts[flows] > 0
    pairs = np.unique(nodes[is_read] * num_flows + flows[is_read])
    flow_ptr = np.searchsorted(pairs, np.arange(num_nodes + 1) * num_flows)
    read_ptr = row_pointers(counts)
    read = np.argsort(program.flow, kind="stable")
    source_ptr, source, late = _sources(program)
    step = np.repeat(np.arange(len(program.node)), np.diff(program.read_ptr))
    flow = pairs % max(num_flows, 1)
    found = (reader, step // STRIDE, program.row[step] < 0, source_ptr, source, late, flow_ptr, flow, read_ptr, read)
    return Uses(*(a.astype(np.int64) for a in found))


def _sources(program: Program) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(source_ptr, source, late) of `Uses`: for each read the passes before it that make its flow, and for each of
    these the next pass of its node, if that comes before the read too.
    """
    count, reads = np.diff(program.made_ptr)[program.flow], np.arange(len(program.flow))
    read, end = np.repeat(reads, count), ranges(program.made_ptr[program.flow], count)
    step_of = np.repeat(np.arange(len(program.node)), np.diff(program.read_ptr))
    is_before = (program.step[end] >= 0) & (program.step[end] < step_of[read])
    source, reader = program.step[end[is_before]], step_of[read[is_before]]
    following = np.arange(len(program.node))
    is_next = program.node[program.own[1:]] == program.node[program.own[:-1]]
    following[program.own[:-1][is_next]] = program.own[1:][is_next]
    late = np.where(following[source] < reader, following[source], source)
    return np.searchsorted(read[is_before], np.arange(len(reads) + 1)), source, late
