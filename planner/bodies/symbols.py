"""What a recorded body is made of: arrays without data, and the kernel calls that make them.

It does not know what a kernel computes.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from castile.planner.bodies.vocabulary import Spec


class Symbol(msgspec.Struct, frozen=True, eq=False):
    """An array without data, as a body sees it."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def spec(self) -> Spec:
        return Spec(self.shape, self.dtype)


@dataclass
class Step:
    """A kernel call: its operands are symbols or literals, and it makes `outs`."""

    kernel: str
    args: tuple[object, ...]
    outs: tuple[Symbol, ...]
    params: dict[str, object]
    accumulate: bool = False

    @property
    def symbols(self) -> tuple[Symbol, ...]:
        """The operands that are arrays."""
        return tuple(a for a in self.args if isinstance(a, Symbol))
