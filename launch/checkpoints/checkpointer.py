"""The checkpointer: copies a rank's state between two steps, and writes it beside the steps that follow.

It does not know training. Only the main thread talks to other ranks: while a save is under way `poll`, which every
rank calls after every step, exchanges a word, so that all ranks learn in the same step what became of it; who leaves a
job that breaks off goes by the words in the folder. That must be one that all hosts share, which is tried at the start.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Mapping
from concurrent import futures
from functools import partial
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

import msgspec
import numpy as np

from castile.launch.checkpoints import folder as folders
from castile.launch.checkpoints import layout as layouts
from castile.launch.checkpoints import manifest, words, writer
from castile.launch.checkpoints.disk import PASSING, Disk, free_bytes
from castile.launch.checkpoints.layout import Layout
from castile.launch.checkpoints.manifest import UNJUDGED, Facts, File, Judged
from castile.launch.processes.ranks import UserError
from castile.launch.processes.streams import NO_ROOM
from castile.runtime.backends.base import Key
from castile.runtime.comm.base import Communicator
from castile.runtime.memory import written

# Ranks that wait for a save tell each other so often how far they are: so whoever writes for long is heard meanwhile.
WORD_SECONDS = 0.05
# Where a job breaks off others are waited for no longer than this after anything more of the save was written.
QUIET_SECONDS = 30.0


class Copied(msgspec.Struct, frozen=True):
    """What a step waited for: this rank's bytes, the seconds of copying them, and those for the save before this."""

    nbytes: int
    seconds: float
    waited_seconds: float


class Outcome(msgspec.Struct, frozen=True):
    """What became of a save, the same on all ranks: is there a complete checkpoint, and a warning to tell, or ""; and
    whether what hindered it may pass.
    """

    step: int
    path: str
    nbytes: int
    seconds: float
    complete: bool
    warning: str = ""
    may_pass: bool = False


class _Word(msgspec.Struct, frozen=True):
    """How far a rank is with its share: nothing yet, done (with its file, if it had any to write), or failed."""

    done: bool = False
    file: File | None = None
    error: str = ""
    may_pass: bool = False


class _Save:
    """The save that is under way on this rank."""

    def __init__(self, step: int, path: Path, samples: int, plan: bytes, judged: Judged) -> None:
        self.step, self.path, self.samples, self.plan, self.judged = step, path, samples, plan, judged
        self.begun = perf_counter()
        self.share: futures.Future[File | None] = futures.Future()
        # On rank 0: making a checkpoint of all ranks' files, which gives a warning, or taking them away for an error.
        self.ending: futures.Future[str] | None = None
        self.error, self.may_pass = "", False

    def write(self, share: Callable[[], File | None]) -> None:
        """In the background: write this rank's share."""
        try:
            self.share.set_result(share())
        except BaseException as error:
            self.share.set_exception(error)


