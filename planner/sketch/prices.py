"""What a sketch's transfers take: from where the parts of one layout lie to where those of another are needed.

Compiled where it can be. It does not know tasks, nor which collective a transfer would be: it counts what crosses each
level of links on the way to some of the readers, as if sums and copies went through the nearest groups first.
"""

from __future__ import annotations

import numpy as np

# Readers that are looked at; layouts are regular, so that others fare like them.
MOST_READERS = 8
MOST_DIMS = 8
MASK = (1 << 42) - 1
FETCHED, SUMMED, JOINED, ADDED, MIXED = 0, 1, 2, 3, 4
NUM_HOWS = 5
# Keys of the table: hashes above one of these; for transfers two numbers of so many bits, a way and an item size.
PATTERN, CONTENT = 1 << 61, 1 << 62
NUMBER_BITS = 26


def index(number):  # type: ignore[no-untyped-def]
    """A number that is not negative; an unsigned one in what is compiled.

    Arrays that are asked with signed numbers look each time whether they count from the end: a third of a sweep.
    """
    return number


def hashed(state, value):  # type: ignore[no-untyped-def]
    """A hash, of 42 bits, of a number below 2**42 after others."""
    state = ((state ^ value) * 1000003 + 7) & MASK
    return state ^ (state >> 19)


def content(layout, c, kind_axes, spaces, layouts, coords):  # type: ignore[no-untyped-def]
    """A hash of which processor holds which box."""
    found, replicas, begin = 1, spaces.replicas[c], spaces.proc_ptr[c]
    for a in range(kind_axes):
        coords[a] = 0
    for part in range(spaces.parts[c]):
        box = 17
        for d in range(layouts.dims[layout]):
            a = layouts.axis[layout, d]
            at = layouts.table[layout, d, spaces.rank[c, a] if a >= 0 else 0] + (coords[a] if a >= 0 else 0)
            box = hashed(hashed(box, layouts.lo[at]), layouts.hi[at])
        for at in range(begin + part * replicas, begin + (part + 1) * replicas):
            # A sum: the order of parts does not matter.
            found = (found + hashed(box, spaces.procs[at] + 1)) & MASK
        a = kind_axes - 1
        while a >= 0 and coords[a] == spaces.degree[c, a] - 1:
            coords[a] = 0
            a -= 1
        if a >= 0:
            coords[a] += 1
    return found


def pattern(layout, c, kind_axes, spaces, layouts):  # type: ignore[no-untyped-def]
    """A hash of all that `price` looks at of a layout under a Config: blocks and parts in their order, and holders."""
    found = hashed(spaces.replicas[c], layouts.dims[layout])
    for d in range(layouts.dims[layout]):
        a = layouts.axis[layout, d]
        degree = spaces.degree[c, a] if a >= 0 else 1
        first = layouts.table[layout, d, spaces.rank[c, a] if a >= 0 else 0]
        found = hashed(found, degree)
        for at in range(first, first + degree):
            found = hashed(hashed(found, layouts.lo[at]), layouts.hi[at])
    for a in range(kind_axes):
        degree = spaces.degree[c, a]
        if degree > 1:
            traits = 2 * degree + layouts.bears[layout, a]
            for d in range(layouts.dims[layout]):
                traits = 2 * traits + (layouts.axis[layout, d] == a)
            found = hashed(found, traits)
    for at in range(spaces.proc_ptr[c], spaces.proc_ptr[c + 1]):
        found = hashed(found, spaces.procs[at])
    return found


def alike(layout, c, kind_axes, spaces, layouts, out):  # type: ignore[no-untyped-def]
    """How many parts hold each box; out: how far on they are, in numbers of parts."""
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


def apart(p, q, links):  # type: ignore[no-untyped-def]
    """0 on one processor, else 1 + the level that joins them."""
    if p == q:
        return 0
    for level in range(len(links.group)):
        if links.group[level, p] == links.group[level, q]:
            return level + 1
    return len(links.group)


def nearest(p, c, part, spaces, links):  # type: ignore[no-untyped-def]
    """How far the nearest replica of a part is."""
    begin = spaces.proc_ptr[c] + part * spaces.replicas[c]
    found = len(links.group) + 1
    for at in range(begin, begin + spaces.replicas[c]):
        found = min(found, apart(p, spaces.procs[at], links))
    return found


def reach(layout, c, lo, hi, spaces, layouts, first, last):  # type: ignore[no-untyped-def]
    """first, last: of each dim the blocks that meet lo to hi."""
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


def spot(part, layout, c, num_axes, spaces, layouts, coords, lo, hi):  # type: ignore[no-untyped-def]
    """Where a part lies, lo to hi: its volume, and the first part that lies alike."""
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


