"""Sliding sums of products over images, in compiled loops: weights meet padded copies of images.

It knows no gradient: what is copied, with which weights it meets and where sums go is told by tables. Nothing is
unfolded. Copies hold the samples of one channel side by side, an image's rows following each other with the padding
between them shared. Where windows move by more than one element every such step begins a copy of its own, so that
neighbouring windows always see neighbouring elements (the phases of a polyphase filter). A window's element is then a
distance within the copy, and a sum over places is a product of a few weights with vectors that begin there.
"""

import numpy as np

from castile.kernels.numpy.jit import compiled, inlined
from castile.kernels.numpy.lanes import add_rows, after, copy_rows, fill, pointer
from castile.kernels.numpy.tiles import ROWS, inner, product

# Places whose sums lie in the first-level cache until they go where they belong, and elements from channel to channel.
PLACES, PLACES_STEP = 480, 496

# Elements of windows that are multiplied at once with ROWS channels.
TAPS = 3

# Fewer channels than this at the end are worked on alone.
_FEW = 3

_full3, _full2, _full1 = product(ROWS, 3), product(ROWS, 2), product(ROWS, 1)
_lone3, _lone2, _lone1 = product(1, 3), product(1, 2), product(1, 1)
_inner3, _inner1 = inner(ROWS, 3), inner(ROWS, 1)
_lone_inner3, _lone_inner1 = inner(1, 3), inner(1, 1)


@compiled
def pack(packed, w, step, table, num, channels, run):  # type: ignore[no-untyped-def]
    """Weights of ROWS channels side by side: w[channel * step + table[k]] for each of num k; few channels alone.

    run   so many k are taken of all channels before the next, because they lie together
    """
    to, source, places = pointer(packed), pointer(w), pointer(table)
    for start in range(0, num, run):
        stop = min(num, start + run)
        for first in range(0, channels, ROWS):
            rest, block, seen = channels - first, after(to, first * num), after(source, first * step)
            if rest >= ROWS:
                for k in range(start, stop):
                    for m in range(ROWS):
                        block[k * ROWS + m] = seen[places[k] + m * step]
            elif rest >= _FEW:
                for k in range(start, stop):
                    for m in range(ROWS):
                        block[k * ROWS + m] = seen[places[k] + m * step] if m < rest else 0
            else:
                for m in range(rest):
                    for k in range(start, stop):
                        block[m * num + k] = seen[places[k] + m * step]


@compiled
def _load(held, step, x, steps, size, num, before, stride, phases, grid):  # type: ignore[no-untyped-def]
    """held[c, phase, n, h, w] of num samples [c, row, column], zero where there is no image."""
    image = grid[0] * grid[1]
    to = held
    for c, p in np.ndindex(size[0], phases.shape[0]):
        row, col = phases[p, 0], phases[p, 1]
        place = to
        for n in range(num):
            source = after(x, n * steps[0] + c * steps[1])
            if stride[0] == 1 and stride[1] == 1:
                _place_rows(place, source, steps[2], size, before, grid)
            else:
                _place_phase(place, source, steps[2], size, before, stride, grid, row, col)
            place = after(place, image)
        fill(place, 0, step - num * image)
        to = after(to, step)


@inlined
def _place_rows(to, x, row_step, size, before, grid):  # type: ignore[no-untyped-def]
    rows, cols, width = size[1], size[2], grid[1]
    start = before[0] * width + before[1]
    fill(to, 0, start)
    copy_rows(after(to, start), width, x, row_step, rows, cols)
    gap = width - cols
    for h in range(rows - 1):
        fill(after(to, start + h * width + cols), 0, gap)
    end = start + (rows - 1) * width + cols
    fill(after(to, end), 0, grid[0] * width - end)


