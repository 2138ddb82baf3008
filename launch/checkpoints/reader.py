"""Reading: any box of any region of a checkpoint, put together from the pieces that were written.

It does not know which ranks read, nor under which plan. Nothing is handed out whose hash does not hold.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path

import msgspec
import numpy as np

from castile.launch.checkpoints import manifest
from castile.launch.checkpoints.manifest import File, Manifest, Piece
from castile.launch.processes.ranks import UserError
from castile.planner.step.beside import INITIAL_VALUES, SCALE, STREAK, TAKEN
from castile.runtime.region import Box, Region, contains, intersect, relative, slices, uncovered, whole

# What training in float16 carries besides: whoever goes on in other numbers leaves it, or begins it anew.
GUARD = (SCALE, STREAK, TAKEN)


class Damaged(ValueError):
    """A checkpoint is not what was written: a sentence, and in which file and tensor ("" where it is in none)."""

    def __init__(self, path: Path, file: str, tensor: str, what: str) -> None:
        where = f"{file}, tensor {tensor!r}" if tensor else file
        super().__init__(f"checkpoint {path} is damaged: {where}: {what}")
        self.path, self.file, self.tensor = path, file, tensor


class Gone(UserError):
    """A checkpoint's folder is not there: the run that wrote it keeps its latest alone, and may have taken it away."""

    def __init__(self, path: Path, words: str) -> None:
        super().__init__(f"checkpoint {path}{words}")
        self.path = path

    @property
    def is_taken_away(self) -> bool:
        """Whether nothing is left of it, so that who lists checkpoints anew does not meet it again."""
        return not os.path.lexists(self.path)


