"""Weights: a model's parameters read from a safetensors file and written to one, under their own or standard names.

A model file may state `STANDARD_NAMES`, the families of files whose tensors make its parameters. It does not know where
parameters lie in a plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from castile.launch import importers
from castile.launch.arrays.standard_names import Piece, StandardNames
from castile.launch.checkpoints import writer
from castile.launch.checkpoints.disk import Disk
from castile.launch.importers import Imported, Stored, moved
from castile.launch.models import Model
from castile.launch.typed import files
from castile.planner.graph import Graph
from castile.runtime.strict import suggestion

# each parameter's tensor, and which piece of it the parameter is
Sources = dict[str, tuple[str, Piece]]

# PyTorch's batch normalisation counts batches beside its running statistics, and seldom uses that; here nobody does.
COUNTER = "num_batches_tracked"

_FLOATING = ("F16", "F32", "F64")
_WHOLE = ("I32", "I64")


def families(model: Model) -> tuple[StandardNames, ...]:
    """The families of standard names that a model's file states."""
    stated = model.build.__globals__.get("STANDARD_NAMES", ())
    return stated if isinstance(stated, tuple) else (stated,)


def load(path: str | Path, model: Model, graph: Graph | None = None) -> Mapping[str, np.ndarray]:
    """The parameters of a model from a safetensors file, by name; each is read when it is asked for.

    The file has all of them and nothing else, under their own names or one family's standard names; running statistics,
    PyTorch's counters beside them, settings of the model's, which stay as it has them, and what an optimizer keeps of
    each may be there or not. Or it is a file that an importer reads, whose network has the same parameters.
    graph: the model's, where it has been built. Raises ValueError in one sentence otherwise.
    """
    importer = importers.of(str(path))
    if importer is not None:
        return _imported(importer.load(str(path)), str(path), model, graph or model.graph())
    graph = graph or model.graph()
    return Weights(File(path), graph, families(model), model.stored(graph))


def _imported(file: Imported, path: str, model: Model, graph: Graph) -> Mapping[str, np.ndarray]:
    """The parameters and states of a graph that a network in another file has, too."""
    found = file.values(graph, model.settings if importers.of(model.name) else {})
    known, wanted = {name: graph.tensors[name].shape for name in found}, {t.name: t.shape for t in graph.params}
    if missing := next((name for name in wanted if name not in known), None):
        near = suggestion(missing, list(known))
        raise ValueError(f"weights {path}: its network has no parameter {missing!r}{near}")
    return found


def save(path: str | Path, values: Mapping[str, np.ndarray], model: Model, standard: bool = False) -> int:
    """Write parameters to a safetensors file, which appears whole or not at all; its bytes.

    standard   under the names of the first of the model's families that has one for each parameter
    Raises ValueError where it has none, UserError where the file cannot be written.
    """
    sources = _standard(values, model) if standard else {name: (name, Piece(name, name)) for name in values}
    tensors: dict[str, list[tuple[Piece, str]]] = {}
    for param, (tensor, piece) in sorted(sources.items(), key=lambda item: item[1][1].part):
        tensors.setdefault(tensor, []).append((piece, param))
    firsts = [(tensor, *pieces[0]) for tensor, pieces in tensors.items()]
    shapes = [(name, values[param].dtype.name, piece.shape_of(values[param].shape)) for name, piece, param in firsts]
    arrays = (_assembled(pieces, values) for pieces in tensors.values())
    with files.whole(path) as draft:
        return writer.write_tensors(Disk(), draft, shapes, arrays)


def _standard(values: Mapping[str, np.ndarray], model: Model) -> Sources:
    found = next((hit for family in families(model) if (hit := family.of(values)) is not None), None)
    if found is None:
        raise ValueError(f"model {model.name}: with these settings its parameters have no standard names")
    return found


def _assembled(pieces: list[tuple[Piece, str]], values: Mapping[str, np.ndarray]) -> np.ndarray:
    arrays = [piece.oriented(values[param]) for piece, param in pieces]
    return np.concatenate(arrays, axis=pieces[0][0].dim) if len(arrays) > 1 else arrays[0]


class File:
    """A safetensors file: names, shapes and numbers of its tensors. Raises ValueError where it is none."""

    def __init__(self, path: str | Path) -> None:
        self.path = str(path)
        try:
            # what refuses here has the system's words, which safe_open leaves out
            open(path, "rb").close()
            self._file = safe_open(self.path, framework="np")
        except IsADirectoryError as error:
            export = f"castile checkpoint export {path} --out FILE"
            raise ValueError(f"weights {path}: a folder; `{export}` makes a file of a checkpoint in it") from error
        except OSError as error:
            raise ValueError(f"weights {path}: {error.strerror or error}") from error
        except SafetensorError as error:
            raise ValueError(f"weights {path}: this is no safetensors file, or a damaged one ({error})") from error
        self.names = tuple(self._file.keys())

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._file.get_slice(name).get_shape())

    def check_kind(self, name: str, floating: bool) -> None:
        """Raises ValueError where a tensor does not hold numbers that NumPy can read, floating-point or whole ones."""
        kind, kinds = self._file.get_slice(name).get_dtype(), _FLOATING if floating else _WHOLE
        if kind not in kinds:
            raise ValueError(f"weights {self.path}: {name!r} holds {kind}; it should be one of {', '.join(kinds)}")

    def read(self, name: str, cut: tuple[slice, ...] = ()) -> np.ndarray:
        """A tensor, or a part of it."""
        found: Any = self._file.get_slice(name)[cut] if cut else self._file.get_tensor(name)
        return np.asarray(found)