@inlined
def _place_phase(to, x, row_step, size, before, stride, grid, row, col):  # type: ignore[no-untyped-def]
    low = min(grid[1], max(0, -((col - before[1]) // stride[1])))
    high = min(grid[1], max(low, (size[2] - 1 + before[1] - col) // stride[1] + 1))
    for h in range(grid[0]):
        line, seen = after(to, h * grid[1]), h * stride[0] + row - before[0]
        if seen < 0 or seen >= size[1]:
            fill(line, 0, grid[1])
            continue
        source = after(x, seen * row_step + col - before[1])
        fill(line, 0, low)
        for w in range(low, high):
            line[w] = source[w * stride[1]]
        fill(after(line, high), 0, grid[1] - high)


@compiled
def correlate(  # type: ignore[no-untyped-def]
    out, out_steps, x, steps, size, batch, samples, before, stride, phases, grid,
    held, step, packed, plane, offsets, goals, channels, adds, lanes,
):  # fmt: skip
    """Sums of every goal for all samples, `samples` at once.

    goals[p]    number of k, where their offsets and where their weights begin, where in out the first place lies, rows
                and columns of places
    out_steps   from sample to sample, channel to channel, and of places from row to row and column to column
    """
    to, source, p_held, p_plane = pointer(out), pointer(x), pointer(held), pointer(plane)
    p_packed, p_offsets = pointer(packed), pointer(offsets)
    for first in range(0, batch, samples):
        num = min(samples, batch - first)
        _load(p_held, step, after(source, first * steps[0]), steps, size, num, before, stride, phases, grid)
        for p in range(goals.shape[0]):
            num_k, of_k, of_w = goals[p, 0], goals[p, 1], goals[p, 2]
            goal, rows, cols = goals[p, 3], goals[p, 4], goals[p, 5]
            places, w = after(p_offsets, of_k), after(p_packed, of_w)
            total = (rows - 1) * grid[1] + cols
            m = 0
            while m < channels:
                block = ROWS if channels - m >= _FEW else 1
                for n in range(num):
                    seen = after(p_held, n * grid[0] * grid[1])
                    target = after(to, goal + (first + n) * out_steps[0] + m * out_steps[1])
                    for low in range(0, total, PLACES):
                        high = min(total, low + PLACES)
                        vectors = (high - low + lanes - 1) // lanes
                        _sums(p_plane, after(seen, low), places, w, num_k, block, vectors, lanes)
                        _bring(target, out_steps, p_plane, min(block, channels - m), low, high, grid[1], cols, adds)
                w = after(w, num_k * block)
                m += block


@inlined
def _sums(plane, x, places, w, num_k, block, vectors, lanes):  # type: ignore[no-untyped-def]
    for v in range(0, vectors, 3):
        rest = vectors - v
        to, seen = after(plane, v * lanes), after(x, v * lanes)
        if block == 1:
            if rest >= 3:
                _lone3(to, PLACES_STEP, seen, places, w, num_k)
            elif rest == 2:
                _lone2(to, PLACES_STEP, seen, places, w, num_k)
            else:
                _lone1(to, PLACES_STEP, seen, places, w, num_k)
        elif rest >= 3:
            _full3(to, PLACES_STEP, seen, places, w, num_k)
        elif rest == 2:
            _full2(to, PLACES_STEP, seen, places, w, num_k)
        else:
            _full1(to, PLACES_STEP, seen, places, w, num_k)


@compiled
def _bring(to, steps, plane, channels, low, high, width, cols, adds):  # type: ignore[no-untyped-def]
    """The places from low to high of a few channels, where width - cols of each row are none, to where they belong."""
    top, bottom = low // width, (high - 1) // width
    for m in range(channels):
        line, sums = after(to, m * steps[1]), after(plane, m * PLACES_STEP)
        row = top
        while row <= bottom:
            left, right = max(low, row * width), min(high, row * width + cols)
            num = 1
            if left == row * width and right - left == cols and steps[3] == 1:
                num = max(1, (high - cols) // width - row + 1)
            target, source = after(line, row * steps[2] + (left - row * width) * steps[3]), after(sums, left - low)
            if right > left:
                _bring_rows(target, steps[2], steps[3], source, width, num, right - left, adds)
            row += num


@inlined
def _bring_rows(to, row_step, step, x, width, rows, cols, adds):  # type: ignore[no-untyped-def]
    if step != 1:
        for j in range(cols):
            to[j * step] = to[j * step] + x[j] if adds else x[j]
    elif adds:
        add_rows(to, row_step, x, width, rows, cols)
    else:
        copy_rows(to, row_step, x, width, rows, cols)


@compiled
def slopes(  # type: ignore[no-untyped-def]
    out, out_step, table, x, steps, size, dy, dy_steps, dy_size, batch, samples, before, stride, phases, grid,
    held, step, slope, slope_step, offsets, sums, adds, lanes, last, span,
):  # fmt: skip
    """out[m * out_step + table[k]] as the sum over all places of dy's channel m times what k's offset sees there."""
    to, p_x, p_dy, p_table, p_sums = pointer(out), pointer(x), pointer(dy), pointer(table), pointer(sums)
    p_held, p_slope, p_offsets = pointer(held), pointer(slope), pointer(offsets)
    channels, num_k = dy_size[0], offsets.size
    for first in range(0, batch, samples):
        num = min(samples, batch - first)
        _load(p_held, step, after(p_x, first * steps[0]), steps, size, num, before, stride, phases, grid)
        _load(
            p_slope,
            slope_step,
            after(p_dy, first * dy_steps[0]),
            dy_steps,
            dy_size,
            num,
            (0, 0),
            (1, 1),
            phases[:1],
            grid,
        )
        vectors = ((num - 1) * grid[0] * grid[1] + last + lanes - 1) // lanes
        for low in range(0, vectors, span):
            few = min(span, vectors - low)
            later = adds or first > 0 or low > 0
            m = 0
            while m < channels:
                block = ROWS if channels - m >= ROWS else 1
                a = after(p_slope, m * slope_step + low * lanes)
                k = 0
                while k < num_k:
                    taps = TAPS if num_k - k >= TAPS else 1
                    fill(p_sums, 0, block * taps)
                    _inner(p_sums, a, slope_step, after(p_held, low * lanes), after(p_offsets, k), few, block, taps)
                    for i in range(block):
                        for j in range(taps):
                            place, value = (m + i) * out_step + p_table[k + j], p_sums[i * taps + j]
                            to[place] = to[place] + value if later else value
                    k += taps
                m += block


@inlined
def _inner(sums, a, step, x, offsets, vectors, block, taps):  # type: ignore[no-untyped-def]
    if block == 1:
        if taps == 1:
            _lone_inner1(sums, a, step, x, offsets, vectors)
        else:
            _lone_inner3(sums, a, step, x, offsets, vectors)
    elif taps == 1:
        _inner1(sums, a, step, x, offsets, vectors)
    else:
        _inner3(sums, a, step, x, offsets, vectors)
