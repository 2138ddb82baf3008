"""The flat arrays of a sketch: Configs by number, where the pieces of each port lie, and the program over them.

Data only. Nodes that cost alike are of one kind, and Configs are numbered through all spaces.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Spaces(NamedTuple):
    """The Configs that nodes may have: nodes of the same axes and extents share a space.

    first[K+1]      the Configs of space k are first[k] to first[k+1]
    split[C]        the number of its split in its space
    parts[C], replicas[C]
    crowd[C]        the number of the set of its processors
    proc_ptr[C+1], procs    as in a Config
    degree[C, A]    by axis, in the order of the axis line; 1 where there is none
    rank[C, A]      the place of that degree among all degrees
    """

    first: np.ndarray
    split: np.ndarray
    parts: np.ndarray
    replicas: np.ndarray
    crowd: np.ndarray
    proc_ptr: np.ndarray
    procs: np.ndarray
    degree: np.ndarray
    rank: np.ndarray


class Layouts(NamedTuple):
    """Where the parts of a kind's ports lie in their arrays, dim by dim.

    base[L]         what is to be added to a Config's number to find it in `content`
    dims[L]         how many dims the array has
    axis[L, D]      the axis that cuts a dim, -1 where none does
    table[L, D, R]  where in lo and hi the blocks of that dim begin, by the rank of the axis's degree
    bears[L, A]     whether an axis cuts any dim: parts that differ in other axes lie alike
    """

    base: np.ndarray
    dims: np.ndarray
    axis: np.ndarray
    table: np.ndarray
    bears: np.ndarray
    lo: np.ndarray
    hi: np.ndarray


class Links(NamedTuple):
    """By level, the nearest first: processors in a group; seconds of a hop; seconds a byte, where all use the links."""

    group: np.ndarray
    latency: np.ndarray
    per_byte: np.ndarray


class Program(NamedTuple):
    """Steps in order, and the flows between them.

    node[S]         the node whose Config decides a step
    row[S]          where the durations of the step's kind begin: seconds[row + split];
                    -1: the step only sends what it reads on its way, as soon as that is made
    read_ptr[S+1]   the reads of a step
    flow[E], layout[E]      of each read
    before[E]       the read of the same flow that comes before, -1 where none does
    made_ptr[F+1]   the ends of a flow that are there before its reads
    step[M], owner[M], made[M], partial[M]      the step of such an end (-1: there before), the node that decides
                    it, its layout, and whether parts that lie alike are to be summed
    pair_ptr[E]     where the pairs of a read begin, one for each end of its flow; pair[...] numbers those alike
    itemsize[F]
    own_ptr[N+1], own   the steps that a node decides
    space[N]        of each node
    known[N]        where the splits of the node's kind begin in `known` and `nbytes`
    """

    node: np.ndarray
    row: np.ndarray
    read_ptr: np.ndarray
    flow: np.ndarray
    layout: np.ndarray
    before: np.ndarray
    made_ptr: np.ndarray
    step: np.ndarray
    owner: np.ndarray
    made: np.ndarray
    partial: np.ndarray
    pair_ptr: np.ndarray
    pair: np.ndarray
    itemsize: np.ndarray
    own_ptr: np.ndarray
    own: np.ndarray
    space: np.ndarray
    known: np.ndarray


class Prices(NamedTuple):
    """What is known so far; all else is found when it is asked for.

    known[Q]            whether a split of a kind has its seconds and bytes
    seconds[rows, T]    of a step's largest part, by the type of processor
    nbytes[Q]           that a part of a node keeps through a step
    content[...]        a hash of where a layout's parts lie, by layout and Config; 0 where unknown
    keys[H], moves[H]   a hash table of transfers' seconds by (pair, Config, Config)
    """

    known: np.ndarray
    seconds: np.ndarray
    nbytes: np.ndarray
    content: np.ndarray
    keys: np.ndarray
    moves: np.ndarray


class Room(NamedTuple):
    """Where a sketch is worked out.

    free[P], link[P], rest[P]   when a processor and its links are free, and how much of its work is still to be done
    done[S], here[E], since[E]  when steps end, and what each read has brought (a content), since when
    kept_...                    the same of the plan that was kept
    marks[M, 3, P], longest[M]  before each STRIDE-th step of that plan: free, link, work done; the longest so far
    drafts, drafted_longest     the same of the plan that is worked out
    work[P], held[P]            seconds of kernels in the whole step, and bytes
    entries[0]                  entries in the table of transfers
    offsets, others, scratch    of `price`
    """

    free: np.ndarray
    link: np.ndarray
    rest: np.ndarray
    done: np.ndarray
    here: np.ndarray
    since: np.ndarray
    kept_done: np.ndarray
    kept_here: np.ndarray
    kept_since: np.ndarray
    marks: np.ndarray
    longest: np.ndarray
    drafts: np.ndarray
    drafted_longest: np.ndarray
    work: np.ndarray
    held: np.ndarray
    entries: np.ndarray
    offsets: np.ndarray
    others: np.ndarray
    scratch: tuple[np.ndarray, ...]


class Choices(NamedTuple):
    """What a walk may change: groups of nodes, and the nodes beside each.

    group_ptr[G+1], group   nodes that may change together, all of one kind
    beside_ptr[N+1], beside     neighbours of a node
    same[B, A]      for an axis of the neighbour the axis of the node that runs along it, -1 where none does
    """

    group_ptr: np.ndarray
    group: np.ndarray
    beside_ptr: np.ndarray
    beside: np.ndarray
    same: np.ndarray
