"""Launches of which none needs another as one: each has programs of its own, and does what it does alone.

Those that a compiler could not tell apart but by where and how much are one text, which is compiled once. Only kernels
that are made of text can be put together. It does not know what they compute.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import zip_longest
from math import prod
from typing import Any, NamedTuple

import numpy as np

from castile.kernels.triton.launch import ALIGNED, Launch, Plan, Room, begins_aligned
from castile.kernels.triton.lines import kernel_of
from castile.kernels.triton.views import WIDE, View

# So many numbers and addresses a launch takes at most, of eight bytes each: drivers take 4 KB.
_MOST_WORDS = 480

# Programs are shared out: those below end0 do the first launch's work, and so on.
_BESIDE = """
def {name}({arguments}):
    program = tl.program_id(0)
    {each}
"""

# What is known of an argument, or of each number of a tuple.
Known = str | tuple[str, ...]
_ONE, _ALIGNED = "1", ", aligned"


def beside(plans: Sequence[Plan]) -> Plan:
    """The work of plans of which none needs another: the first launches of all together, then the second, and so on.

    All have the same settings, of which one is chosen for all, or each takes its likeliest.
    """
    alike = len({plan.settings for plan in plans}) == 1

    def launches(setting: Any) -> list[Launch]:
        each = [plan.launches(setting if alike else plan.settings[0]) for plan in plans]
        rounds = ([launch for launch in row if launch is not None] for row in zip_longest(*each))
        return [launch for row in rounds for launch in _merged(row)]

    return Plan(plans[0].settings if alike else (None,), launches)


def _merged(launches: Iterable[Launch]) -> list[Launch]:
    """As few launches as there may be."""
    groups: dict[tuple[int, int], list[Launch]] = {}
    found: list[list[Launch]] = []
    for launch in launches:
        group = groups.get(like := (launch.warps, launch.stages))
        if group is None or sum(map(_words, (*group, launch))) > _MOST_WORDS:
            groups[like] = group = []
            found.append(group)
        group.append(launch)
    return [_one(group) if len(group) > 1 else group[0] for group in found]


def _words(launch: Launch) -> int:
    """Numbers and addresses that a launch takes, and how its programs are told apart."""
    return 2 + sum(len(arg) if type(arg) is tuple else 1 for arg in launch.args)


def _one(launches: Sequence[Launch]) -> Launch:
    assert not any(launch.since or launch.walks for launch in launches)
    groups: dict[_Shape, list[Launch]] = {}
    for launch in launches:
        groups.setdefault(_shape(launch), []).append(launch)
    args: list[Any] = []
    end = 0
    for launch in (launch for group in groups.values() for launch in group):
        end += prod(launch.grid)
        args += [*launch.args, launch.grid[0], end]
    nbytes = [launch.nbytes for launch in launches]
    return Launch(
        _kernel(tuple((shape, len(group)) for shape, group in groups.items())), (end,), tuple(args), {},
        launches[0].warps, launches[0].stages,
        flops=sum(launch.flops for launch in launches),
        nbytes=None if None in nbytes else sum(n for n in nbytes if n is not None),
    )  # fmt: skip


class _Shape(NamedTuple):
    """What launches of one text have in common: the kernel, what a compiler knows of each argument, constants."""

    kernel: Any
    known: tuple[Known, ...]
    constants: tuple[tuple[str, Any], ...]


def _shape(launch: Launch) -> _Shape:
    return _Shape(launch.kernel, tuple(map(_known, (*launch.args, launch.grid[0]))), tuple(launch.constants.items()))


def _known(arg: Any) -> Known:
    """What a compiler knows of an argument, by which it makes other code."""
    if type(arg) is tuple:
        return tuple(str(_known(one)) for one in arg)
    if type(arg) is int:
        return _ONE if arg == 1 else f"{'long ' * (arg >= WIDE)}number{_ALIGNED * (arg % ALIGNED == 0)}"
    if type(arg) is float:
        return "real"
    array = arg.array if isinstance(arg, View) else arg
    aligned = isinstance(array, Room) or begins_aligned(array)
    return f"{np.dtype(array.dtype).name}{_ALIGNED * aligned}"


@cache
def _kernel(groups: tuple[tuple[_Shape, int], ...]) -> Any:
    """The kernel of launches, told by what those of a group have in common, and how many it has: theirs is one text."""
    each: list[str] = []
    names: list[str] = []
    functions: dict[str, Callable[..., Any]] = {}
    first = 0
    for shape, count in groups:
        function = _placed(shape.kernel)
        functions[function.__name__] = function
        *own, across = (_word(known, k, first) for k, known in enumerate(shape.known))
        words = [*own, *(f"{name}={value!r}" for name, value in shape.constants)]
        each += [
            f"if (program >= {_begin(first)}) & (program < end{first + count - 1}):",
            *("    " + line for line in _chosen(shape, range(first, first + count))),
            f"    {function.__name__}(at % {across}, at // {across}, {', '.join(words)})",
        ]
        for n in range(first, first + count):
            names += [*(f"a{n}_{k}" for k in range(len(shape.known))), f"end{n}"]
        first += count
    return kernel_of(_BESIDE, {"each": each}, {"arguments": ", ".join(names)}, functions)


class _Part(NamedTuple):
    """An argument, or one number of a tuple: what is known of it, its name in a group's text, where a launch has it."""

    known: str
    own: str
    place: str


def _parts(known: Known, number: int) -> list[_Part]:
    if isinstance(known, str):
        return [_Part(known, f"own{number}", f"_{number}")]
    return [_Part(one, f"own{number}_{n}", f"_{number}[{n}]") for n, one in enumerate(known)]


def _word(known: Known, number: int, first: int) -> str:
    """An argument as a group's text hands it on; a 1 is the same in all launches, and is the first one's."""
    words = [f"a{first}{part.place}" if part.known == _ONE else part.own for part in _parts(known, number)]
    return words[0] if isinstance(known, str) else f"({''.join(word + ', ' for word in words)})"


def _chosen(shape: _Shape, numbers: range) -> list[str]:
    """What makes a program's arguments those of its launch, of one of these numbers."""
    parts = [part for k, known in enumerate(shape.known) for part in _parts(known, k) if part.known != _ONE]
    lines: list[str] = []
    for n in numbers:
        lines.append("else:" if n == numbers[-1] else f"{'if' if n == numbers[0] else 'elif'} program < end{n}:")
        lines += [f"    at = program - {_begin(n)}", *(f"    {part.own} = a{n}{part.place}" for part in parts)]
    if len(numbers) == 1:
        return [line.strip() for line in lines[1:]]
    of_first = ((part.own, f"a{numbers[0]}{part.place}") for part in parts if part.known.endswith(_ALIGNED))
    return [*lines, *(f"{own} = aligned({own}, {base})" for own, base in of_first)]


def _begin(number: int) -> str:
    """The first program of the launch of that number."""
    return f"end{number - 1}" if number else "0"


@cache
def _placed(kernel: Any) -> Any:
    """A kernel of `kernel_of` as a function for use inside kernels, which is first told its program's two numbers."""
    template, parts, words, known = kernel.made_of
    text = template.replace("{name}(", "{name}(program0, program1, ", 1)
    for dim in range(2):
        text = text.replace(f"tl.program_id({dim})", f"program{dim}")
    return kernel_of(text, parts, words, known)