class Checkpointer:
    """Saves of one run into `folder`, one at a time; every rank makes one and calls its methods in the same order.

    A rank keeps a second copy of what it writes in memory, from `prepare` on.

    every_steps   a save is due after so many steps. keep: how many checkpoints stay, beside the best of those `noted`
    facts         what is trained. keeps_best: whether a best one will be noted
    begin_step    the step that the run goes on from, 0 for one that begins

    Rank 0 holds the folder meanwhile (`folder.held`). Raises UserError where it cannot be written, is not shared by the
    hosts, or holds a later checkpoint than the run begins with.
    """

    def __init__(
        self, folder: str | Path, comm: Communicator, every_steps: int, keep: int, facts: Facts,
        begin_step: int = 0, disk: Disk | None = None, keeps_best: bool = False,
    ) -> None:  # fmt: skip
        if every_steps < 1 or keep < 1:
            raise UserError(f"--checkpoint-every {every_steps}, --keep {keep}: give 1 or more of each")
        self.folder, self.comm, self.every_steps, self.keep = Path(folder), comm, every_steps, keep
        self.facts, self.disk, self.keeps_best = facts, disk or Disk(), keeps_best
        self._saved_step = begin_step
        self._save: _Save | None = None
        self._untold: Outcome | None = None
        self._layout: tuple[bytes, Layout] | None = None
        self._copies: list[np.ndarray] = []
        self._open(begin_step)
        self._thread = futures.ThreadPoolExecutor(1, "checkpoint")

    @property
    def latest(self) -> Path | None:
        """The checkpoint that the run would go on from now, None where it has none."""
        return self.folder / folders.name_of(self._saved_step) if self._saved_step else None

    @property
    def is_saving(self) -> bool:
        """Whether a save is under way."""
        return self._save is not None

    def due(self, step: int) -> bool:
        """Whether the state after that many steps is to be saved."""
        return step % self.every_steps == 0 and step > self._saved_step

    def prepare(self, carried: Mapping[Key, np.ndarray], plan: bytes) -> Layout:
        """Agree who writes what under this plan, make room for the copy, and see that the disk has room; collective.

        `save` does it where it was not done. Raises UserError where the disk has too little room for all that is kept.
        """
        layout = layouts.agree(self.comm, carried)
        self._layout = (plan, layout)
        # Memory that was never touched would cost the first save ten times the copy: ones are written, not promised.
        self._copies = [np.ones(entry.box.shape, entry.dtype) for entry in layout.mine]
        has_best = self.keeps_best or folders.best(self.folder) is not None
        more = max(self.keep + has_best + 1 - len(folders.checkpoints(self.folder)), 1)
        free = free_bytes(self.folder)
        self._agree_or_refuse(
            f"--checkpoint {self.folder}: a checkpoint takes {written(layout.total_bytes)}, and {more} more come while "
            f"{self.keep}{' and the best' * has_best} are kept, {written(more * layout.total_bytes)}; only "
            f"{written(free)} are free: choose another folder, or keep fewer with --keep"
            if free < more * layout.total_bytes
            else ""
        )
        return layout

    def save(
        self, step: int, samples: int, carried: Mapping[Key, np.ndarray], plan: bytes, judged: Judged = UNJUDGED
    ) -> Copied:
        """Copy the state after `step` steps and begin to write it, and how held-out samples were judged; collective.

        A save that is still under way is waited for. A step that is saved already is not saved again.
        """
        begun = perf_counter()
        if self._save is not None:
            self._untold = self._finish()
        waited = perf_counter() - begun
        if step == self._saved_step:
            return Copied(0, 0.0, waited)
        if self._layout is None or self._layout[0] != plan:
            self.prepare(carried, plan)
        assert self._layout is not None
        layout = self._layout[1]
        begun = perf_counter()
        arrays = {(region, box): array for (region, box, _), array in carried.items()}
        for entry, copy in zip(layout.mine, self._copies, strict=True):
            np.copyto(copy, arrays[entry.region, entry.box])
        seconds = perf_counter() - begun
        path = self.folder / folders.name_of(step)
        mine, tells = (layout.mine, self._copies), self.comm.size > 1
        # known before anything of it is there: whoever is interrupted while the writer begins is to wait for it
        self._save = save = _Save(step, path, samples, plan, judged)
        self._thread.submit(save.write, partial(writer.write_share, self.disk, path, self.comm.rank, *mine, tells))
        return Copied(layout.nbytes, seconds, waited)

    def poll(self) -> Outcome | None:
        """What became of the last save, told once, as soon as it is known; collective, and at once without a save.

        An error of the disk is an Outcome, and training may go on; any other error of the writer is raised.
        """
        outcome, self._untold = self._untold, None
        if outcome is not None or self._save is None:
            return outcome
        return self._exchange(self._save)

    def wait(self) -> Outcome | None:
        """Wait for the save that is under way; what became of it, as `poll` tells it. Collective."""
        outcome = self.poll()
        return outcome if self._save is None else self._finish()

    def break_off(self) -> Outcome | None:
        """What `wait` does, on a rank that leaves the job alone: other ranks, which may come to no collective any more,
        write their shares meanwhile. Not collective, and any number of ranks may do it.
        """
        save = self._save
        if save is None or self.comm.size == 1:
            return self.wait()
        assert self._layout is not None
        error, nbytes = self._end_alone(save), self._layout[1].total_bytes
        self._save = None
        if not error:
            self._saved_step = save.step
        warning = self._failure(save, nbytes, error) if error else ""
        return Outcome(save.step, str(save.path), nbytes, perf_counter() - save.begun, not error, warning)

    def note(self, step: int, loss: float) -> str:
        """Put the loss of held-out samples beside the checkpoint of that step, on the rank that leads and while no save
        is under way, so that the best one is known and stays; why that failed, "" where it did not.
        """
        if step != self._saved_step:
            return f"the checkpoint of step {step}, the best so far, is not there"
        try:
            folders.note(self.disk, self.folder / folders.name_of(step), loss)
            # what was the best until now stays no longer
            folders.retire(self.disk, self.folder, self.keep)
        except OSError as error:
            return f"the loss could not be put beside {folders.name_of(step)}: {self._refusal(error)}"
        return ""

    def close(self) -> Outcome | None:
        """`wait`, and end. Collective."""
        outcome = self.wait()
        self._thread.shutdown()
        return outcome

    def _finish(self) -> Outcome:
        """Wait for the save that is under way."""
        save = self._save
        assert save is not None
        while (outcome := self._exchange(save)) is None:
            mine: list[futures.Future[Any]] = [one for one in (save.share, save.ending) if one is not None]
            futures.wait(mine, WORD_SECONDS)
        return outcome

    def _end_alone(self, save: _Save) -> str:
        """Wait until all shares lie in the folder, and make a checkpoint of them unless another rank does; why there is
        none, "" where there is.
        """
        assert self._layout is not None
        part, since = writer.part_of(save.path), perf_counter()
        written: dict[str, int] = {}
        while perf_counter() - since < QUIET_SECONDS:
            if save.path.is_dir():
                return ""
            try:
                if save.share.done():
                    save.share.result()
                files = words.left(part, self._layout[1].writers)
                if files is not None and writer.publish(self.disk, save.path, self._sealed(save, files), files):
                    return ""
            except OSError as error:
                return self._refusal(error)
            except ValueError as error:
                return str(error)
            if (more := words.written(part)) != written:
                written, since = more, perf_counter()
            sleep(WORD_SECONDS)
        return f"nothing more of it was written for {QUIET_SECONDS:.0f} s"

    def _sealed(self, save: _Save, files: list[File]) -> bytes:
        """The manifest of a save of these files."""
        assert self._layout is not None
        regions = self._layout[1].regions
        return manifest.encode(save.step, save.samples, self.facts, save.plan, regions, files, save.judged)

    def _exchange(self, save: _Save) -> Outcome | None:
        gathered = self.comm.gather_bytes(msgspec.json.encode(self._word(save)))
        verdict = None
        if gathered is not None:
            verdict = self._judge(save, [msgspec.json.decode(word, type=_Word) for word in gathered])
        outcome = msgspec.json.decode(self.comm.bcast_bytes(verdict), type=Outcome | None)
        if outcome is not None:
            self._save = None
            if outcome.complete:
                self._saved_step = outcome.step
        return outcome

    def _word(self, save: _Save) -> _Word:
        if not save.share.done():
            return _Word()
        try:
            return _Word(True, save.share.result())
        except OSError as error:
            return _Word(True, None, self._refusal(error), error.errno in PASSING)

    def _judge(self, save: _Save, words: list[_Word]) -> bytes:
        """Rank 0: begin to end the save when all have written, and tell of it when that is done too."""
        if save.ending is None:
            if all(word.done for word in words):
                first = next((word for word in words if word.error), _Word())
                save.error, save.may_pass = first.error, first.may_pass
                files = [word.file for word in words if word.file is not None]
                save.ending = self._thread.submit(self._end, save, files)
            return b"null"
        if not save.ending.done():
            return b"null"
        warning, error = "", save.error
        try:
            warning = save.ending.result()
        except OSError as refused:
            save.may_pass = save.may_pass if error else refused.errno in PASSING
            error = error or self._refusal(refused)
        except ValueError as refused:
            error = str(refused)
        assert self._layout is not None
        nbytes, seconds = self._layout[1].total_bytes, perf_counter() - save.begun
        warning = self._failure(save, nbytes, error) if error else warning
        outcome = Outcome(save.step, str(save.path), nbytes, seconds, not error, warning, save.may_pass)
        return msgspec.json.encode(outcome)

    def _end(self, save: _Save, files: list[File]) -> str:
        """In the background of rank 0: what is left to do when every rank has written, or failed to; a warning."""
        part = writer.part_of(save.path)
        if save.error:
            self.disk.remove_tree(part)
            return ""
        try:
            is_ours = writer.publish(self.disk, save.path, self._sealed(save, files), files)
        except (OSError, ValueError):
            self.disk.remove_tree(part)
            raise
        if not is_ours:
            # a rank that has left since ends it, and nobody hears of this
            raise FileExistsError(errno.EEXIST, "another rank ends it", str(part))
        try:
            folders.retire(self.disk, self.folder, self.keep)
        except OSError as error:
            return f"{save.path.name} is complete, but an older checkpoint could not be removed: {error}"
        return ""

    def _failure(self, save: _Save, nbytes: int, error: str) -> str:
        there = [path.name for step, path in folders.checkpoints(self.folder).items() if step < save.step]
        stays = f"{there[-1]} stays the latest" if there else "there is none yet"
        return (
            f"the checkpoint of step {save.step}, {written(nbytes)}, was not written to {self.folder}: {error}; {stays}"
        )

    def _refusal(self, error: OSError) -> str:
        refusal = f"rank {self.comm.rank} on {self.comm.host}: {error.strerror or error}"
        # Of a folder that is gone it is not known what is free.
        with contextlib.suppress(OSError):
            refusal += f", {written(free_bytes(self.folder))} are free" if error.errno in NO_ROOM else ""
        return refusal

    def _open(self, begin_step: int) -> None:
        """Clean the folder on rank 0; see on all ranks that it is the same one."""
        error = ""
        if self.comm.rank == 0:
            try:
                folders.clean(self.disk, self.folder, begin_step)
            except OSError as refused:
                error = f"--checkpoint {self.folder}: {refused.strerror}; choose another folder"
            except UserError as refused:
                error = str(refused)
        self._agree_or_refuse(error)
        self._check_shared()

    def _check_shared(self) -> None:
        name = self.comm.bcast_bytes(os.urandom(8).hex().encode() if self.comm.rank == 0 else None).decode()
        probe = self.folder / f".shared-{name}"
        error = ""
        if self.comm.rank == 0:
            with contextlib.suppress(OSError):
                probe.touch()
        self.comm.barrier()
        if not probe.exists():
            error = f"--checkpoint {self.folder}: {self.comm.host} does not see what rank 0 writes there"
            error += ": choose a folder that all hosts share"
        self._agree_or_refuse(error)
        if self.comm.rank == 0:
            probe.unlink()

    def _agree_or_refuse(self, error: str) -> None:
        """Raise the first rank's error on every rank."""
        gathered = self.comm.gather_bytes(error.encode())
        first = None if gathered is None else next((text for text in gathered if text), b"")
        refusal = self.comm.bcast_bytes(first).decode()
        if refusal:
            raise UserError(refusal)