class Weights(Mapping[str, np.ndarray]):
    """Parameters by name out of a file, checked when it is opened and read when they are asked for."""

    def __init__(
        self, file: File, graph: Graph, known: tuple[StandardNames, ...], stored: Mapping[str, Stored]
    ) -> None:
        self._file = file
        self._graph = graph
        self._stored = stored
        params = [t.name for t in graph.params]
        own = sum(name in file.names for name in params)
        fitting = [(names, found) for names in known if (found := names.of(params)) is not None]
        # some names may be the same in both ways of naming
        hits = [(names, found) for names, found in fitting if self._num_found(names, found) > own]
        self._sources, self._strange = self._standard(*hits[0]) if hits else self._own()
        self._check()

    def _own(self) -> tuple[Sources, str | None]:
        """Tensors under the parameters' own names, with running statistics where the file has them; and the name of a
        tensor that is none of these, if there is one."""
        params = [t.name for t in self._graph.params]
        fixed = self._graph.fixed_states
        states = [name for name in self._graph.states if name in self._file.names and name not in fixed]
        sources = {name: (name, Piece(name, name)) for name in (*params, *states)}
        names = [name for name in self._file.names if name not in fixed]
        strange = [name for name in names if name not in sources and name.rpartition(".")[2] != COUNTER]
        # an optimizer's state is called PARAMETER/LABEL, and begins anew
        return sources, next((name for name in strange if name.rpartition("/")[0] not in sources), None)

    def _num_found(self, names: StandardNames, found: Sources) -> int:
        """How many parameters have their tensors in the file."""
        there = {names.bare(name) for name in self._file.names}
        return sum(tensor in there for tensor, _ in found.values())

    def _standard(self, names: StandardNames, found: Sources) -> tuple[Sources, str | None]:
        """The tensor of this file, and the piece of it, that each parameter is; and the name of a tensor that the model
        has no use for, if there is one."""
        there: dict[str, str] = {}
        for name in self._file.names:
            if names.bare(name) in there:
                raise ValueError(f"weights {self._file.path}: {name!r} and {there[names.bare(name)]!r} are one tensor")
            there[names.bare(name)] = name
        wanted = {tensor for tensor, _ in found.values()}
        for copy, original in names.copies.items():
            if copy in there and copy not in wanted:
                self._check_copy(there.pop(copy), there.get(original, original))
        strange = [name for bare, name in there.items() if bare not in wanted and not names.is_idle(bare)]
        sources = {param: (there.get(tensor, tensor), piece) for param, (tensor, piece) in found.items()}
        return sources, next(iter(strange), None)

    def _check_copy(self, copy: str, original: str) -> None:
        file = self._file
        if original not in file.names or not np.array_equal(file.read(copy), file.read(original)):
            words = f"{copy!r} is not the same as {original!r}, which the model uses in its place"
            raise ValueError(f"weights {file.path}: {words}")

    def _check(self) -> None:
        """Raises ValueError for the first thing that is missing, unexpected, or of another shape or kind."""
        path, names = self._file.path, self._file.names
        tensors = self._graph.tensors
        for param, (tensor, piece) in self._sources.items():
            of = "" if param == tensor else f", which makes the parameter {param!r}"
            if tensor not in names:
                near = suggestion(tensor, list(names))
                raise ValueError(f"weights {path}: it has no tensor {tensor!r}{of}{near}")
            own = self._stored[param].shape if param in self._stored else tensors[param].shape
            there, wanted = self._file.shape(tensor), piece.shape_of(own)
            if there != wanted:
                raise ValueError(f"weights {path}: {tensor!r} has shape {there}, it should have {wanted}{of}")
            self._file.check_kind(tensor, tensors[param].floating)
        if self._strange is not None:
            near = suggestion(self._strange, [tensor for tensor, _ in self._sources.values()])
            raise ValueError(f"weights {path}: model {self._graph.name} has no use for {self._strange!r}{near}")

    def __getitem__(self, param: str) -> np.ndarray:
        tensor, piece = self._sources[param]
        if piece.of == 1 and not piece.turned:
            return moved(self._file.read(tensor), self._stored[param].here if param in self._stored else ())
        return piece.oriented(self._file.read(tensor, piece.cut(self._file.shape(tensor))))

    def __iter__(self) -> Iterator[str]:
        return iter(self._sources)

    def __len__(self) -> int:
        return len(self._sources)
