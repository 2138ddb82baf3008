"""Seconds of a sketch's transfers: from where the parts of one layout lie to where those of another are needed.

For some of the readers it counts how many bytes cross each level of links, as if copies and sums went through the
nearest groups first: the 8 GPUs of a node before the network. Each level costs its bytes over its bandwidth, and a
latency for each hop. Compiled where Numba is installed. It knows neither tasks nor which collective a transfer would
be. Constants and arrays are those of `arrays`; begin reading with `price`.
"""

from __future__ import annotations

import numpy as np

from castile.planner.sketch.contents import index, slot_of

# So many readers are looked at: layouts are regular, so others fare like them.
MOST_READERS = 8
MOST_DIMS = 8
FETCHED, SUMMED, JOINED, ADDED, MIXED = 0, 1, 2, 3, 4
NUM_HOWS = 5
# A transfer's key in the table: two numbers of so many bits, a way (as above) and an item size.
NUMBER_BITS = 26


def parts_alike(layout, c, kind_axes, spaces, layouts, out):  # type: ignore[no-untyped-def]
    """How many parts hold each box (copies, or summands); out: their distances from the first of them, in numbers of
    parts.
    """
    count, stride = 1, 1
    out[0] = 0
    for a in range(kind_axes - 1, -1, -1):
        degree = spaces.degree[c, a]
        if degree > 1 and not layouts.bears[layout, a]:
            for more in range(1, degree):
                for n in range(count):
                    out[more * count + n] = out[n] + more * stride
            count *= degree
        stride *= degree
    return count


def distance(p, q, links):  # type: ignore[no-untyped-def]
    """0 on one processor, else 1 + the nearest level of links that joins the two."""
    if p == q:
        return 0
    for level in range(len(links.group)):
        if links.group[level, p] == links.group[level, q]:
            return level + 1
    return len(links.group)


def distance_to_part(p, c, part, spaces, links):  # type: ignore[no-untyped-def]
    """The distance from processor p to the nearest replica of a part."""
    begin = spaces.proc_ptr[c] + part * spaces.replicas[c]
    found = len(links.group) + 1
    for at in range(begin, begin + spaces.replicas[c]):
        found = min(found, distance(p, spaces.procs[at], links))
    return found