def meet(p, made, c, partial, copies, spaces, layouts, links, room):  # type: ignore[no-untyped-def]
    """met, hops: of what processor p reads, how much lies how far away, in how many pieces; of copies the nearest."""
    lo, hi, first, last, index, stride, met, hops = room.scratch
    dims, far = layouts.dims[made], len(links.group) + 1
    reach(made, c, lo, hi, spaces, layouts, first, last)
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
            there = nearest(p, c, part + room.offsets[n], spaces, links)
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
    """Seconds of the transfer from layout `made` under Config c to layout `read` under Config r.

    how    FETCHED, SUMMED where parts that lie alike are to be summed, JOINED where sums may go together with others,
           ADDED where others elsewhere are added to these too, MIXED where some of all these are copies
    axes   how many axes the spaces of the two have
    A collective goes over one group of processors; else pieces go from each holder to each reader by themselves. Less
    than nothing, by as much, where those who send have to pack it.
    """
    partial, special = how > FETCHED, how < MIXED and spaces.crowd[c] == spaces.crowd[r] and spaces.replicas[c] == 1
    lo, hi, _, _, index, stride, met, hops = room.scratch
    copies = alike(made, c, axes[0], spaces, layouts, room.offsets)
    twins = alike(read, r, axes[1], spaces, layouts, room.others)
    for d in range(layouts.dims[made]):
        a = layouts.axis[made, d]
        stride[d] = 1
        for other in range(a + 1 if a >= 0 else axes[0], axes[0]):
            stride[d] *= spaces.degree[c, other]
    num_readers = spaces.parts[r] * spaces.replicas[r]
    num_seen = min(num_readers, MOST_READERS)
    worst, arrived, reduced, is_packed = 0.0, 0.0, 0.0, False
    # What one alone holds and all read goes to them in one broadcast; a sum that some of those who add read all make.
    is_cast = not partial and num_readers * copies <= twins * spaces.replicas[r] * spaces.parts[c]
    is_reduced = partial and how < MIXED and spaces.replicas[c] == 1 and not special
    for s in range(num_seen):
        task = s * (num_readers - 1) // max(num_seen - 1, 1)
        p = spaces.procs[spaces.proc_ptr[r] + task]
        volume, base = spot(task // spaces.replicas[r], read, r, axes[1], spaces, layouts, index, lo, hi)
        if volume <= 0:
            continue
        meet(p, made, c, partial, copies, spaces, layouts, links, room)
        pieces = hops[: len(links.group) + 2].sum()
        # No collective sums boxes beside each other into one; what several read those gather who made it, all of it.
        is_alone = is_cast or twins * spaces.replicas[r] == 1
        special = special and (pieces <= copies if partial else is_alone or is_all(made, c, spaces, layouts, room))
        is_cast = is_cast and pieces <= 1
        is_reduced = is_reduced and pieces <= copies and (met[0] > 0 or how == ADDED)
        if is_reduced:
            seconds = links.task * errands(made, c, pieces, partial, True, spaces, layouts, room)[0]
            reduced = max(reduced, seconds + summed(volume * itemsize, met, volume, copies, copies, 0.0, links))
        if partial and special:
            bucket = links.bucket if how == JOINED else 0.0
            seconds = summed(volume * itemsize, met, volume, copies, twins * spaces.replicas[r], bucket, links)
        else:
            seconds = fetched(p, r, base, twins if special or is_cast else 0, met, hops, itemsize, spaces, links, room)
        if seconds > 0:
            tasks, packs = errands(made, c, pieces, partial, special, spaces, layouts, room)
            seconds, is_packed = seconds + links.task * tasks, is_packed or packs > 0
        worst, arrived = max(worst, seconds), arrived + seconds / num_seen
    # What few hold and many need leaves those few one after the other, as far as it is not the same for all. The pieces
    # of a sum that no collective makes come from one of its summands after the other.
    holders = spaces.parts[c] // (1 if special or not partial else copies) * (1 if partial else spaces.replicas[c])
    sent = arrived * num_readers / max(holders, 1) / (twins * spaces.replicas[r] if special or is_cast else 1)
    worst = min(max(worst, sent), reduced if is_reduced else np.inf)
    return -worst if is_packed else worst


def is_all(made, c, spaces, layouts, room):  # type: ignore[no-untyped-def]
    """Whether a reader takes all of each box of which `meet` found something, and has made one of them."""
    lo, hi, first, last, _, _, met, _ = room.scratch
    for d in range(layouts.dims[made]):
        a = layouts.axis[made, d]
        at = layouts.table[made, d, spaces.rank[c, a] if a >= 0 else 0]
        if lo[d] > layouts.lo[at + first[d]] or hi[d] < layouts.hi[at + last[d]]:
            return False
    return met[0] > 0


def errands(made, c, pieces, partial, special, spaces, layouts, room):  # type: ignore[no-untyped-def]
    """How many kernels pack what a reader is sent, and unpack or add up the pieces that it gets, as far as these are no
    run of elements, and no collective puts them where they belong; and how many of them pack.
    """
    lo, hi, first, _, _, _, _, _ = room.scratch
    is_whole, inner_made, inner_read, packed, unpacked = True, True, True, 0, 0
    for d in range(layouts.dims[made] - 1, -1, -1):
        a = layouts.axis[made, d]
        at = layouts.table[made, d, spaces.rank[c, a] if a >= 0 else 0] + (first[d] if a >= 0 else 0)
        extent = min(hi[d], layouts.hi[at]) - max(lo[d], layouts.lo[at])
        # In one run all dims within one that is cut are whole, and those around it have one place.
        if extent > 1:
            packed, unpacked = max(packed, int(not inner_made)), max(unpacked, int(not inner_read))
        inner_made = inner_made and extent == layouts.hi[at] - layouts.lo[at]
        inner_read = inner_read and extent == hi[d] - lo[d]
        is_whole = is_whole and extent == hi[d] - lo[d]
    if is_whole and (pieces <= 1 or (partial and special)):
        return packed, packed
    return packed + (unpacked if special and not partial else 1), packed


def summed(nbytes, met, volume, copies, readers, bucket, links):  # type: ignore[no-untyped-def]
    """Seconds in which a reader of a sum gets it: pieces of it are summed, and gathered where several read the same.

    Level by level, where the sum of a group crosses the next level once, spread over the group's members; or round a
    ring through all of them, which is at work on all levels at once. Sums that all read share the latency of a bucket
    of so many bytes, of which each has its part.
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
            # Up a tree and down again; what is only scattered takes as long.
            steps = min(steps, 2 * np.ceil(np.log2(groups)) * (1.0 if share == copies else rounds))
        apart_seconds += crossing * links.per_byte[level] + part * steps * links.latency[level]
        here += more
    return min(apart_seconds, ring_steps + ring_seconds)


def fetched(p, r, base, twins, met, hops, itemsize, spaces, links, room):  # type: ignore[no-untyped-def]
    """Seconds in which a reader gets what others hold; so many `twins` of a group fetch it once for all of them."""
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
        # Up a tree, in which those that are reached double.
        doublings, reached = 0.0, 1.0
        while reached < 1 + hops[level + 1]:
            doublings, reached = doublings + 1, 2 * reached
        steps = min(hops[level + 1], 2 * doublings)
        seconds += nbytes / together * links.per_byte[level] + steps * links.latency[level]
    return seconds


def slot_of(key, keys):  # type: ignore[no-untyped-def]
    """Where a key is in the table, or is to be put."""
    slot = index(hashed(hashed(1, key & MASK), key >> 42) & (len(keys) - 1))
    while keys[slot] != 0 and keys[slot] != key:
        slot = index((slot + 1) & (len(keys) - 1))
    return slot


def first_of(key, number, prices, room):  # type: ignore[no-untyped-def]
    """The number under which a key was met first: this one, where it is new."""
    slot = slot_of(key, prices.keys)
    if prices.keys[slot] == 0:
        prices.keys[slot], prices.values[slot] = key, number
        room.entries[0] += 1
    return int(prices.values[slot])


def placed(layout, c, kind_axes, spaces, layouts, prices, room):  # type: ignore[no-untyped-def]
    """Find the first entry whose every part lies as those of a layout under a Config, and the first whose all do."""
    at = layouts.base[layout] + c
    first = first_of(PATTERN | pattern(layout, c, kind_axes, spaces, layouts), at + 1, prices, room)
    prices.pattern[at] = first
    if first == at + 1:
        key = CONTENT | content(layout, c, kind_axes, spaces, layouts, room.scratch[4])
        prices.content[at] = first_of(key, first, prices, room)
    else:
        prices.content[at] = prices.content[first - 1]


def contents(layout, c, kind_axes, spaces, layouts, prices, room):  # type: ignore[no-untyped-def]
    """A number, equal where the same processors hold the same boxes, found once."""
    at = index(layouts.base[layout] + c)
    if prices.content[at] == 0:
        placed(layout, c, kind_axes, spaces, layouts, prices, room)
    return prices.content[at]


def move(made, c, how, read, r, itemsize, axes, spaces, layouts, links, prices, room):  # type: ignore[no-untyped-def]
    """Seconds of a transfer between what `contents` was asked for, found once for all that lie alike."""
    begin, end = index(layouts.base[made] + c), index(layouts.base[read] + r)
    ends = (prices.pattern[begin] << NUMBER_BITS) + prices.pattern[end]
    key = (itemsize * NUM_HOWS + how << 2 * NUMBER_BITS) + ends
    slot = slot_of(key, prices.keys)
    if prices.keys[slot] == 0:
        prices.values[slot] = price(made, c, how, read, r, itemsize, axes, spaces, layouts, links, room)
        prices.keys[slot] = key
        room.entries[0] += 1
    return prices.values[slot]


def rehashed(old_keys, old_values, keys, values):  # type: ignore[no-untyped-def]
    """Put a table's entries into another."""
    for k in range(len(old_keys)):
        slot = slot_of(old_keys[k], keys)
        keys[slot], values[slot] = old_keys[k], old_values[k]


def summands(layout, c, kind_axes, spaces, layouts):  # type: ignore[no-untyped-def]
    """How many parts are to be summed where parts lie alike."""
    count = 1
    for a in range(kind_axes):
        if not layouts.bears[layout, a]:
            count *= spaces.degree[c, a]
    return count


# What takes a few instructions is put in where it is called; to compile what is longer there takes longer than a call.
INLINED = (hashed, apart, nearest, slot_of, first_of, contents)
PARTS = (price, placed, content, pattern, alike, reach, spot, meet, is_all, errands, summed, fetched, move, summands)
