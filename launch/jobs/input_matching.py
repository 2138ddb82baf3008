"""Matches a data set's arrays with a model's inputs, by names and shapes, and says how to fix a mismatch.

It does not know what the samples hold.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace

from castile.launch import importers
from castile.launch.data import Dataset, has_setting
from castile.launch.models import Model
from castile.launch.processes.ranks import UserError
from castile.launch.typed import settings
from castile.planner.graph import Graph

Shapes = Mapping[str, tuple[int, ...]]


def check(model: Model, graph: Graph, dataset: Dataset, needed: Collection[str] | None) -> None:
    """Raises UserError, with what to do, where the data set lacks what the graph takes.

    needed   the inputs that have to be there, None for all
    """
    for name, shape in _taken(graph, None).items():
        is_needed = needed is None or name in needed
        if (is_needed or name in dataset.shapes) and dataset.shapes.get(name) != shape:
            there = ", ".join(f"{other!r} of shape {of}" for other, of in dataset.shapes.items())
            words = f"model {model.name} takes {name!r} of shape {shape}, data set {dataset.name} has {there}"
            if name not in dataset.shapes and has_setting(dataset.name, name):
                raise UserError(f"{words}: say what its {name} are, as in --data {dataset.name}:...,{name}=A+B")
            raise UserError(f"{words}: {_mend(model, graph, dataset.shapes, needed)}")


def _taken(graph: Graph, needed: Collection[str] | None) -> Shapes:
    return {name: graph.tensors[name].shape[1:] for name in graph.inputs if needed is None or name in needed}


def _mend(model: Model, graph: Graph, there: Shapes, needed: Collection[str] | None) -> str:
    """What the user can do. Settings of an imported network rename inputs, and say its loss, which the file lacks."""
    importer = importers.of(model.name)
    file = importer.load(model.name) if importer is not None else None
    inputs, losses = (file.inputs, file.losses) if file is not None else ((), ())
    called = model.settings["inputs"].split("+") if model.settings.get("inputs") else list(inputs)
    own = _taken(graph, needed)
    for given, taken in _ways(model, graph, losses, needed):
        found = renamed(taken, {name: shape for name, shape in there.items() if name in taken or name not in own})
        if found is not None:
            if any(name in found for name in called):
                given = {**given, "inputs": "+".join(found.get(name, name) for name in called)}
            others = [f"call {new!r} of the data {old!r}" for old, new in found.items() if old not in called]
            return " and ".join([*([f"say {_as_typed(model, given)}"] if given else []), *others])
    lacks = [name for name in called if name not in there]
    names = f" ({_as_typed(model, {'inputs': 'A+B'})} gives {', '.join(called)} other names)" if lacks else ""
    return f"let names and shapes agree{names}, or choose another with --data (synthetic fits any model)"


def _as_typed(model: Model, given: Mapping[str, str]) -> str:
    """The model with other settings, as a user types it."""
    name, said = settings.split(model.text)
    return settings.joined(name, {**said, **given})


def _ways(
    model: Model, graph: Graph, losses: Collection[str], needed: Collection[str] | None
) -> Iterator[tuple[dict[str, str], Shapes]]:
    """The inputs of a model as it is, and with other losses."""
    yield {}, _taken(graph, needed)
    for loss in losses:
        # not every output has every loss
        with suppress(ValueError):
            made = replace(model, settings={**model.settings, "loss": loss}).graph(graph.batch, graph.dtype)
            yield {"loss": loss}, _taken(made, needed)


def renamed(taken: Shapes, there: Shapes) -> dict[str, str] | None:
    """For each input that is missing, the array that it must be: of those of its shape the one with a similar name, or
    the only one. None where that is not clear for all.
    """
    missing = [name for name, shape in taken.items() if there.get(name) != shape]
    spare = [name for name in there if name not in taken]
    found: dict[str, str] = {}
    for is_near in (True, False):
        for name in missing:
            alike = [other for other in spare if there[other] == taken[name] and other not in found.values()]
            alike = [other for other in alike if not is_near or name in other or other in name]
            if name not in there and name not in found and len(alike) == 1:
                found[name] = alike[0]
    return {name: found[name] for name in missing} if len(found) == len(missing) else None
