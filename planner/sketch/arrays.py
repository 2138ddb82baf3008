"""The flat arrays of a sketch. It is data only: the other modules fill the arrays and work on them.

Terms of this package:

  Config    how one node is cut and placed. All Configs of all spaces are numbered through, 0 to C - 1; a plan is one
            number for each node
  space     the Configs that a node may have. Nodes of the same axes and extents share one
  kind      nodes of one kind cost the same under the same split: durations and bytes are kept by kind and split
  layout    where the parts of one operand or result lie in its array, for every Config of a space
  flow      an array that passes of the step make and read, such as an activation, or the gradient of a parameter
  end       a place in which pieces of a flow come to lie before they are read: the results of one pass, or where a
            parameter lies before the step
  read      one pass that reads one flow. What a read costs are the transfers from the flow's ends to its layout

        pass 1 --end--+                 +--read-- pass 3
                      +---- flow f -----+
        pass 2 --end--+                 +--read-- pass 4

  block     STRIDE passes that follow each other in the program. Before each block the state of all processors is noted
  kept, tried    the present plan of a walk, and the changed plan that is being timed: the first is kept until the
            second is accepted

Letters for sizes: K spaces, C Configs, A axes of the widest space, L layouts, D dims, S steps (passes) of the program,
E reads, F flows, M ends (of `Program`) or blocks + 1 (of `Room`), N nodes, P processors, T types of processor, B bags
of processors, Q pairs of a kind and a split, G groups of nodes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Spaces(NamedTuple):
    """The Configs that nodes may have: nodes of the same axes and extents share a space.

    first[K+1]      the Configs of space k are first[k] to first[k+1]
    split[C]        the number of its split in its space
    parts[C], replicas[C]
    proc_set[C]     the number of the set of its processors
    proc_bag[C]     the number of its bag of processors: the set, with how often the Config names each of them
    bag_ptr[B+1]    so many names stand before those of each bag
    salt[B]         a random number for each bag
    proc_ptr[C+1], procs    as in a Config
    degree[C, A]    by axis, in the order of the axis line; 1 where there is none
    rank[C, A]      the place of that degree among all degrees
    """

    first: np.ndarray
    split: np.ndarray
    parts: np.ndarray
    replicas: np.ndarray
    proc_set: np.ndarray
    proc_bag: np.ndarray
    bag_ptr: np.ndarray
    salt: np.ndarray
    proc_ptr: np.ndarray
    procs: np.ndarray
    degree: np.ndarray
    rank: np.ndarray


class Layouts(NamedTuple):
    """Where the parts of a node's ports lie in their arrays, dim by dim.

    base[L]         base[l] + c is the place of layout l under Config c in `Prices.pattern` and `Prices.content`
    dims[L]         how many dims the array has
    axis[L, D]      the axis that cuts a dim, -1 where none does
    table[L, D, R]  where in lo and hi the blocks of that dim begin, by the rank of the axis's degree
    bears[L, A]     whether an axis cuts any dim: parts that differ in other axes only lie alike (they are copies, or
                    summands)
    lo, hi          where each block of a dim begins and ends, in elements
    """

    base: np.ndarray
    dims: np.ndarray
    axis: np.ndarray
    table: np.ndarray
    bears: np.ndarray
    lo: np.ndarray
    hi: np.ndarray


class Links(NamedTuple):
    """The levels of links, the nearest first.

    group[L, P]  the number of the group of each processor on that level; processors of one group need no farther level
    latency[L]   seconds of a hop
    per_byte[L]  seconds a byte, where all processors use their links at once
    has_trees    whether sums can go along trees
    task         seconds of a kernel that packs or adds up little
    bucket       the most bytes of gradient sums that go together, 0 where each goes alone
    """

    group: np.ndarray
    latency: np.ndarray
    per_byte: np.ndarray
    has_trees: bool
    task: float
    bucket: float


class Program(NamedTuple):
    """The passes of a step in the order in which a sketch takes them, and the flows between them.

    node[S]         the node whose Config decides a step: a node of the graph also decides the updates of its parameters
    row[S]          where the durations of the step's kind begin: it lasts seconds[row + split]; -1: the step computes
                    nothing, but sends what another step will read, as soon as that is made
    read_ptr[S+1]   the reads of a step
    flow[E], layout[E]      of each read
    made_ptr[F+1]   the ends of a flow
    step[M], owner[M], made[M], partial[M]      of each end the step that makes it (-1: it is there before), the node
                    that decides it, its layout, and whether parts that lie alike are summands
    itemsize[F]     bytes of an element
    own_ptr[N+1], own   the steps that a node decides
    space[N]        of each node
    known[N]        where the splits of the node's kind begin in `Prices.known` and `Prices.nbytes`
    micro_steps[3]  the steps with which the first and the second of two microbatches begin, and how many more are like
    the
                    first; S, S and 0 where the batch is whole
    work[N]         operations of a node's forward pass of one microbatch; 0 where there are none
    slopes          of a microbatch's operations the share that gradients of parameters take
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
    micro_steps: np.ndarray
    work: np.ndarray
    slopes: float


