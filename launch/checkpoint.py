"""`castile checkpoint`: lists checkpoints, checks every byte of them, and takes their parameters out.

It does not know how they are written, nor of models more than how files of others have their parameters.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import tyro

from castile.launch import importers, models
from castile.launch.checkpoints import folder as folders
from castile.launch.checkpoints import writer
from castile.launch.checkpoints.disk import Disk
from castile.launch.checkpoints.reader import Damaged, Gone, Reader, open_checkpoint
from castile.launch.importers import Stored, moved
from castile.launch.jobs import checks
from castile.launch.processes import ranks
from castile.launch.processes.ranks import UserError
from castile.launch.typed import files, options, settings
from castile.runtime.memory import written
from castile.runtime.region import Region, whole


@dataclass(frozen=True)
class Checkpoint:
    """List checkpoints, check every byte of them, or export their parameters: ls, verify or export."""

    action: Annotated[Literal["ls", "verify", "export"], tyro.conf.Positional]
    """ls: list them; verify: check every byte against what was written; export: write the parameters into one file."""
    path: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")]
    """The folder of checkpoints that `castile train --checkpoint` names, of which export takes the latest; or one
    checkpoint."""
    out: options.File = ""
    """With export: the safetensors file to write, each tensor whole and under the parameter's name."""
    state: bool = False
    """With export: write the optimizer's state too, under the names `parameter/label`, which --weights leaves aside."""
    json: bool = False
    """Print one JSON object."""


COMMAND = Checkpoint


def run(command: Checkpoint) -> int:
    """Do it, rank 0 alone. Raises ValueError or UserError for a user's mistake and for damage, which are status 2."""
    _check(command)
    if ranks.silent():
        return 0
    facts, text = {"ls": _ls, "verify": _verify, "export": _export}[command.action](command)
    print(json.dumps(facts, indent=2) if command.json else text)
    if facts.get("damaged"):
        last = facts["damaged"][-1]
        raise UserError(_offer(last["why"], Path(last["path"])))
    return 0


Report = tuple[dict[str, Any], str]


def _check(command: Checkpoint) -> None:
    """Raises UserError for options that do not belong to the action, and for files that cannot be."""
    exports = command.action == "export"
    if exports and not command.out:
        raise UserError("castile checkpoint export: name the file to write with --out FILE")
    if exports and Path(command.out).suffix not in ("", ".safetensors"):
        raise UserError(f"--out {command.out}: what is written is safetensors, so let the name end in .safetensors")
    if not exports and (command.out or command.state):
        name = "--out" if command.out else "--state"
        raise UserError(f"{name} belongs to `castile checkpoint export`, not to {command.action}")
    checks.writable(of=command, out=command.out)
    if not Path(command.path).is_dir():
        raise UserError(f"{command.path}: there is no such folder of checkpoints")


def _named(path: str) -> list[Path]:
    """The one checkpoint that the user names, or all of a folder of them, the latest last."""
    found = list(folders.checkpoints(path).values())
    if found:
        return found
    if folders.is_checkpoint(Path(path)):
        return [Path(path)]
    raise UserError(f"{path} holds no checkpoint: name the folder that `castile train --checkpoint` wrote to")


def _ls(command: Checkpoint) -> Report:
    rows = [_row(path) for path in _named(command.path)]
    return {"folder": command.path, "checkpoints": rows}, "\n".join(map(_line, rows))


def _line(row: Mapping[str, Any]) -> str:
    if "why" in row:
        return f"{row['name']}  {row['why']}"
    text = f"{row['samples']:>10} samples  {written(row['size_bytes']):>9}  {row['model']}"
    text += f" on {row['data']}" if row["data"] else ""
    text += f", held-out loss {row['held_out_loss']:.4f}" if row["held_out_loss"] is not None else ""
    return f"{row['name']}{text}"