class Reader:
    """A checkpoint whose manifest and files' heads are whole. Its tensors are checked when they are read.

    step, samples   how many steps were done, and samples consumed
    facts           what was trained. plan: with which plan (JSON). regions: all there are, by name
    """

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path = path
        self.step, self.samples, self.facts = manifest.step, manifest.samples, manifest.facts
        self.regions = {name: Region(name, shape.shape, shape.dtype) for name, shape in manifest.regions.items()}
        self.manifest = manifest
        self._offsets = {file.name: self._check_head(file) for file in manifest.files}

    @property
    def plan(self) -> bytes:
        """The plan of the run that wrote it, as in a plan file."""
        return msgspec.json.encode(self.manifest.plan)

    @property
    def nbytes(self) -> int:
        """What its tensors take on disk."""
        return sum(file.nbytes for file in self.manifest.files)

    @property
    def parameters(self) -> list[str]:
        """Regions that are no optimizer's state, which is named `parameter/label`, and guard nothing."""
        return [name for name in self.regions if name.rpartition("/")[0] not in self.regions and name not in GUARD]

    def read(self, region: str, box: Box) -> np.ndarray:
        """A box of a region as a new array, whoever wrote it.

        What guards 16 bits and was not written is as it would be had no step been skipped, but for the scale's growth.
        Raises ValueError for a region that is not there or a box outside it, Damaged where a hash does not hold or no
        file has the numbers.
        """
        found = self.regions.get(region)
        if found is None and region in GUARD:
            # Optimizers count the steps that were taken.
            return np.full(box.shape, self.step if region == TAKEN else INITIAL_VALUES.get(region, 0))
        if found is None:
            raise ValueError(f"checkpoint {self.path} has no {region!r}")
        if len(box.lo) != len(found.shape) or not contains(whole(found.shape), box):
            raise ValueError(f"checkpoint {self.path}: {region!r} has shape {found.shape}, {box} is not in it")
        touched = [(file, piece) for file, piece in self._pieces.get(region, ()) if intersect(box, piece.box)]
        self._refuse_gap(region, box, [piece.box for _, piece in touched])
        out = np.empty(box.shape, found.dtype)
        for file, piece in touched:
            common = intersect(box, piece.box)
            assert common is not None
            out[slices(relative(common, box))] = self._load(file, piece)[slices(relative(common, piece.box))]
        return out

    def verify(self) -> None:
        """Raise Damaged for the first tensor whose bytes are not those that were written, or for what no file holds."""
        for file in self.manifest.files:
            for piece in file.pieces:
                self._load(file, piece)
        for name, region in self.regions.items():
            self._refuse_gap(name, whole(region.shape), [piece.box for _, piece in self._pieces[name]])

    def check_regions(self, carried: Iterable[Region]) -> None:
        """Raise UserError unless the checkpoint holds exactly these regions: same names, extents and types.

        What guards 16 bits may be in one of the two alone. `carried` are all regions of the run that wants to go on,
        not one rank's alone.
        """
        wanted = {region.name: region for region in carried}
        for name, region in wanted.items():
            found = self.regions.get(name)
            if found is not None and found != region:
                raise UserError(
                    f"checkpoint {self.path}: {name!r} has shape {found.shape} of {found.dtype}, this run's has "
                    f"{region.shape} of {region.dtype}: go on with the model and dtype that it was made with"
                )
        here, there = set(wanted) - set(GUARD), set(self.regions) - set(GUARD)
        lacking, left = sorted(here - there), sorted(there - here)
        if lacking or left:
            words = [f"lacks {_some(lacking)}"] if lacking else []
            words += [f"has {_some(left)}, unknown here"] if left else []
            raise UserError(
                f"checkpoint {self.path} {' and '.join(words)}: go on with the model and optimizer that it was made "
                f"with, or take its parameters alone with `castile checkpoint export {self.path} --out FILE`"
            )

    def _refuse_gap(self, region: str, box: Box, pieces: list[Box]) -> None:
        missing = uncovered(box, pieces)
        if missing:
            raise Damaged(self.path, manifest.NAME, f"{region}{missing[0]}", "no file holds it")

    @cached_property
    def _pieces(self) -> Mapping[str, list[tuple[File, Piece]]]:
        found: dict[str, list[tuple[File, Piece]]] = {name: [] for name in self.regions}
        for file in self.manifest.files:
            for piece in file.pieces:
                found[piece.region].append((file, piece))
        return found

    def _check_head(self, file: File) -> dict[str, int]:
        """Where each tensor begins in the file. Raises Damaged where length or head are not as the manifest says."""
        shapes = [(p.name, self.regions[p.region].dtype, p.box.shape) for p in file.pieces]
        expected, ends = manifest.header(shapes)
        offsets, at = {}, len(expected)
        for piece in file.pieces:
            offsets[piece.name] = at
            at += manifest.num_bytes(piece.box, self.regions[piece.region])
        length, found = self._beginning(file, len(expected))
        if not length == at == file.nbytes:
            cut = next((name for name, begin in reversed(offsets.items()) if begin <= length), _first(file))
            raise Damaged(self.path, file.name, cut, f"{length} bytes, {file.nbytes} were written")
        if found != expected:
            wrong = next(n for n, pair in enumerate(zip(found, expected, strict=True)) if pair[0] != pair[1])
            tensor = next((name for name, end in ends if wrong < end), "") if wrong > 8 else ""
            raise Damaged(self.path, file.name, tensor, f"byte {wrong}, in its head, is not as it was written")
        return offsets

    def _beginning(self, file: File, num_bytes: int) -> tuple[int, bytes]:
        """The file's length, and its first bytes; a link, a folder or a device is no file."""
        try:
            descriptor = os.open(self.path / file.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                status = os.fstat(descriptor)
                length = status.st_size if stat.S_ISREG(status.st_mode) else 0
                return length, os.read(descriptor, num_bytes) if length else b""
            finally:
                os.close(descriptor)
        except OSError as error:
            raise _unread(self.path, file.name, _first(file), error) from error

    def _load(self, file: File, piece: Piece) -> np.ndarray:
        """A whole piece, its hash checked."""
        region = self.regions[piece.region]
        try:
            array = np.fromfile(
                self.path / file.name, region.dtype, piece.box.volume, offset=self._offsets[file.name][piece.name]
            )
        except OSError as error:
            raise _unread(self.path, file.name, piece.name, error) from error
        if manifest.digest(array.view(np.uint8).data) != piece.hash:
            raise Damaged(self.path, file.name, piece.name, "its bytes are not those that were written")
        return array.reshape(piece.box.shape)


def _unread(path: Path, file: str, tensor: str, error: OSError) -> Damaged | Gone:
    """What a file that cannot be read tells: where its folder is gone, nothing of damage."""
    is_gone = isinstance(error, FileNotFoundError) and not path.is_dir()
    if is_gone:
        return Gone(path, " was taken away while it was read: read again, or let the run that saves there --keep more")
    return Damaged(path, file, tensor, f"it cannot be read ({error.strerror})")


def open_checkpoint(path: str | Path) -> Reader:
    """The checkpoint of a folder. Raises Damaged where it is not whole, UserError where it is not one of ours."""
    path = Path(path)
    source = path / manifest.NAME
    try:
        if source.stat().st_size > manifest.MAX_BYTES:
            raise Damaged(path, manifest.NAME, "", f"more than {manifest.MAX_BYTES} bytes are no manifest")
        data = source.read_bytes()
    except OSError as error:
        if not os.path.lexists(path):
            raise Gone(path, ": there is no such folder") from error
        raise Damaged(path, manifest.NAME, "", f"it cannot be read ({error.strerror})") from error
    try:
        found = manifest.decode(data)
    except manifest.OtherSchema as error:
        raise UserError(f"checkpoint {path}: {error}") from error
    except ValueError as error:
        raise Damaged(path, manifest.NAME, "", str(error)) from error
    return Reader(path, found)


def _first(file: File) -> str:
    return file.pieces[0].name if file.pieces else ""


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"{names[0]!r}{more}"
