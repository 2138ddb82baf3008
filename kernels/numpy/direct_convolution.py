"""Direct convolution in compiled loops: weights are multiplied with padded copies of images.

It knows no gradient: tables say what is copied, which weights it is multiplied with and where sums go. Nothing is
unfolded. Copies hold the samples of one channel next to each other, with an image's rows following each other and the
padding between them shared. Where windows have a stride, every phase of the stride has a copy of its own, so that
neighbouring windows always see neighbouring elements (the phases of a polyphase filter). A window's element is then an
offset within the copy, and a sum over places is a product of a few weights with vectors that begin at these offsets.
"""

import numpy as np

from castile.kernels.numpy.jit import compiled, inlined
from castile.kernels.numpy.pointers import add_rows, after, copy_rows, fill, pointer
from castile.kernels.numpy.tiles import ROWS, tile_inner_products, tile_product

# Places whose sums lie in the first-level cache until they go where they belong, and elements from channel to channel.
PLACES, PLACES_STEP = 480, 496

# Elements of windows that are multiplied at once with ROWS channels.
TAPS = 3

# Fewer channels than this at the end are worked on alone.
_FEW = 3

_full3, _full2, _full1 = tile_product(ROWS, 3), tile_product(ROWS, 2), tile_product(ROWS, 1)
_lone3, _lone2, _lone1 = tile_product(1, 3), tile_product(1, 2), tile_product(1, 1)
_inner3, _inner1 = tile_inner_products(ROWS, 3), tile_inner_products(ROWS, 1)
_lone_inner3, _lone_inner1 = tile_inner_products(1, 3), tile_inner_products(1, 1)


def packed_channels(channels: int) -> int:
    """For how many channels `pack` leaves room to so many."""
    return channels // ROWS * ROWS + (ROWS if channels % ROWS >= _FEW else channels % ROWS)