def _row(path: Path) -> dict[str, Any]:
    """What a checkpoint says of itself, its tensors unread; `why` where it cannot be loaded."""
    try:
        found = open_checkpoint(path)
    except ValueError as error:
        return {"name": path.name, "why": str(error)}
    facts = found.facts
    return {
        "name": path.name,
        "step": found.step,
        "samples": found.samples,
        "size_bytes": found.nbytes,
        "num_files": len(found.manifest.files),
        "num_regions": len(found.regions),
        "model": facts.model,
        "data": facts.data,
        "batch_samples": facts.batch,
        "seed": facts.seed,
        "dtype": facts.dtype,
        "castile": found.manifest.castile,
        "held_out_loss": folders.noted(path),
    }


def _verify(command: Checkpoint) -> Report:
    sound, damaged, size = [], [], 0
    for path in _named(command.path):
        try:
            found = open_checkpoint(path)
            found.verify()
        except Damaged as error:
            damaged.append({"path": str(path), "file": error.file, "tensor": error.tensor, "why": str(error)})
        else:
            sound.append(path.name)
            size += found.nbytes
    facts = {"folder": command.path, "sound": sound, "damaged": damaged, "size_bytes": size}
    what = "checkpoint is" if len(sound) == 1 else "checkpoints are"
    return facts, f"{len(sound)} {what} whole, {written(size)}: {', '.join(sound) or 'none'}"


def _offer(why: str, path: Path) -> str:
    """What is damaged, and which checkpoint one can go on from."""
    good = folders.whole(path.parent)
    if good is None:
        return f"{why}; no checkpoint beside it is whole"
    return f"{why}; {good.name} is whole, and `castile train ... --resume` goes on from there"


def _export(command: Checkpoint) -> Report:
    path = _named(command.path)[-1]
    try:
        found = open_checkpoint(path)
        stored, absent = _in_file(found)
        names = sorted(found.regions) if command.state else sorted({*found.parameters} - absent)
        nbytes = _write(found, names, stored, Path(command.out))
    except Damaged as error:
        raise UserError(_offer(str(error), path)) from error
    except Gone as error:
        if error.is_taken_away and Path(command.path) != path:
            return _export(command)
        raise
    facts = {"checkpoint": str(path), "step": found.step, "num_tensors": len(names), "size_bytes": nbytes,
             "files": {"out": command.out}}  # fmt: skip
    return facts, f"{len(names)} tensors of {path}, {written(nbytes)}, written to {command.out}"


def _in_file(found: Reader) -> tuple[Mapping[str, Stored], set[str]]:
    """How the file that the model is out of has parameters, where castile has them otherwise, and what it has not:
    numbers of a loss that castile added are nothing that other programs would have a place for.
    """
    text, facts = found.facts.model, found.facts
    importer = importers.of(settings.split(text)[0])
    if importer is None:
        return {}, set()
    model = models.parse(text)
    graph = model.graph(facts.batch, facts.dtype)
    for name in found.parameters:
        if name not in graph.tensors or graph.tensors[name].shape != found.regions[name].shape:
            raise ValueError(f"{model.name} has changed: it has no parameter {name!r} {found.regions[name].shape} now")
    absent = {*graph.states} - {*importer.load(model.name).values(graph, model.settings)}
    return model.stored(graph), absent


def _write(found: Reader, names: Sequence[str], stored: Mapping[str, Stored], out: Path) -> int:
    """Write whole regions, one after the other; the bytes of the file."""
    rows = [(one, stored.get(_whose(found, one))) for one in (found.regions[name] for name in names)]
    shapes = [(one.name, one.dtype, of.shape if of else one.shape) for one, of in rows]
    arrays = (_array(found, one, of) for one, of in rows)
    with files.whole(out) as draft:
        return writer.write_tensors(Disk(), draft, shapes, arrays)


def _whose(found: Reader, region: Region) -> str:
    """The parameter that a region is, or whose state in an optimizer, element by element, it is."""
    name = region.name.rpartition("/")[0]
    return name if name in found.regions and found.regions[name].shape == region.shape else region.name


def _array(found: Reader, region: Region, stored: Stored | None) -> np.ndarray:
    array = found.read(region.name, whole(region.shape))
    return np.ascontiguousarray(moved(array, stored.there)) if stored else array
