"""Searches, a file each: `search(run)` proposes plans until its budget is spent, by default its `BUDGET`.

One with `WALKS = True` changes its starting plans step by step, so it is given a layer-wise plan to start from too
(`searching/layerwise`). One with a function `begin` starts walks through sketches before known plans are simulated.

The name of a known plan is a search too, which proposes that plan alone. A program can register further searches.
They do not know how plans are simulated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import Any, ClassVar, Protocol, TypeVar

from castile.planner.known.seeds import PIPELINE, known_names
from castile.planner.lower import Lowering
from castile.runtime.strict import suggestion

T = TypeVar("T", covariant=True)


class Insistent(Protocol[T]):
    """The state of a search that can return a known plan."""

    def insist(self, name: str) -> T: ...


@dataclass(frozen=True)
class KnownPlan:
    """A search that returns a known plan, whether it is good or not, for comparisons."""

    name: str
    BUDGET: ClassVar[str] = "1"
    WALKS: ClassVar[bool] = False

    def search(self, run: Insistent[T]) -> T:
        """The plan of this name, on which the search insists."""
        return run.insist(self.name)


@dataclass(frozen=True)
class Registered:
    """A search that is not a file of this folder: a function that proposes plans to a `Run`, and its constants."""

    propose: Callable[[Any], object]
    BUDGET: str
    WALKS: bool

    def search(self, run: Any) -> None:
        """Propose plans."""
        self.propose(run)


_registered: dict[str, Registered] = {}


def register(name: str, search: Registered) -> None:
    """Let `find` return a search by this name, which must not be one of castile's, in this process."""
    _registered[name] = search


def available() -> tuple[str, ...]:
    """The names of all searches of this folder."""
    return tuple(sorted(m.name for m in iter_modules(__path__)))


def find(name: str, lowering: Lowering) -> ModuleType | Registered | KnownPlan:
    """The search in planner/searches/<name>.py, the registered search of this name, or that of the known plan of this
    name for the lowering's graph and machine.

    Raises ValueError, which lists the names, where there is none.
    """
    if name in available():
        return import_module(f"{__name__}.{name}")
    if name in _registered:
        return _registered[name]
    known = known_names(lowering)
    if name not in known:
        hint = suggestion(name, [*available(), *known])
        among = f"there are {', '.join(available())}, and of known plans {', '.join(known)}"
        if name.startswith(PIPELINE):
            pieces = lowering.microbatches
            among += f"; pipelines have at most as many stages as --accumulate makes pieces, here {pieces}"
        raise ValueError(f"no search {name!r}{hint}; {among}; or name a Python file with search()")
    return KnownPlan(name)


def walks(name: str, lowering: Lowering) -> bool:
    """Whether a search walks from plan to plan. Raises ValueError as `find` does."""
    return bool(getattr(find(name, lowering), "WALKS", False))
