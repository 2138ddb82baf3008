"""What a form in Triton says of its work, and how that becomes a call: in the interpreter or on a GPU.

A form is a function marked `@planned` that looks at shapes and steps and returns a Plan: the settings that are worth
trying, the likeliest first, and for each the launches it stands for. What it says can thus be compiled for a chip that
is not there, or tuned, without any array of that size. It knows no kernel.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import wraps
from itertools import count
from typing import Any, NamedTuple

import numpy as np
from triton.runtime.errors import OutOfResources, PTXASError

from castile.kernels.calls import Call, chain, nothing
from castile.kernels.choice import setting_text
from castile.kernels.form import Refused, offers, prepares
from castile.kernels.triton import chip, driver, interpreter
from castile.kernels.triton.views import Shape, View

FLOATS = ("float32", "float16", "bfloat16")
# Of addresses, steps and lengths Triton's compiler is told whether they are multiples of this; descriptors ask it of
# addresses and of steps in bytes.
ALIGNED = 16


@dataclass(frozen=True, eq=False)
class Room:
    """Working memory of `size` elements that lives from the first launch of a form that names it to the last."""

    size: int
    dtype: str = "float32"


@dataclass(frozen=True, eq=False)
class Blocks:
    """An array of which a kernel fetches or stores whole blocks, by a tensor descriptor of Triton's.

    Steps are in elements. The last is 1; an address and the other steps have to be multiples of 16 bytes.
    """

    array: Any
    shape: Shape
    steps: Shape
    block: Shape


@dataclass(frozen=True)
class Launch:
    """One launch of a kernel.

    args: in the kernel's order, arrays, Views and Rooms for pointers, Blocks for descriptors, numbers, and tuples of
    numbers; constants are those of its parameters that are `tl.constexpr`, by name, and come last in its signature.
    `flops` counts what the whole launch computes, most of it on tensor cores if `tensor_cores`; `nbytes` is what it has
    to move, where that is not each array of args once. It is for compute capabilities from `since` on, times ten. If
    it `walks`, its programs share out the numbers below the grid's first length, and no more start than there are
    processors.
    """

    kernel: Any
    grid: tuple[int, ...]
    args: tuple[Any, ...]
    constants: dict[str, Any] = field(default_factory=dict)
    warps: int = 4
    stages: int = 2
    flops: int = 0
    tensor_cores: bool = False
    nbytes: int | None = None
    since: int = 0
    walks: bool = False


class Plan(NamedTuple):
    """The work of a form on arrays of certain shapes: settings worth trying, and what each would launch."""

    settings: tuple[Any, ...]
    launches: Callable[[Any], list[Launch]]


def always(*launches: Launch) -> Plan:
    """The plan that leaves nothing to choose."""
    return Plan((None,), lambda _: list(launches))


def in_turn(*plans: Plan, chooses: int = 0) -> Plan:
    """The work of all plans, one after the other: that number's settings, and of each other plan the likeliest."""

    def launches(setting: Any) -> list[Launch]:
        chosen = (setting if n == chooses else plan.settings[0] for n, plan in enumerate(plans))
        return [one for plan, own in zip(plans, chosen, strict=True) for one in plan.launches(own)]

    return Plan(plans[chooses].settings, launches)


def all_alike(plans: Sequence[Plan]) -> Plan:
    """The work of plans of the same settings, one after the other, all by the setting that is chosen."""
    return Plan(plans[0].settings, lambda setting: [one for plan in plans for one in plan.launches(setting)])


def planned(form: Callable[..., Plan | None]) -> Callable[..., Call | None]:
    """Mark a form, of the same arguments as a prepared one, that returns a Plan, or None for what it cannot do."""

    def settings(out: Any, *args: Any, **keywords: Any) -> list[str]:
        plan = form(out, *args, **keywords)
        return [] if plan is None else list(map(setting_text, plan.settings))

    @prepares
    @offers(settings)
    @wraps(form)
    def bind(out: Any, *args: Any, setting: str = "", **keywords: Any) -> Call | None:
        plan = form(out, *args, **keywords)
        if plan is None:
            return None
        # One that is not offered here was found for steps along dims of one element that were others.
        found = next((one for one in plan.settings if setting_text(one) == setting), plan.settings[0])
        # Nor do pieces of arrays have to lie where the whole ones lay.
        return bound(plan, next(one for one in (found, *plan.settings) if _aligned(plan.launches(one))))

    return bind


def _aligned(launches: list[Launch]) -> bool:
    """Whether arrays lie where descriptors can begin."""
    return all(begins_aligned(arg.array) for launch in launches for arg in launch.args if isinstance(arg, Blocks))


def begins_aligned(array: Any) -> bool:
    """Whether an array's address is one by which Triton reads and writes whole vectors, and descriptors can begin."""
    return (array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr) % ALIGNED == 0


def capability_of(array: Any) -> int:
    """The compute capability, times ten, of the device on which an array lies; 0 on a host."""
    if isinstance(array, chip.Absent):
        return chip.capability()
    return 0 if isinstance(array, np.ndarray) else driver.capability()


def bound(plan: Plan, setting: Any) -> Call:
    """The call that runs the launches of one setting. It keeps the arrays alive and may be repeated.

    Raises Refused where the device is too old for it, or has too little of something.
    """
    try:
        return _bound(plan.launches(setting))
    except (OutOfResources, PTXASError) as error:
        raise Refused(str(error)) from error


def _bound(launches: list[Launch]) -> Call:
    if not launches:
        return nothing
    some = next(arrays_of(launches))
    device: Any = chip if isinstance(some, chip.Absent) else driver
    on_host = isinstance(some, np.ndarray) and device is not chip
    since = max(launch.since for launch in launches)
    if since and not on_host and since > capability_of(some):
        raise Refused("the device is too old")
    call = interpreter.call if on_host else device.call
    rooms = {
        room: np.empty(room.size, room.dtype) if on_host else device.room(number, room.size, room.dtype)
        for room, number in numbered(launches).items()
    }
    works = []
    for launch in launches:
        args = (arg.array if isinstance(arg, View) else arg for arg in launch.args)
        works.append(call(launch, tuple(rooms[arg] if isinstance(arg, Room) else arg for arg in args)))
    return chain(works)


def numbered(launches: list[Launch]) -> dict[Room, int]:
    """A number for the memory of each Room, which another may have after the last launch that names the first.

    Copies of some samples at a time thus take no more memory than the largest.
    """
    named = [list(dict.fromkeys(_rooms_of(launch))) for launch in launches]
    last = {room: number for number, some in enumerate(named) for room in some}
    numbers: dict[Room, int] = {}
    for number, some in enumerate(named):
        taken = {numbers[room] for room in numbers if last[room] >= number}
        free = (one for one in count() if one not in taken)
        numbers |= {room: next(free) for room in some if room not in numbers}
    return numbers


def _rooms_of(launch: Launch) -> Iterator[Room]:
    args = (arg.array if isinstance(arg, View) else arg for arg in launch.args)
    return (arg for arg in args if isinstance(arg, Room))


def arrays_of(launches: list[Launch]) -> Any:
    """Every array that the launches name, as often as they do."""
    named = (arg.array if isinstance(arg, View | Blocks) else arg for launch in launches for arg in launch.args)
    return (one for one in named if hasattr(one, "strides"))


def takes(*arrays: Any) -> bool:
    """Whether all arrays hold floating numbers that the forms compute with in float32."""
    return all(x.dtype.name in FLOATS for x in arrays)
