"""Horizontal fusion: independent launches become one, in which each has programs of its own.

Launches that differ in addresses and sizes only share their code, which is compiled once. Only kernels that were
generated from templates can be fused. It does not know what they compute.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import zip_longest
from math import prod
from typing import Any, NamedTuple

import numpy as np

from castile.kernels.triton.launch import ALIGNED, Launch, LaunchPlan, Workspace, is_aligned
from castile.kernels.triton.snippet import generated_kernel
from castile.kernels.triton.views import INDEX_LIMIT, View

# So many numbers and addresses a launch takes at most, of eight bytes each: drivers take 4 KB.
_MOST_WORDS = 480

# Programs are shared out: those below end0 do the first launch's work, and so on.
_FUSED = """
def {name}({arguments}):
    program = tl.program_id(0)
    {each}
"""

# What is known of an argument, or of each number of a tuple.
Specialization = str | tuple[str, ...]
_ONE, _ALIGNED = "1", ", aligned"


def fused(plans: Sequence[LaunchPlan]) -> LaunchPlan:
    """Independent plans as one: the first launches of all are fused, then the second ones, and so on.

    All plans have the same settings, of which one is chosen for all; otherwise each runs with its first.
    """
    alike = len({plan.settings for plan in plans}) == 1

    def launches(setting: Any) -> list[Launch]:
        each = [plan.launches(setting if alike else plan.settings[0]) for plan in plans]
        rounds = ([launch for launch in row if launch is not None] for row in zip_longest(*each))
        return [launch for row in rounds for launch in _fused_launches(row)]

    return LaunchPlan(plans[0].settings if alike else (None,), launches)


def _fused_launches(launches: Iterable[Launch]) -> list[Launch]:
    """As few launches as possible."""
    groups: dict[tuple[int, int], list[Launch]] = {}
    found: list[list[Launch]] = []
    for launch in launches:
        group = groups.get(like := (launch.warps, launch.stages))
        if group is None or sum(map(_num_words, (*group, launch))) > _MOST_WORDS:
            groups[like] = group = []
            found.append(group)
        group.append(launch)
    return [_fuse(group) if len(group) > 1 else group[0] for group in found]


def _num_words(launch: Launch) -> int:
    """The number of 8-byte arguments that a launch takes in a fused kernel."""
    return 2 + sum(len(arg) if type(arg) is tuple else 1 for arg in launch.args)


def _fuse(launches: Sequence[Launch]) -> Launch:
    assert not any(launch.min_capability or launch.is_persistent for launch in launches)
    groups: dict[_Signature, list[Launch]] = {}
    for launch in launches:
        groups.setdefault(_signature(launch), []).append(launch)
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


class _Signature(NamedTuple):
    """What launches that share their code have in common: the kernel, how its arguments are specialised, its constants.
    """

    kernel: Any
    known: tuple[Specialization, ...]
    constants: tuple[tuple[str, Any], ...]


def _signature(launch: Launch) -> _Signature:
    return _Signature(
        launch.kernel, tuple(map(_specialization, (*launch.args, launch.grid[0]))), tuple(launch.constants.items())
    )


def _specialization(arg: Any) -> Specialization:
    """What Triton specialises an argument by."""
    if type(arg) is tuple:
        return tuple(str(_specialization(one)) for one in arg)
    if type(arg) is int:
        return _ONE if arg == 1 else f"{'long ' * (arg >= INDEX_LIMIT)}number{_ALIGNED * (arg % ALIGNED == 0)}"
    if type(arg) is float:
        return "real"
    array = arg.array if isinstance(arg, View) else arg
    aligned = isinstance(array, Workspace) or is_aligned(array)
    return f"{np.dtype(array.dtype).name}{_ALIGNED * aligned}"


@cache
def _kernel(groups: tuple[tuple[_Signature, int], ...]) -> Any:
    """The kernel that fuses some launches, given as groups of equal signature and the number of launches in each."""
    each: list[str] = []
    names: list[str] = []
    functions: dict[str, Callable[..., Any]] = {}
    first = 0
    for shape, count in groups:
        function = _with_program_ids(shape.kernel)
        functions[function.__name__] = function
        *own, across = (_argument(known, k, first) for k, known in enumerate(shape.known))
        words = [*own, *(f"{name}={value!r}" for name, value in shape.constants)]
        each += [
            f"if (program >= {_first_program(first)}) & (program < end{first + count - 1}):",
            *("    " + line for line in _selection(shape, range(first, first + count))),
            f"    {function.__name__}(at % {across}, at // {across}, {', '.join(words)})",
        ]
        for n in range(first, first + count):
            names += [*(f"a{n}_{k}" for k in range(len(shape.known))), f"end{n}"]
        first += count
    return generated_kernel(_FUSED, {"each": each}, {"arguments": ", ".join(names)}, functions)


class _Part(NamedTuple):
    """An argument, or a number of a tuple: how it is specialised, its name in a group's code, and where a launch has
    it.
    """

    known: str
    own: str
    place: str


def _parts(known: Specialization, number: int) -> list[_Part]:
    if isinstance(known, str):
        return [_Part(known, f"own{number}", f"_{number}")]
    return [_Part(one, f"own{number}_{n}", f"_{number}[{n}]") for n, one in enumerate(known)]


def _argument(known: Specialization, number: int, first: int) -> str:
    """An argument as a group's code passes it on; a 1 is the same in all launches, so the first one's is passed."""
    words = [f"a{first}{part.place}" if part.known == _ONE else part.own for part in _parts(known, number)]
    return words[0] if isinstance(known, str) else f"({''.join(word + ', ' for word in words)})"


def _selection(shape: _Signature, numbers: range) -> list[str]:
    """The lines that select the arguments of the launch to which a program belongs."""
    parts = [part for k, known in enumerate(shape.known) for part in _parts(known, k) if part.known != _ONE]
    lines: list[str] = []
    for n in numbers:
        lines.append("else:" if n == numbers[-1] else f"{'if' if n == numbers[0] else 'elif'} program < end{n}:")
        lines += [f"    at = program - {_first_program(n)}", *(f"    {part.own} = a{n}{part.place}" for part in parts)]
    if len(numbers) == 1:
        return [line.strip() for line in lines[1:]]
    of_first = ((part.own, f"a{numbers[0]}{part.place}") for part in parts if part.known.endswith(_ALIGNED))
    return [*lines, *(f"{own} = aligned({own}, {base})" for own, base in of_first)]


def _first_program(number: int) -> str:
    """The first program of the launch of that number."""
    return f"end{number - 1}" if number else "0"


@cache
def _with_program_ids(kernel: Any) -> Any:
    """A generated kernel as a device function whose first two arguments are its program ids."""
    template, parts, words, known = kernel.made_of
    text = template.replace("{name}(", "{name}(program0, program1, ", 1)
    for dim in range(2):
        text = text.replace(f"tl.program_id({dim})", f"program{dim}")
    return generated_kernel(text, parts, words, known)