class Uses(NamedTuple):
    """Which reads have to do with which nodes, so that a change is followed up without looking at all reads.

    reader[E]       the node that reads
    block[E]        the block of the reading step
    is_ahead[E]     whether the reading step only sends it
    source_ptr[E+1], source     the steps that make what it reads, as far as they come before it
    late            of each of these the next step of the same node, if that comes before the reading step; else the
                    step itself. What has to be packed before it is sent waits for it
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
    """What has been found so far, for any plan. All else is found when a walk first asks for it.

    known[Q]            whether a split of a kind has its seconds and bytes
    seconds[rows, T]    of a step's largest part, by the type of processor
    total[Q, T]         of all steps that a node of the kind decides
    nbytes[Q]           bytes that a part of a node keeps through a step
    kept[Q]             how many of these are activations of one microbatch
    pattern[...]        by layout and Config (`Layouts.base`), 1 + the first such place whose parts lie the same, one by
                        one; 0 where unknown. Transfers between equal patterns cost the same
    content[...]        the same for all parts together: equal where the same processors hold the same boxes, whichever
                        part is whose. Between equal contents nothing has to be sent
    keys[H], values[H]  a hash table: seconds of transfers, and first places by hashes of where parts lie
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
    """The arrays in which a step is timed: the present state, and what is noted of the kept and the tried plan.

    The state:
    free[P], link[P], waited[P]   when a processor and its links are free, and for how long it has waited so far
    done[S], arrival[E]         when steps end, and when all that a read brings has arrived
    old_done, old_arrival       these of the kept plan, where the tried one has changed them

    Transfers of the plan:
    transfer[E]                 seconds of each read's transfers, UNPRICED before they are found
    brought_by[E]               an earlier read of the same flow that brings the same to the same processors, so that
                                this one costs nothing; -1 for none, PACKED for none and where it is packed before it is
                                sent
    ends, num_ends[F]           of each flow the ends that differ in content, from made_ptr on, and how many they are,
                                UNKNOWN before they are found
    fullest[F]                  the most parts that such an end has; 0 where one has replicas
    last_read[...]              by content, the read of a flow that was the last to have it, as a number that rises

    What is noted before each block, and after the last (see `sweep`):
    kept_state[M, 3, P], kept_longest[M]    free, link and waited of the kept plan, and when the last step so far ended
    tried_state, tried_longest  the same of the tried plan
    kept_slack[3, M]            of each block of the kept plan: when its last step ends; by how many seconds what it
                                reads from before the preceding block came sooner than anybody waited for it, below 0
                                where somebody did wait; the same of links that were at work before the block
    tried_slack                 the same of the tried plan
    lag[M]                      by how many seconds a block of the tried plan is later as a whole, where it was skipped
    affected_in[M], reworked_in[M]  the last proposals that had to do with a block, and in which its steps were worked
    out

    Of the kept plan and of the tried one:
    micro[2, 2]                 when the first microbatch begins, and the seconds that it takes
    num_stages[2], rounds[2]    pipeline stages, and how often they take turns
    work[P], held[P], kept[P]   seconds of kernels in the whole step; bytes; how many of these are of one microbatch
    leader[P]                   of `classes.find_stages`: a processor of the same stage, -1 for one that does nothing
    entries[2]                  entries in the table of `Prices`; a number that none in `last_read` is above
    offsets, others, scratch    of `prices.price`
    """

    free: np.ndarray
    link: np.ndarray
    waited: np.ndarray
    done: np.ndarray
    arrival: np.ndarray
    transfer: np.ndarray
    brought_by: np.ndarray
    old_done: np.ndarray
    old_arrival: np.ndarray
    kept_state: np.ndarray
    kept_longest: np.ndarray
    tried_state: np.ndarray
    tried_longest: np.ndarray
    kept_slack: np.ndarray
    tried_slack: np.ndarray
    lag: np.ndarray
    affected_in: np.ndarray
    reworked_in: np.ndarray
    micro: np.ndarray
    work: np.ndarray
    held: np.ndarray
    kept: np.ndarray
    leader: np.ndarray
    num_stages: np.ndarray
    rounds: np.ndarray
    ends: np.ndarray
    num_ends: np.ndarray
    fullest: np.ndarray
    last_read: np.ndarray
    entries: np.ndarray
    offsets: np.ndarray
    others: np.ndarray
    scratch: tuple[np.ndarray, ...]


