"""Launches of which none needs another as one: each has programs of its own, and does what it does alone.

Only kernels that are made of text can be put together. It does not know what they compute.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import zip_longest
from math import prod
from typing import Any

from castile.kernels.triton.launch import Launch, Plan
from castile.kernels.triton.lines import kernel_of

# So many numbers and addresses a launch takes at most, of eight bytes each: drivers take 4 KB.
_MOST_WORDS = 480

# Programs are shared out: those below end0 do the first launch's work, and so on.
_BESIDE = """
def {name}({arguments}):
    program = tl.program_id(0)
    {each}
"""

Constants = tuple[tuple[str, Any], ...]


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
    args: list[Any] = []
    end = 0
    for launch in launches:
        end += prod(launch.grid)
        args += [*launch.args, launch.grid[0], end]
    shapes = tuple((launch.kernel, len(launch.args), tuple(launch.constants.items())) for launch in launches)
    nbytes = [launch.nbytes for launch in launches]
    return Launch(
        _kernel(shapes), (end,), tuple(args), {}, launches[0].warps, launches[0].stages,
        flops=sum(launch.flops for launch in launches),
        nbytes=None if None in nbytes else sum(n for n in nbytes if n is not None),
    )  # fmt: skip


@cache
def _kernel(shapes: tuple[tuple[Any, int, Constants], ...]) -> Any:
    """The kernel of launches, each told by its own, how many arguments that takes, and its constants."""
    each: list[str] = []
    names: list[str] = []
    known: dict[str, Callable[..., Any]] = {}
    for n, (kernel, count, constants) in enumerate(shapes):
        function = _placed(kernel)
        known[function.__name__] = function
        own, begin = [f"a{n}_{k}" for k in range(count)], f"end{n - 1}" if n else "0"
        words = [*own, *(f"{name}={value!r}" for name, value in constants)]
        each += [
            f"if (program >= {begin}) & (program < end{n}):",
            f"    at = program - {begin}",
            f"    {function.__name__}(at % across{n}, at // across{n}, {', '.join(words)})",
        ]
        names += [*own, f"across{n}", f"end{n}"]
    return kernel_of(_BESIDE, {"each": each}, {"arguments": ", ".join(names)}, known)


@cache
def _placed(kernel: Any) -> Any:
    """A kernel of `kernel_of` as a function for use inside kernels, which is first told its program's two numbers."""
    template, parts, words, known = kernel.made_of
    text = template.replace("{name}(", "{name}(program0, program1, ", 1)
    for dim in range(2):
        text = text.replace(f"tl.program_id({dim})", f"program{dim}")
    return kernel_of(text, parts, words, known)
