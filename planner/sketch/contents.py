"""Contents: numbers of layouts under Configs, equal where the same processors hold the same boxes.

They are found by hashes, in the hash table that also holds the seconds of transfers. Compiled where numba is installed.
Terms and arrays are those of `arrays`. It does not know what transfers cost.
"""

from __future__ import annotations

MASK = (1 << 42) - 1
# Keys of the table are hashes above one of these; those of transfers are below.
PATTERN, CONTENT = 1 << 61, 1 << 62


def index(number):  # type: ignore[no-untyped-def]
    """A non-negative number as an index; unsigned in compiled code.

    With a signed index compiled code tests whether it counts from the end, which takes a third of a sweep.
    """
    return number


def hashed(state, value):  # type: ignore[no-untyped-def]
    """The 42-bit hash `state` of earlier numbers, extended by a number below 2**42."""
    state = ((state ^ value) * 1000003 + 7) & MASK
    return state ^ (state >> 19)


def content(layout, c, kind_axes, spaces, layouts, coords):  # type: ignore[no-untyped-def]
    """A hash of the pairs of a processor and the box that it holds of a layout under Config c, in any order."""
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
            # A sum does not depend on the order of parts.
            found = (found + hashed(box, spaces.procs[at] + 1)) & MASK
        a = kind_axes - 1
        while a >= 0 and coords[a] == spaces.degree[c, a] - 1:
            coords[a] = 0
            a -= 1
        if a >= 0:
            coords[a] += 1
    return found


def pattern(layout, c, kind_axes, spaces, layouts):  # type: ignore[no-untyped-def]
    """A hash of all that transfers depend on in a layout under a Config: blocks and parts in order, and processors."""
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


def slot_of(key, keys):  # type: ignore[no-untyped-def]
    """The slot of a key in the hash table, or the free slot for it."""
    slot = index(hashed(hashed(1, key & MASK), key >> 42) & (len(keys) - 1))
    while keys[slot] != 0 and keys[slot] != key:
        slot = index((slot + 1) & (len(keys) - 1))
    return slot


def first_under(key, number, prices, room):  # type: ignore[no-untyped-def]
    """The number stored under a key; this number is stored where the key is new."""
    slot = slot_of(key, prices.keys)
    if prices.keys[slot] == 0:
        prices.keys[slot], prices.values[slot] = key, number
        room.entries[0] += 1
    return int(prices.values[slot])


def identify(layout, c, kind_axes, spaces, layouts, prices, room):  # type: ignore[no-untyped-def]
    """Find `Prices.pattern` and `Prices.content` of a layout under a Config: the first places with equal hashes."""
    at = layouts.base[layout] + c
    first = first_under(PATTERN | pattern(layout, c, kind_axes, spaces, layouts), at + 1, prices, room)
    prices.pattern[at] = first
    if first == at + 1:
        key = CONTENT | content(layout, c, kind_axes, spaces, layouts, room.scratch[4])
        prices.content[at] = first_under(key, first, prices, room)
    else:
        prices.content[at] = prices.content[first - 1]


def contents(layout, c, kind_axes, spaces, layouts, prices, room):  # type: ignore[no-untyped-def]
    """The content of a layout under a Config, a number: equal where the same processors hold the same boxes."""
    at = index(layouts.base[layout] + c)
    if prices.content[at] == 0:
        identify(layout, c, kind_axes, spaces, layouts, prices, room)
    return prices.content[at]


def rehashed(old_keys, old_values, keys, values):  # type: ignore[no-untyped-def]
    """Insert the entries of a hash table into a larger one."""
    for k in range(len(old_keys)):
        slot = slot_of(old_keys[k], keys)
        keys[slot], values[slot] = old_keys[k], old_values[k]


# Functions of a few instructions are inlined; inlining longer ones takes more time to compile than it saves.
INLINED = (hashed, slot_of, first_under, contents)
PARTS = (identify, content, pattern)