class Classes(NamedTuple):
    """Classes of processors that all Configs of a plan name equally often: only the first of each class is simulated.

    sign[P]         equal for processors of one class: the sum of the salts of the bags that nodes lie on
    side[0]         0 or 1: which of the two entries below is of the kept plan; the other is of the tried one
    first[2, P]     the first processor of the class of each
    each[2, P], num_first[2]    all that are the first of their class, in order; how many they are
    listed[2, ...], size[2, B]  the first processors among those of a bag, from bag_ptr on; how many they are
    state[2], listed_in[2, B]   a number that changes with the classes, and that with which a bag was listed
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
    """The values before a proposal of what it changes, so that it can be undone.

    work[P], held[P], kept[P], sign[P]      of `Room` and `Classes` before it
    num_reads[0]                    the number of reads whose transfers are to be found again
    read[E], transfer[E], brought_by[E]     these reads, and their earlier values in `Room`
    proposal[0]                     the number of the proposal
    changed_in[N], visited_in[F]    the last proposal that changed a node, or had to do with a flow
    """

    work: np.ndarray
    held: np.ndarray
    kept: np.ndarray
    sign: np.ndarray
    num_reads: np.ndarray
    read: np.ndarray
    transfer: np.ndarray
    brought_by: np.ndarray
    proposal: np.ndarray
    changed_in: np.ndarray
    visited_in: np.ndarray


class Choices(NamedTuple):
    """Groups and neighbours of nodes, for the moves of a walk.

    kind_ptr[K+1], kind     the nodes of a kind
    group_ptr[G+1], group   the nodes of a group, all of one space, which may change together
    beside_ptr[N+1], beside     neighbours of a node
    along[W, A]     by way from a node to a neighbour: for an axis of the neighbour the axis of the node that runs
                    along it, -1 where none does
    match_ptr[W], match     a cache: match[match_ptr[w] + c] is 2 + the Config of the neighbour that matches Config c of
                    the node; 1 where none does, 0 before it is known
    relocated[NUM_RELOCATIONS * C]  the same of Configs on other processors, by relocation and Config
    """

    kind_ptr: np.ndarray
    kind: np.ndarray
    group_ptr: np.ndarray
    group: np.ndarray
    beside_ptr: np.ndarray
    beside: np.ndarray
    along: np.ndarray
    match_ptr: np.ndarray
    match: np.ndarray
    relocated: np.ndarray


class Worth(NamedTuple):
    """The energy that walks minimize: (base + rate * seconds) * (1 + penalty * the share of memory that is lacking)."""

    base: float
    rate: float
    penalty: float


# Records that compiled loops take by reference.
RECORDS = (Spaces, Layouts, Links, Program, Uses, Prices, Room, Classes, Log, Choices, Worth)
