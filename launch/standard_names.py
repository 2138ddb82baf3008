"""Standard names: how tensors of files that others write make a model's parameters, as a pure description.

It does not know files, nor which models there are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

import numpy as np


@dataclass(frozen=True)
class Piece:
    """A parameter as a piece of a standard tensor; "{n}" in both names is a block's number, from 1 in the parameter's
    and from 0 in the tensor's.

    part, of   which of `of` equal parts side by side along dim `dim` of the tensor, from 0
    turned     the part's two dims are exchanged in the parameter
    """

    param: str
    tensor: str
    turned: bool = False
    part: int = 0
    of: int = 1
    dim: int = -1

    def tensor_of(self, param: str) -> str | None:
        """The tensor that holds a parameter of that name; None where the piece is not of it."""
        found = re.fullmatch(re.escape(self.param).replace(r"\{n\}", r"([1-9]\d*)"), param)
        if found is None:
            return None
        return self.tensor.replace("{n}", str(int(found[1]) - 1)) if found.groups() else self.tensor

    def shape_of(self, param: tuple[int, ...]) -> tuple[int, ...]:
        """The tensor's shape for a parameter of that shape."""
        shape = list(param[::-1] if self.turned else param)
        shape[self.dim] *= self.of
        return tuple(shape)

    def cut(self, shape: tuple[int, ...]) -> tuple[slice, ...]:
        """Where the piece lies in a tensor of that shape."""
        cuts = [slice(0, n) for n in shape]
        length = shape[self.dim] // self.of
        cuts[self.dim] = slice(self.part * length, (self.part + 1) * length)
        return tuple(cuts)

    def oriented(self, array: np.ndarray) -> np.ndarray:
        """The parameter of a piece, or the piece of a parameter."""
        return array.T if self.turned else array


@dataclass(frozen=True)
class StandardNames:
    """The pieces of one family of files.

    prefixes   what the names in a file may begin with besides
    copies     tensors that may repeat another, where no parameter of the model is theirs
    idle       patterns of tensors that hold no parameter
    """

    pieces: tuple[Piece, ...]
    prefixes: tuple[str, ...] = ()
    copies: Mapping[str, str] = field(default_factory=dict)
    idle: tuple[str, ...] = ()

    def of(self, params: Iterable[str]) -> dict[str, tuple[str, Piece]] | None:
        """The tensor and the piece of each parameter; None where these are not the family's parameters.

        Each must have a piece, and each piece a parameter, but for tensors that may be copies.
        """
        names = list(params)
        found = {param: hit for param in names if (hit := self._of(param)) is not None}
        used = {piece for _, piece in found.values()}
        idle = [piece for piece in self.pieces if piece not in used and piece.tensor not in self.copies]
        return None if idle or len(found) < len(names) else found

    def _of(self, param: str) -> tuple[str, Piece] | None:
        named = ((piece.tensor_of(param), piece) for piece in self.pieces)
        return next(((tensor, piece) for tensor, piece in named if tensor is not None), None)

    def bare(self, name: str) -> str:
        """The name of a tensor without the prefix that a file may give it."""
        return next((name.removeprefix(prefix) for prefix in self.prefixes if name.startswith(prefix)), name)

    def is_idle(self, name: str) -> bool:
        """Whether a tensor of that name, without prefix, holds no parameter."""
        return any(fnmatchcase(name, pattern) for pattern in self.idle)
