"""What default settings launch on shapes of networks, and what of that asks a chip for more than the rest.

It compiles nothing.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from castile.kernels.estimates.chips import CHIPS
from castile.kernels.estimates.compiled import code, specialised
from castile.kernels.triton.launch import Launch
from tests.triton_cases import NAMES, fake_plan, large, launches
from tests.triton_every import asks, numbers


@dataclass(frozen=True, eq=False)
class Default:
    """A launch, the first form of the table that needs it, and on which shapes, in words."""

    name: str
    shapes: str
    launch: Launch


def of_networks(name: str, dtype: str) -> Iterator[Default]:
    """All that the default setting of a form launches on shapes of a network."""
    for case in large(name, dtype):
        made = fake_plan(name, case)
        assert made is not None, f"{name} falls back to its definition"
        shapes = " ".join(str(list(x.shape)) if hasattr(x, "shape") else str(x) for x in case[0])
        yield from (Default(name, shapes, launch) for launch in launches(made))


@cache
def defaults(dtype: str) -> dict[str, Default]:
    """Those of all forms, by what decides their code: forms have kernels in common."""
    found: dict[str, Default] = {}
    for one in (one for name in NAMES for one in of_networks(name, dtype)):
        found.setdefault(code(one.launch, 90), one)
    return found


@cache
def most(dtype: str) -> dict[Any, Default]:
    """Of each kernel what asks most."""
    return {one.launch.kernel: one for one in sorted(defaults(dtype).values(), key=lambda one: asks(one.launch))}


@cache
def covered(dtype: str) -> frozenset[Default]:
    """What asks for no more in anything than another of the same kernel. Of those that ask for the same one is not."""
    left: dict[Any, list[Default]] = {}
    found = set()
    for one in sorted(defaults(dtype).values(), key=lambda one: -asks(one.launch)):
        larger = left.setdefault(one.launch.kernel, [])
        if any(asks_no_more(one.launch, other.launch) for other in larger):
            found.add(one)
        else:
            larger.append(one)
    return frozenset(found)


def asks_no_more(one: Launch, other: Launch) -> bool:
    """Whether a launch is compiled for no number beyond that of another of its kernel, and else for the same."""
    (small, same), (big, too) = _apart(one), _apart(other)
    return same == too and all(abs(n) <= abs(most) for n, most in zip(small, big, strict=True))


def _apart(launch: Launch) -> tuple[list[int], Any]:
    """The numbers that a launch is compiled for, and what else it is."""
    constants = tuple(launch.constants.values())
    found = list(numbers(constants))
    words = [x for x in constants if not isinstance(x, int | tuple)]
    return found, (launch.warps, launch.stages, len(found), words, specialised(launch, 90))


def for_chips() -> Iterator[tuple[Default, int]]:
    """What is compiled in bfloat16, and for which chip: what asks most of each kernel, for every chip where it is on
    tensor cores; and for chips in turn what else asks there for more in something. `make kernels` compiles the rest,
    too, and all for all chips.
    """
    every = [one for one in defaults("bfloat16").values() if one not in covered("bfloat16")]
    for turn, one in enumerate(every):
        is_most = one is most("bfloat16")[one.launch.kernel]
        if is_most and one.launch.tensor_cores:
            yield from ((one, chip) for chip in CHIPS)
        elif is_most or one.launch.tensor_cores:
            yield one, list(CHIPS)[turn % len(CHIPS)]
