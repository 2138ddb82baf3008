"""Ranks that are threads of one process, on as many hosts as a test says. Knows no test."""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from itertools import accumulate

from castile.runtime.comm import base


class Post:
    """A request that is done once its message has come."""

    def __init__(self, box=None, array=None):
        self.box, self.array = box, array

    def poll(self):
        if self.box is not None:
            try:
                self.array[:] = self.box.get_nowait()
            except queue.Empty:
                return False
            self.box = None
        return True


class Ranks:
    """`size` ranks of one host, or of hosts with so many each."""

    def __init__(self, size: int, host_sizes: Sequence[int] = ()):
        self.host_sizes = tuple(host_sizes) or (size,)
        assert sum(self.host_sizes) == size
        self.near = [Ranks(each) for each in self.host_sizes] if len(self.host_sizes) > 1 else [self]
        self.boxes = {(a, b): queue.Queue() for a in range(size) for b in range(size)}
        self.meeting = threading.Barrier(size)
        self.size = size
        self.words = [b""] * size

    def run(self, work):
        """What `work(end)` gives on each rank; one that raises raises here."""
        results, errors = [None] * self.size, []

        def rank(number):
            try:
                results[number] = work(End(self, number))
            except BaseException as error:
                errors.append(error)
                self.meeting.abort()

        threads = [threading.Thread(target=rank, args=(number,)) for number in range(self.size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        if errors:
            raise next((error for error in errors if not isinstance(error, threading.BrokenBarrierError)), errors[0])
        return results


class End(base.End):
    """A rank; see `Communicator` for what it tells. Messages have no tags: they come in the order in which they were
    sent."""

    def __init__(self, world, rank):
        self.world, self.rank, self.size, self.host_sizes = world, rank, world.size, world.host_sizes
        begins = list(accumulate(self.host_sizes, initial=0))
        self.host_index = next(n for n, end in enumerate(begins[1:]) if rank < end)
        self.local_rank, self.local_size = rank - begins[self.host_index], self.host_sizes[self.host_index]
        self.host, self.crowded = f"host {self.host_index}", False
        near = world.near[self.host_index]
        self.near = self if near is world else End(near, self.local_rank)

    def send(self, array, peer, tag):
        self.world.boxes[self.rank, peer].put(array.copy())
        return Post()

    def recv(self, array, peer, tag):
        return Post(self.world.boxes[peer, self.rank], array)

    def barrier(self):
        self.world.meeting.wait(60)

    def gather_bytes(self, data, root=0):
        self.world.words[self.rank] = data
        self.barrier()
        every = list(self.world.words)
        self.barrier()
        return every if self.rank == root else None

    def bcast_bytes(self, data, root=0):
        assert (data is not None) or self.rank != root
        if self.rank == root:
            self.world.words[root] = data
        self.barrier()
        told = self.world.words[root]
        self.barrier()
        return told
