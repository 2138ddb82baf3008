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
    crew[C]         the number of these with how often it names each
    crew_ptr[W+1]   so many names before those of each crew
    salt[W]         a random number of each crew
    proc_ptr[C+1], procs    as in a Config
    degree[C, A]    by axis, in the order of the axis line; 1 where there is none
    rank[C, A]      the place of that degree among all degrees
    """

    first: np.ndarray
    split: np.ndarray
    parts: np.ndarray
    replicas: np.ndarray
    crowd: np.ndarray
    crew: np.ndarray
    crew_ptr: np.ndarray
    salt: np.ndarray
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
    """By level, the nearest first: seconds of a hop; seconds a byte, where all use the links.

    group[L, P]  the group of each processor
    has_trees  sums can go along trees
    task       seconds of a kernel that packs or adds up little
    bucket     the most bytes of sums that go together, 0 where none do
    """

    group: np.ndarray
    latency: np.ndarray
    per_byte: np.ndarray
    has_trees: bool
    task: float
    bucket: float


class Program(NamedTuple):
    """Steps in order, and the flows between them.

    node[S]         the node whose Config decides a step
    row[S]          where the durations of the step's kind begin: seconds[row + split];
                    -1: the step only sends what it reads on its way, as soon as that is made
    read_ptr[S+1]   the reads of a step
    flow[E], layout[E]      of each read
    made_ptr[F+1]   the ends of a flow that are there before its reads
    step[M], owner[M], made[M], partial[M]      the step of such an end (-1: there before), the node that decides
                    it, its layout, and whether parts that lie alike are to be summed
    itemsize[F]
    own_ptr[N+1], own   the steps that a node decides
    space[N]        of each node
    known[N]        where the splits of the node's kind begin in `known` and `nbytes`
    turns[3]        the steps with which the first and the second of two microbatches begin, and how many more are like
                    the first; S, S and 0 where there are none
    work[N]         operations of a node's forward pass, of a microbatch; 0 where there are none
    slopes          of a microbatch's operations the share of those that gradients of parameters take
    """

    node: np.ndarray
    row: np.ndarray
    read_ptr: np.ndarray
    flow: np.ndarray
    layout: np.ndarray
    made_ptr: np.ndarray
    step: np.ndarray
    owner: np.ndarray
    made: np.ndarray
    partial: np.ndarray
    itemsize: np.ndarray
    own_ptr: np.ndarray
    own: np.ndarray
    space: np.ndarray
    known: np.ndarray
    turns: np.ndarray
    work: np.ndarray
    slopes: float


class Uses(NamedTuple):
    """Which reads have to do with which nodes.

    reader[E]       the node that reads
    block[E]        which STRIDE steps of the program the reading one is among
    is_ahead[E]     whether that only sends it on its way
    source_ptr[E+1], source     the steps before it that make what it reads
    late            of each of these the step of the same node that is ready with it and comes behind it, before the
                    reading one; itself where none does
    flow_ptr[N+1], flow     the flows that a node makes or reads, if any reads them
    read_ptr[F+1], read     the reads of a flow
    """

    reader: np.ndarray
    block: np.ndarray
    is_ahead: np.ndarray
    source_ptr: np.ndarray
    source: np.ndarray
    late: np.ndarray
    flow_ptr: np.ndarray
    flow: np.ndarray
    read_ptr: np.ndarray
    read: np.ndarray


class Prices(NamedTuple):
    """What is known so far; all else is found when it is asked for.

    known[Q]            whether a split of a kind has its seconds and bytes
    seconds[rows, T]    of a step's largest part, by the type of processor
    total[Q, T]         of all steps that a node of the kind decides
    nbytes[Q]           that a part of a node keeps through a step
    kept[Q]             how many of these are activations of a microbatch
    pattern[...]        by layout and Config, 1 + the first entry whose every part lies as its does; 0 where unknown
    content[...]        the same, where all parts together lie as its do: the same processors hold the same boxes
    keys[H], values[H]  a hash table: of transfers their seconds, of hashes of where parts lie the first entry
    """

    known: np.ndarray
    seconds: np.ndarray
    total: np.ndarray
    nbytes: np.ndarray
    kept: np.ndarray
    pattern: np.ndarray
    content: np.ndarray
    keys: np.ndarray
    values: np.ndarray


class Room(NamedTuple):
    """Where a sketch is worked out.

    free[P], link[P], waited[P] when a processor and its links are free, and for how long it has waited so far
    done[S], since[E]           when steps end, and since when what each read brings is there
    toll[E], shared[E]          seconds of its transfers, UNFOUND before they are found; the read before it of the same
                                flow that brings the same, -1 where none does, PACKED where it is packed too
    old_done, old_since         the same before they were worked out last
    marks[M, 3, P], longest[M]  before each STRIDE-th step of that plan, and at the end: free, link, waited; the longest
                                so far
    drafts, drafted_longest     the same of the plan that is worked out
    slack[3, M]                 of these steps of that plan: when the last is done; by how much what they read of steps
                                that are not among them or the STRIDE before comes too early to be waited for, negative
                                where it is waited for; the same of links that were at work before
    drafted_slack               the same of the plan that is worked out
    lag[M]                      by how much later these steps are in the plan that is worked out, where they are not
                                worked out one by one
    touched[M], swept[M]        the last proposals that had to do with these steps, and in which they were worked out
                                one by one
    turn[2, 2]                  of the plan that was kept, and of the one that is worked out: when the first microbatch
                                begins, and how long it takes
    work[P], held[P], kept[P]   seconds of kernels in the whole step, bytes, and how many of these are of one microbatch
    leader[P]                   of `staged`: a processor of the same stage, -1 for one that does nothing
    num_stages[2]               of the plan that was kept, and of the one that is worked out
    rounds[2]                   how often stages take turns in these
    ends[M], num_ends[F]        of each flow those ends that lie as none before them does, from made_ptr on; how many
                                these are, UNKNOWN before they are found
    fullest[F]                  the most parts that such an end has; 0 where one has replicas
    met[...]                    by content, which read of which flow was the last that had it
    entries[2]                  entries in the table of prices; a number that none in `met` is above
    offsets, others, scratch    of `price`
    """

    free: np.ndarray
    link: np.ndarray
    waited: np.ndarray
    done: np.ndarray
    since: np.ndarray
    toll: np.ndarray
    shared: np.ndarray
    old_done: np.ndarray
    old_since: np.ndarray
    marks: np.ndarray
    longest: np.ndarray
    drafts: np.ndarray
    drafted_longest: np.ndarray
    slack: np.ndarray
    drafted_slack: np.ndarray
    lag: np.ndarray
    touched: np.ndarray
    swept: np.ndarray
    turn: np.ndarray
    work: np.ndarray
    held: np.ndarray
    kept: np.ndarray
    leader: np.ndarray
    num_stages: np.ndarray
    rounds: np.ndarray
    ends: np.ndarray
    num_ends: np.ndarray
    fullest: np.ndarray
    met: np.ndarray
    entries: np.ndarray
    offsets: np.ndarray
    others: np.ndarray
    scratch: tuple[np.ndarray, ...]


class Classes(NamedTuple):
    """Processors that all Configs of a plan name alike fare alike: only the first of each class is looked at.

    sign[P]         equal for processors of one class: the sum of the salts of the crews that nodes lie on
    side[0]         which of two sides is of the plan that was kept, 0 or 1; the other is for one that is tried
    first[2, P]     the first processor of the class of each
    each[2, P], num_first[2]    all that are the first of their class, in order; how many they are
    listed[2, ...], size[2, W]  the first processors among those of a crew, from crew_ptr on; how many they are
    state[2], listed_in[2, W]   a number that changes with the classes, and that with which a crew was listed
    """

    sign: np.ndarray
    side: np.ndarray
    first: np.ndarray
    each: np.ndarray
    num_first: np.ndarray
    listed: np.ndarray
    size: np.ndarray
    state: np.ndarray
    listed_in: np.ndarray


class Log(NamedTuple):
    """What a proposal changes, and what it was before.

    work[P], held[P], kept[P], sign[P]
    num_reads[0]                of reads whose tolls are not known any more
    read[E], toll[E], shared[E] these, and what was known
    turn[0]                     the number of the proposal
    turned[N], visited[F]       the last proposal that changed a node, or had to do with a flow
    """

    work: np.ndarray
    held: np.ndarray
    kept: np.ndarray
    sign: np.ndarray
    num_reads: np.ndarray
    read: np.ndarray
    toll: np.ndarray
    shared: np.ndarray
    turn: np.ndarray
    turned: np.ndarray
    visited: np.ndarray


class Choices(NamedTuple):
    """What a walk may change: groups of nodes, and the nodes beside each.

    kind_ptr[K+1], kind     nodes that cost alike
    group_ptr[G+1], group   nodes that may change together, all of one kind
    beside_ptr[N+1], beside     neighbours of a node
    same[B, A]      for an axis of the neighbour the axis of the node that runs along it, -1 where none does
    like_ptr[B], like   2 + the Config of the neighbour that is like a Config of the node, which is to be added to
                    like_ptr; 1 where none is, 0 before it is looked for
    turned[NUM_TURNS * C]   the same of Configs on other processors, by the way there and the Config
    """

    kind_ptr: np.ndarray
    kind: np.ndarray
    group_ptr: np.ndarray
    group: np.ndarray
    beside_ptr: np.ndarray
    beside: np.ndarray
    same: np.ndarray
    like_ptr: np.ndarray
    like: np.ndarray
    turned: np.ndarray


class Worth(NamedTuple):
    """What walks make small: (base + rate * seconds) * (1 + penalty * by what share a processor lacks memory)."""

    base: float
    rate: float
    penalty: float


# What loops take by reference.
RECORDS = (Spaces, Layouts, Links, Program, Uses, Prices, Room, Classes, Log, Choices, Worth)
