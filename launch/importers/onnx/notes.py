"""What an exporter notes beside a network's numbers: which are parameters, and of which parameter others were made.

PyTorch's exporter folds what it knows, and writes the turned weight of a dense layer, a mask or a table of angles as
numbers without a name. It notes what they came from. Files of others have no notes.
It does not know what becomes of the numbers.
"""

from __future__ import annotations

import re
from ast import literal_eval
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

SIGNATURE = "pkg.torch.export.ExportedProgram.graph_signature"
KIND = "pkg.torch.export.graph_signature.InputSpec.kind"
SOURCES = "pkg.onnxscript.optimizer.folded_from"


@dataclass(frozen=True)
class Notes:
    """What is noted.

    parameters   their names in PyTorch
    kinds        of numbers, by their names in the file
    sources      names of the numbers that others were folded from
    """

    parameters: frozenset[str]
    kinds: Mapping[str, str]
    sources: Mapping[str, frozenset[str]]

    def is_learned(self, tensor: Any) -> bool:
        """Whether numbers are trained: all where a file has no notes, else without one all but single numbers."""
        if not self.are_there:
            return True
        if tensor.name in self.kinds:
            return self.kinds[tensor.name] == "PARAMETER"
        if tensor.name in self.sources:
            return not self.parameters.isdisjoint(self.sources[tensor.name])
        return list(tensor.dims) not in ([], [1])

    def is_sure(self, tensor: Any) -> bool:
        """Whether the file says of just these numbers that they are trained."""
        return self.kinds.get(tensor.name) == "PARAMETER"

    @property
    def are_there(self) -> bool:
        """Whether the file says what is trained."""
        return bool(self.parameters)

    def is_folded(self, tensor: Any) -> bool:
        """Whether numbers were made of parameters, and are none of these, turned."""
        return not self.parameters.isdisjoint(self.sources.get(tensor.name, ())) and not self.turned_from(tensor)

    def turned_from(self, tensor: Any) -> str:
        """The parameter that a matrix is, turned, if no other numbers were made of it; "" for none.

        Of what has more sources nobody knows what was done to them: under a parameter's name it could be given the
        numbers that the parameter has before that.
        """
        own = self.sources.get(tensor.name, frozenset())
        if len(own) != 1 or not own <= self.parameters or len(tensor.dims) != 2:
            return ""
        (found,) = own
        return found if sum(found in names for names in self.sources.values()) == 1 else ""


def read(graph: Any) -> Notes:
    """The notes of a GraphProto."""
    whole = next((one.value for one in graph.metadata_props if one.key == SIGNATURE), "")
    kinds, sources = dict[str, str](), dict[str, frozenset[str]]()
    for value in graph.value_info:
        for note in value.metadata_props:
            if note.key == KIND:
                kinds[value.name] = note.value
            elif note.key == SOURCES and (names := _names(note.value)) is not None:
                sources[value.name] = names
    return Notes(frozenset(re.findall(r": PARAMETER target='([^']+)'", whole)), kinds, sources)


def _names(text: str) -> frozenset[str] | None:
    """The names that a list in Python's notation holds; None where it is something else."""
    try:
        found = literal_eval(text)
    except (SyntaxError, ValueError):
        return None
    return frozenset(one for one in found if isinstance(one, str)) if isinstance(found, list | tuple) else None
