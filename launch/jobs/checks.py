"""Checks: what a command refuses before anything runs, so that an hour of training never ends at an unwritable file.

It does not know commands; they say which options to look at.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path

from castile.launch.models import DTYPES
from castile.launch.processes.ranks import UserError, silent
from castile.launch.typed import optimizers
from castile.launch.typed.files import is_stream
from castile.planner.graph import Graph
from castile.planner.lower import Lowering
from castile.planner.op import available
from castile.planner.step.recompute import NOTHING, Recomputation
from castile.planner.strategy import Strategy
from castile.runtime.machine import Machine
from castile.runtime.processor import SHARES
from castile.runtime.strict import hint, suggestion

# What programs take for pictures that are no SVG.
OTHER_PICTURES = (".png", ".jpg", ".jpeg", ".gif", ".webp", ".bmp", ".pdf", ".eps")
# One seed, or all from one to another.
_SEEDS = re.compile(r"(?P<first>[0-9]+)(?:-(?P<last>[0-9]+))?")
MOST_SEEDS = 1000
# Options that name a plan to start from.
PLANS = ("plan", "from_")


def counts(**given: int | None) -> None:
    """Raises UserError, with the option's name, for a number below 1; None stands for an option that was not given."""
    for name, value in given.items():
        if value is not None and value < 1:
            option = _option(name)
            raise UserError(f"{option} {value}: give 1 or more, or leave {option} out")


def pieces(accumulate: int | None, batch: int) -> None:
    """Raises UserError where a batch is not cut into as many equal pieces as --accumulate says."""
    if accumulate and batch % accumulate:
        raise UserError(
            f"--accumulate {accumulate}: a batch of {batch} samples does not make as many equal pieces; give a --batch "
            "that does"
        )


def as_planned(plan: Strategy, path: str, accumulate: int | None, again: tuple[str, ...] | None, instead: str) -> None:
    """Raises UserError where a plan's file says otherwise than --accumulate and --recompute, None where not given.

    instead   what else the user can do
    """
    if accumulate not in (None, plan.microbatches):
        raise UserError(
            f"--accumulate {accumulate}: plan {path} cuts the batch into {plan.microbatches}; give that, or {instead}"
        )
    if again is not None and {*again} != {*plan.recompute}:
        raise UserError(
            f"--recompute: plan {path} says itself which {len(plan.recompute)} nodes are computed again; leave "
            f"--recompute out, or {instead}"
        )


def recomputed(text: str, ways: Recomputation) -> tuple[str, ...]:
    """The nodes whose results --recompute says not to keep, none for "". Raises UserError where there are none such."""
    try:
        return ways.named(text or NOTHING)
    except ValueError as error:
        raise UserError(f"--recompute: {error}") from error


def attained(machine: Machine, graph: Graph) -> None:
    """Raises UserError where a machine says what a kernel attains that no operator has, castile's or the graph's."""
    names = {*available(), *(node.op.name for node in graph.nodes.values())}
    known = [f"{name}.{which}" for name in sorted(names) for which in "FBW"]
    said = [(field, kernel) for kind in machine.kinds for field in SHARES for kernel, _ in getattr(kind, field)]
    for field, kernel in dict.fromkeys(said):
        if kernel not in known:
            raise UserError(
                f"machine {machine.name!r}: processor.{field}: no kernel {kernel!r}{suggestion(kernel, known)}: give "
                "an operator's name, a dot, and F, B or W"
            )


def rates(**given: float | None) -> None:
    """Raises UserError, with the option's name, for a number that is not above 0 and finite."""
    for name, value in given.items():
        if value is not None and not (math.isfinite(value) and value > 0):
            option = _option(name)
            raise UserError(f"{option} {value}: give a number above 0, or leave {option} out")


def norm(clip: float | None) -> None:
    """Raises UserError for what --clip cannot scale gradients to."""
    if clip is not None and not (math.isfinite(clip) and clip >= 0):
        raise UserError(f"--clip {clip}: give a norm above 0, or 0 to clip nothing")


def seed(number: int) -> None:
    """Raises UserError for a --seed that chance, where steps are run, cannot begin with."""
    if not 0 <= number < 2**64:
        raise UserError(f"--seed {number}: give a number from 0 to 2^64 - 1")


def seeds(text: str) -> tuple[int, ...]:
    """The numbers of a --seed that may be several: 7, 0-4 or 1,3,8-9. Raises UserError for other text."""
    found: list[int] = []
    for part in text.split(","):
        run = _SEEDS.fullmatch(part.strip())
        if run is None:
            raise UserError(f"--seed {text}: give a whole number from 0 on, or several as in 0-4 or 1,3,8-9")
        first, last = int(run["first"]), int(run["last"] or run["first"])
        seed(last)
        if not first <= last < first + MOST_SEEDS:
            raise UserError(f"--seed {part}: give the lesser number first, and at most {MOST_SEEDS} of them")
        found += range(first, last + 1)
    if len({*found}) < len(found):
        raise UserError(f"--seed {text} names a number twice")
    return tuple(found)