def blocks_meeting(layout, c, lo, hi, spaces, layouts, first, last):  # type: ignore[no-untyped-def]
    """The blocks of a layout that meet the box lo to hi: in each dim those from `first` to `last`."""
    for d in range(layouts.dims[layout]):
        a = layouts.axis[layout, d]
        degree, first[d], last[d] = spaces.degree[c, a] if a >= 0 else 1, 0, 0
        if degree == 1:
            continue
        at = layouts.table[layout, d, spaces.rank[c, a]]
        whole = layouts.hi[at + degree - 1]
        n = min(degree - 1, lo[d] * degree // max(whole, 1))
        while n > 0 and layouts.hi[at + n - 1] > lo[d]:
            n -= 1
        while n < degree - 1 and layouts.hi[at + n] <= lo[d]:
            n += 1
        first[d] = n
        while n < degree - 1 and layouts.lo[at + n + 1] < hi[d]:
            n += 1
        last[d] = n


def box_of_part(part, layout, c, num_axes, spaces, layouts, coords, lo, hi):  # type: ignore[no-untyped-def]
    """The box of a part, lo to hi; returns (its volume in elements, the number of the first part with the same box)."""
    volume, rest, base, turn = 1.0, part, part, 1
    for a in range(num_axes - 1, -1, -1):
        degree, coords[a] = spaces.degree[c, a], 0
        if degree > 1:
            rest, coords[a] = rest // degree, rest % degree
            if not layouts.bears[layout, a]:
                base -= coords[a] * turn
            turn *= degree
    for d in range(layouts.dims[layout]):
        a = layouts.axis[layout, d]
        at = layouts.table[layout, d, spaces.rank[c, a] if a >= 0 else 0] + (coords[a] if a >= 0 else 0)
        lo[d], hi[d] = layouts.lo[at], layouts.hi[at]
        volume *= hi[d] - lo[d]
    return volume, base


def sources_by_level(p, made, c, partial, copies, spaces, layouts, links, room):  # type: ignore[no-untyped-def]
    """The distances from which processor p gets the box lo to hi, which it reads: by distance d, met[d] elements in
    hops[d] pieces.

    Of copies the nearest is taken; of summands (`partial`) each.
    """
    lo, hi, first, last, index, stride, met, hops = room.scratch
    dims, far = layouts.dims[made], len(links.group) + 1
    blocks_meeting(made, c, lo, hi, spaces, layouts, first, last)
    for level in range(far + 1):
        met[level], hops[level] = 0.0, 0.0
    for d in range(dims):
        index[d] = first[d]
    while True:
        part, common, near = 0, 1.0, far
        for d in range(dims):
            a = layouts.axis[made, d]
            at = layouts.table[made, d, spaces.rank[c, a] if a >= 0 else 0] + index[d]
            common *= max(0, min(hi[d], layouts.hi[at]) - max(lo[d], layouts.lo[at]))
            part += index[d] * stride[d] if a >= 0 else 0
        for n in range(copies):
            there = distance_to_part(p, c, part + room.offsets[n], spaces, links)
            if partial:
                met[there] += common
                hops[there] += 1
            elif there < near:
                near = there
            if not partial and near == 0:
                break
        if not partial:
            met[near] += common
            hops[near] += 1
        d = dims - 1
        while d >= 0 and index[d] == last[d]:
            index[d] = first[d]
            d -= 1
        if d < 0:
            return
        index[d] += 1


def price(made, c, how, read, r, itemsize, axes, spaces, layouts, links, room):  # type: ignore[no-untyped-def]
    """Seconds of the transfer from layout `made` under Config c to layout `read` under Config r; negative, by as much,
    where the senders have to pack it first.

    how    FETCHED; SUMMED where parts that lie alike are summands; JOINED where such sums may share a bucket with
           others; ADDED where summands of other passes, elsewhere, are added to these; MIXED where some of all these
           are copies
    axes   how many axes the spaces of the two have

    It is a collective over one group of processors where all hold and all need alike (`special`), one broadcast where
    one holds what all read (`is_cast`), or pieces that go from each holder to each reader. The slowest reader counts,
    or, where few holders serve many readers, what a holder sends to all of them.
    """
    partial = how > FETCHED
    special = how < MIXED and spaces.proc_set[c] == spaces.proc_set[r] and spaces.replicas[c] == 1
    lo, hi, _, _, index, stride, met, hops = room.scratch
    copies = parts_alike(made, c, axes[0], spaces, layouts, room.offsets)
    twins = parts_alike(read, r, axes[1], spaces, layouts, room.others)
    for d in range(layouts.dims[made]):
        a = layouts.axis[made, d]
        stride[d] = 1
        for other in range(a + 1 if a >= 0 else axes[0], axes[0]):
            stride[d] *= spaces.degree[c, other]
    num_readers = spaces.parts[r] * spaces.replicas[r]
    num_seen = min(num_readers, MOST_READERS)
    worst, arrived, reduced, is_packed = 0.0, 0.0, 0.0, False
    # One broadcast where one alone holds what all read; a reduction where readers are among those who add.
    is_cast = not partial and num_readers * copies <= twins * spaces.replicas[r] * spaces.parts[c]
    is_reduced = partial and how < MIXED and spaces.replicas[c] == 1 and not special
    for s in range(num_seen):
        task = s * (num_readers - 1) // max(num_seen - 1, 1)
        p = spaces.procs[spaces.proc_ptr[r] + task]
        volume, base = box_of_part(task // spaces.replicas[r], read, r, axes[1], spaces, layouts, index, lo, hi)
        if volume <= 0:
            continue
        sources_by_level(p, made, c, partial, copies, spaces, layouts, links, room)
        pieces = hops[: len(links.group) + 2].sum()
        # No collective sums boxes beside each other into one; a gather brings all of it to those who made it.
        is_alone = is_cast or twins * spaces.replicas[r] == 1
        special = special and (pieces <= copies if partial else is_alone or takes_all(made, c, spaces, layouts, room))
        is_cast = is_cast and pieces <= 1
        is_reduced = is_reduced and pieces <= copies and (met[0] > 0 or how == ADDED)
        if is_reduced:
            seconds = links.task * packing_kernels(made, c, pieces, partial, True, spaces, layouts, room)[0]
            reduced = max(reduced, seconds + reduce_seconds(volume * itemsize, met, volume, copies, copies, 0.0, links))
        if partial and special:
            bucket = links.bucket if how == JOINED else 0.0
            seconds = reduce_seconds(volume * itemsize, met, volume, copies, twins * spaces.replicas[r], bucket, links)
        else:
            alike = twins if special or is_cast else 0
            seconds = fetch_seconds(p, r, base, alike, met, hops, itemsize, spaces, links, room)
        if seconds > 0:
            tasks, packs = packing_kernels(made, c, pieces, partial, special, spaces, layouts, room)
            seconds, is_packed = seconds + links.task * tasks, is_packed or packs > 0
        worst, arrived = max(worst, seconds), arrived + seconds / num_seen
    # Few holders send to many readers one after the other, unless all get the same. Without a collective the pieces
    # of a sum come from one summand after the other.
    holders = spaces.parts[c] // (1 if special or not partial else copies) * (1 if partial else spaces.replicas[c])
    sent = arrived * num_readers / max(holders, 1) / (twins * spaces.replicas[r] if special or is_cast else 1)
    worst = min(max(worst, sent), reduced if is_reduced else np.inf)
    return -worst if is_packed else worst


def takes_all(made, c, spaces, layouts, room):  # type: ignore[no-untyped-def]
    """Whether a reader takes all of each box of which `sources_by_level` found something, and has made one of them
    itself.
    """
    lo, hi, first, last, _, _, met, _ = room.scratch
    for d in range(layouts.dims[made]):
        a = layouts.axis[made, d]
        at = layouts.table[made, d, spaces.rank[c, a] if a >= 0 else 0]
        if lo[d] > layouts.lo[at + first[d]] or hi[d] < layouts.hi[at + last[d]]:
            return False
    return met[0] > 0


def packing_kernels(made, c, pieces, partial, special, spaces, layouts, room):  # type: ignore[no-untyped-def]
    """(kernels beside the transfer itself, how many of these pack): boxes that are not contiguous are packed before
    they are sent, and unpacked or added up where they arrive, unless a collective puts them where they belong.
    """
    lo, hi, first, _, _, _, _, _ = room.scratch
    is_whole, inner_made, inner_read, packed, unpacked = True, True, True, 0, 0
    for d in range(layouts.dims[made] - 1, -1, -1):
        a = layouts.axis[made, d]
        at = layouts.table[made, d, spaces.rank[c, a] if a >= 0 else 0] + (first[d] if a >= 0 else 0)
        extent = min(hi[d], layouts.hi[at]) - max(lo[d], layouts.lo[at])
        # Elements lie in one run if all dims inside the one that is cut are whole, and those outside have length 1.
        if extent > 1:
            packed, unpacked = max(packed, int(not inner_made)), max(unpacked, int(not inner_read))
        inner_made = inner_made and extent == layouts.hi[at] - layouts.lo[at]
        inner_read = inner_read and extent == hi[d] - lo[d]
        is_whole = is_whole and extent == hi[d] - lo[d]
    if is_whole and (pieces <= 1 or (partial and special)):
        return packed, packed
    return packed + (unpacked if special and not partial else 1), packed


def reduce_seconds(nbytes, met, volume, copies, readers, bucket, links):  # type: ignore[no-untyped-def]
    """Seconds until a reader has its sum: pieces of it are summed, and gathered where several read the same.

    The faster of two ways: level by level, where a group's sum crosses the next level once, spread over the group's
    members; or in a ring through all processors, which uses all levels at once. A sum that all its summands read, of
    fewer bytes than a bucket, has its share of the bucket's latency.
    """
    share = min(readers, copies)
    part = nbytes / bucket if share == copies and nbytes < bucket else 1.0
    span, rounds = nbytes * copies / share, 1 + (share - 1) / max(copies - 1, 1)
    here, apart_seconds, ring_steps, ring_seconds = max(1.0, met[0] / volume), 0.0, 0.0, 0.0
    for level in range(len(links.group)):
        more = met[level + 1] / volume
        if more <= 0:
            continue
        groups = (here + more) / here
        crossing = rounds * (groups - 1) / groups * span / here
        steps = rounds * (groups - 1)
        ring_steps += part * steps * copies / (here + more) * links.latency[level]
        ring_seconds = max(ring_seconds, rounds * (copies - 1) / copies * span / here * links.per_byte[level])
        if links.has_trees:
            # A tree is gone up and down again; a sum that is only scattered takes as long.
            steps = min(steps, 2 * np.ceil(np.log2(groups)) * (1.0 if share == copies else rounds))
        apart_seconds += crossing * links.per_byte[level] + part * steps * links.latency[level]
        here += more
    return min(apart_seconds, ring_steps + ring_seconds)


def fetch_seconds(p, r, base, twins, met, hops, itemsize, spaces, links, room):  # type: ignore[no-untyped-def]
    """Seconds in which a reader gets what others hold. The `twins`, readers of the same box, fetch it once for each
    group of processors, and pass it on within.
    """
    seconds, replicas = 0.0, spaces.replicas[r]
    for level in range(len(links.group)):
        nbytes = met[level + 1] * itemsize
        if nbytes <= 0:
            continue
        together = 1
        if level > 0 and twins * replicas > 1:
            together = 0
            for n in range(twins):
                begin = spaces.proc_ptr[r] + (base + room.others[n]) * replicas
                for at in range(begin, begin + replicas):
                    together += links.group[level - 1, spaces.procs[at]] == links.group[level - 1, p]
            together = max(together, 1)
            seconds += nbytes * (together - 1) / together * links.per_byte[level - 1]
        # Along a tree, in which each hop doubles the number of processors that are reached.
        doublings, reached = 0.0, 1.0
        while reached < 1 + hops[level + 1]:
            doublings, reached = doublings + 1, 2 * reached
        steps = min(hops[level + 1], 2 * doublings)
        seconds += nbytes / together * links.per_byte[level] + steps * links.latency[level]
    return seconds


def transfer_seconds(made, c, how, read, r, itemsize, axes, spaces, layouts, links, prices, room):  # type: ignore[no-untyped-def]
    """`price` of a transfer, cached for all whose two sides have the same patterns. Both sides have `contents`."""
    begin, end = index(layouts.base[made] + c), index(layouts.base[read] + r)
    ends = (prices.pattern[begin] << NUMBER_BITS) + prices.pattern[end]
    key = (itemsize * NUM_HOWS + how << 2 * NUMBER_BITS) + ends
    slot = slot_of(key, prices.keys)
    if prices.keys[slot] == 0:
        prices.values[slot] = price(made, c, how, read, r, itemsize, axes, spaces, layouts, links, room)
        prices.keys[slot] = key
        room.entries[0] += 1
    return prices.values[slot]


def summands(layout, c, kind_axes, spaces, layouts):  # type: ignore[no-untyped-def]
    """How many parts are summed where parts have the same box: the product of the degrees of axes that cut no dim."""
    count = 1
    for a in range(kind_axes):
        if not layouts.bears[layout, a]:
            count *= spaces.degree[c, a]
    return count


INLINED = (distance, distance_to_part)
PARTS = (
    price, parts_alike, blocks_meeting, box_of_part, sources_by_level, takes_all, packing_kernels, reduce_seconds,
    fetch_seconds, transfer_seconds, summands,
)  # fmt: skip