@compiled
def pack(packed, w, step, table, num, channels, run, groups, room, apart):  # type: ignore[no-untyped-def]
    """Weights of ROWS channels side by side: w[channel * step + table[k]] for each of num k; few channels alone.

    run          so many k are taken of all channels before the next, because they lie together
    room, apart  elements from one group of channels to the next, of what is packed and of w
    """
    places = pointer(table)
    for group, begin in np.ndindex(groups, (num + run - 1) // run):
        to, source = after(pointer(packed), group * room), after(pointer(w), group * apart)
        start, stop = begin * run, min(num, begin * run + run)
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
def _load(copies, memory, step, images, begin, first, num):  # type: ignore[no-untyped-def]
    """Copies of `num` samples from `first` on: memory[channel, phase, sample, row, column], zero where no image is.

    begin   where among the pixels the first channel lies
    """
    pixels, steps, size = images
    before, stride, phases, grid = copies
    to = pointer(memory)
    for c, p in np.ndindex(size[0], phases.shape[0]):
        place = to
        for n in range(first, first + num):
            source = after(pointer(pixels), begin + n * steps[0] + c * steps[1])
            if stride[0] == 1 and stride[1] == 1:
                _place_rows(place, grid, source, steps[2], size, before)
            else:
                _place_phase(place, grid, source, steps[2], size, before, stride, phases[p])
            place = after(place, grid[0] * grid[1])
        fill(place, 0, step - num * grid[0] * grid[1])
        to = after(to, step)


@inlined
def _place_rows(to, grid, x, row_step, size, before):  # type: ignore[no-untyped-def]
    rows, cols, width = size[1], size[2], grid[1]
    start = before[0] * width + before[1]
    fill(to, 0, start)
    copy_rows(after(to, start), width, x, row_step, rows, cols)
    for h in range(rows - 1):
        fill(after(to, start + h * width + cols), 0, width - cols)
    end = start + (rows - 1) * width + cols
    fill(after(to, end), 0, grid[0] * width - end)


@inlined
def _place_phase(to, grid, x, row_step, size, before, stride, phase):  # type: ignore[no-untyped-def]
    row, col = phase[0] - before[0], phase[1] - before[1]
    low = min(grid[1], max(0, -(col // stride[1])))
    high = min(grid[1], max(low, (size[2] - 1 - col) // stride[1] + 1))
    for h in range(grid[0]):
        line, seen = after(to, h * grid[1]), h * stride[0] + row
        if seen < 0 or seen >= size[1]:
            fill(line, 0, grid[1])
            continue
        source = after(x, seen * row_step + col)
        fill(line, 0, low)
        for w in range(low, high):
            line[w] = source[w * stride[1]]
        fill(after(line, high), 0, grid[1] - high)


@compiled
def correlate(  # type: ignore[no-untyped-def]
    out, out_steps, images, copies, held, step, samples, batch, packed, plane, offsets, goals, channels, groups, adds,
    lanes,
):  # fmt: skip
    """Sums of every goal for all of a batch's samples, `samples` at once.

    goals[p]    number of k, where their offsets and where their weights begin, where in out the first place lies, rows
                and columns of places
    out_steps   from sample to sample, channel to channel, and of places from row to row and column to column
    images      pixels, their steps from sample to sample, channel to channel and row to row, and an image's size
    copies      a `CopyLayout`: zeros before rows and columns, strides, phases, rows and columns of a phase
    held        the copies, of which each channel's phases are `step` elements apart
    groups      how many of such channels there are, and elements from one to the next: of a k's weights, out and images
    """
    width, image = copies[3][1], copies[3][0] * copies[3][1]
    # places of small images are worked on together, with those between them that are none
    several = max(1, PLACES // image)
    for group, part in np.ndindex(groups[0], (batch + samples - 1) // samples):
        first = part * samples
        num = min(samples, batch - first)
        _load(copies, held, step, images, group * groups[3], first, num)
        for p in range(goals.shape[0]):
            num_k, of_k, of_w, goal, rows, cols = goals[p]
            places, w = after(pointer(offsets), of_k), after(pointer(packed), of_w + group * num_k * groups[1])
            sums_of_group = after(pointer(out), goal + group * groups[2])
            last = (rows - 1) * width + cols
            m = 0
            while m < channels:
                block = ROWS if channels - m >= _FEW else 1
                rest = min(block, channels - m)
                for n in range(0, num, several):
                    seen = after(pointer(held), n * image)
                    total = (min(several, num - n) - 1) * image + last
                    for low in range(0, total, PLACES):
                        high = min(total, low + PLACES)
                        vectors = (high - low + lanes - 1) // lanes
                        _sums(pointer(plane), after(seen, low), places, w, num_k, block, vectors, lanes)
                        for i in range(low // image, (high - 1) // image + 1):
                            target = after(sums_of_group, (first + n + i) * out_steps[0] + m * out_steps[1])
                            begin, end = max(low - i * image, 0), min(high - i * image, last)
                            sums = after(pointer(plane), begin + i * image - low)
                            _bring(target, out_steps, sums, rest, begin, end, width, cols, adds)
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
def weight_gradient(  # type: ignore[no-untyped-def]
    out, out_step, table, images, held, gradients, held_gradients, copies, step, samples, batch, offsets, sums, groups,
    adds, lanes, last, span,
):  # fmt: skip
    """out[m * out_step + table[k]] as the sum over all places of the gradients' channel m times what k's offset sees.

    Images, gradients and copies are given as to `correlate`, groups as there but of out, images and gradients;
    gradients are copied as they lie. An image has `last` places, those between its rows among them, and `span` vectors
    of places are multiplied at once.
    """
    image, whole = copies[3][0] * copies[3][1], ((0, 0), (1, 1), copies[2][:1], copies[3])
    p_table, p_sums, channels, num_k = pointer(table), pointer(sums), gradients[2][0], offsets.size
    for group, part in np.ndindex(groups[0], (batch + samples - 1) // samples):
        to, first = after(pointer(out), group * groups[1]), part * samples
        num = min(samples, batch - first)
        _load(copies, held, step, images, group * groups[2], first, num)
        _load(whole, held_gradients, step, gradients, group * groups[3], first, num)
        vectors = ((num - 1) * image + last + lanes - 1) // lanes
        for low in range(0, vectors, span):
            few = min(span, vectors - low)
            later = adds or first > 0 or low > 0
            seen = after(pointer(held), low * lanes)
            m = 0
            while m < channels:
                block = ROWS if channels - m >= ROWS else 1
                a = after(pointer(held_gradients), m * step + low * lanes)
                k = 0
                while k < num_k:
                    taps = TAPS if num_k - k >= TAPS else 1
                    fill(p_sums, 0, block * taps)
                    _inner(p_sums, a, step, seen, after(pointer(offsets), k), few, block, taps)
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
