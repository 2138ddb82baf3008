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
    """How a parameter is a part of a tensor in a file.

    param, tensor   their names; "{n}" stands for the number of a block, from 1 in `param` and from 0 in `tensor`
    turned          whether the parameter is the part with its two dims exchanged
    part, of, dim   the tensor's `of` equal parts lie side by side along `dim`; this is number `part`, from 0
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
    """How the files of one family, such as GPT-2's, name the parameters of a model.

    pieces     where each parameter lies
    prefixes   what may stand before every name in a file
    copies     tensors that may be left out because they repeat another one: the copy's name and the original's
    idle       patterns of names of tensors that hold no parameter
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
