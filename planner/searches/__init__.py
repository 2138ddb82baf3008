"""Searches, a file each: `search(run)` proposes plans until its budget is spent, by default its `BUDGET`.

One that says `WALKS = True` changes plans step by step from those that it is given, and so is given a layer-wise plan
to begin from too (`searching/layerwise`).

The name of a known plan is a search too, which looks at that plan alone, and what a program brings is one by the name
that it gives it.
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
    """A search under way that can be told to end with a known plan."""

    def insist(self, name: str) -> T: ...


@dataclass(frozen=True)
class KnownPlan:
    """No search: a known plan, whatever it costs, for whoever wants to compare."""

    name: str
    BUDGET: ClassVar[str] = "1"
    WALKS: ClassVar[bool] = False

    def search(self, run: Insistent[T]) -> T:
        """Insist on the plan of that name."""
        return run.insist(self.name)


@dataclass(frozen=True)
class Brought:
    """A search that is no file here: what proposes plans to a `Run`, and its constants. No plan is insisted on."""

    propose: Callable[[Any], object]
    BUDGET: str
    WALKS: bool

    def search(self, run: Any) -> None:
        """Propose plans."""
        self.propose(run)


_brought: dict[str, Brought] = {}


def bring(name: str, search: Brought) -> None:
    """Have `find` know a search by a name, which is none of castile's, from now on in this process."""
    _brought[name] = search


def available() -> tuple[str, ...]:
    """The names of all searches that look for plans, found by walking the folder."""
    return tuple(sorted(m.name for m in iter_modules(__path__)))


def find(name: str, lowering: Lowering) -> ModuleType | Brought | KnownPlan:
    """The search of the file planner/searches/<name>.py, one that was brought by that name, or the known plan of that
    name of graph and machine.

    Raises ValueError, with what there is, where it is none of these.
    """
    if name in available():
        return import_module(f"{__name__}.{name}")
    if name in _brought:
        return _brought[name]
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
    """Whether a search says that it walks from plan to plan. Raises ValueError as `find` does."""
    return bool(getattr(find(name, lowering), "WALKS", False))