def dtype(text: str) -> None:
    """Raises UserError for what no model computes with."""
    if text not in DTYPES:
        raise UserError(f"--dtype {text}: give one of {', '.join(DTYPES)}")


def only_with(other: str, **given: object) -> None:
    """Raises UserError for options that mean nothing without the option `other`, which was not given."""
    for name, value in given.items():
        if value:
            raise UserError(f"{_option(name)} means nothing without {_option(other)}: give that too")


def some_match(name: str, text: str, names: Iterable[str], of: str = "parameter") -> None:
    """Raises UserError for patterns, separated by commas, of which none matches any of the names of what these are."""
    wanted, every = optimizers.patterns(text), list(names)
    if wanted and not any(fnmatchcase(one, pattern) for one in every for pattern in wanted):
        near = next(filter(None, (suggestion(pattern, every) for pattern in wanted)), "") or hint(wanted[0], every)
        raise UserError(f"{_option(name)} {text}: no {of} has a name like that{near}")


def trains(lowering: Lowering) -> None:
    """Raises ValueError where the graph cannot be trained in as many microbatches: without a loss, with parameters that
    have no influence on it, or with what needs the whole batch. Of a forward pass nothing is asked.
    """
    # of many microbatches two say all there is to say
    lowering.shortened(2).program(lowering.plan({}))


def predicts(model: str, graph: Graph) -> None:
    """Raises UserError where the graph of a model names no outputs, so that nothing comes of a forward pass."""
    if not graph.outputs:
        raise UserError(f"model {model}: it names no outputs to predict: set g.outputs = [logits.name] in build()")


def writable(*, of: object, **given: str) -> None:
    """Raises UserError, with the option's name, for a path at which no file can be written, for two that are one file,
    of which only the last would be left, for one that the command `of` reads, and for a picture under another format's
    name; "" is no path. A plan may take the place of the one that it goes on from.

    Nothing is made and an existing file stays as it is. Rank 0 alone looks, as it alone writes: other hosts need not
    have such a folder.
    """
    first: dict[str, str] = {}
    read = {name: _words(value) for name, value in vars(of).items() if name not in given}
    for name, path in given.items() if not silent() else ():
        if name == "picture" and Path(path).suffix.lower() in OTHER_PICTURES:
            raise UserError(f"--picture {path}: pictures are SVG, as browsers show it; give a name that ends in .svg")
        if path and (why := _hindrance(Path(path))):
            raise UserError(f"{_option(name)} {path}: {why}; choose another path")
        if path and not is_stream(Path(path)):
            other = first.setdefault(os.path.realpath(path), name)
            if other != name:
                raise UserError(f"{_option(other)} and {_option(name)} are one file, {path}: choose another for one")
            kept = [word for key, words in read.items() if name != "out" or key not in PLANS for word in words]
            if os.path.realpath(path) in {os.path.realpath(piece) for word in kept for piece in _pieces(word)}:
                raise UserError(f"{_option(name)} {path}: the command reads this file; choose another path")


def folders(**given: str) -> None:
    """Raises UserError, with the option's name, for a path at which no folder is, nor can become one, that files can be
    written into; "" is no path. As with `writable`, rank 0 looks.
    """
    for name, path in given.items():
        if path and not silent() and (why := _hindrance(Path(path) / "x")):
            raise UserError(f"{_option(name)} {path}: {why}; choose another path")


def _words(value: object) -> list[str]:
    """What an option was given: a word, or several."""
    return [word for word in (value if isinstance(value, tuple) else (value,)) if isinstance(word, str)]


def _pieces(words: str) -> list[str]:
    """What may be a file of an option's words: these, and a name and values of settings (net.py:width=8)."""
    return [words, *re.split("[:,=]", words)] if words else []


def _option(name: str) -> str:
    """An option as it is typed."""
    return "--" + name.replace("_", "-")


def _hindrance(path: Path) -> str:
    """Why no file can be written there, "" where one can."""
    if path.is_dir():
        return "this is a folder, not a file"
    if path.exists() and not os.access(path, os.W_OK):
        return "this file may not be written"
    # Missing folders are made with the file, in the nearest one that is there.
    above = next(folder for folder in path.absolute().parents if os.path.lexists(folder))
    if not above.is_dir():
        return f"{above} is not a folder"
    if not os.access(above, os.W_OK | os.X_OK):
        return f"the folder {above} may not be written"
    return ""
