"""Launches: what a Triton form returns, and how it becomes a call, in the interpreter or on a GPU.

A form is a function marked `@planned` that looks at shapes and steps and returns a LaunchPlan: the settings worth
trying, the likeliest first, and the launches of each. So it can be compiled for a chip that is not there, or tuned,
without allocating its arrays. It knows no kernel.
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
# Triton specialises addresses, steps and lengths by whether they are multiples of this; addresses of descriptors, and
# their steps in bytes, have to be.
ALIGNED = 16


@dataclass(frozen=True, eq=False)
class Workspace:
    """Scratch memory of `size` elements that lives from the first launch of a form that uses it to the last."""

    size: int
    dtype: str = "float32"


@dataclass(frozen=True, eq=False)
class BlockDescriptor:
    """An array of which a kernel loads or stores whole blocks through a TMA descriptor (`tl.make_tensor_descriptor`).

    Steps are in elements and the last is 1; the address and the other steps have to be multiples of 16 bytes.
    """

    array: Any
    shape: Shape
    steps: Shape
    block: Shape


@dataclass(frozen=True)
class Launch:
    """One launch of a kernel.

    args            in the kernel's order: arrays, Views and Workspaces for pointers, BlockDescriptors, numbers, and
                    tuples of numbers
    constants       its `tl.constexpr` parameters by name, which come last in its signature
    flops           operations of the whole launch; most run on tensor cores if `tensor_cores`
    nbytes          bytes that it has to move, where that is not each array of args once
    min_capability  the least compute capability that it runs on, times ten
    is_persistent   whether its programs share out the numbers below the grid's first length: no more are started than
                    there are multiprocessors
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
    min_capability: int = 0
    is_persistent: bool = False


class LaunchPlan(NamedTuple):
    """A form's work on arrays of certain shapes: settings worth trying, and the launches of each."""

    settings: tuple[Any, ...]
    launches: Callable[[Any], list[Launch]]


def fixed_plan(*launches: Launch) -> LaunchPlan:
    """The plan of launches that leave nothing to choose."""
    return LaunchPlan((None,), lambda _: list(launches))


def in_sequence(*plans: LaunchPlan, chooses: int = 0) -> LaunchPlan:
    """The work of all plans, one after the other.

    chooses  the number of the plan whose settings are offered; the others run with their first
    """

    def launches(setting: Any) -> list[Launch]:
        chosen = (setting if n == chooses else plan.settings[0] for n, plan in enumerate(plans))
        return [one for plan, own in zip(plans, chosen, strict=True) for one in plan.launches(own)]

    return LaunchPlan(plans[chooses].settings, launches)


def in_sequence_alike(plans: Sequence[LaunchPlan]) -> LaunchPlan:
    """The work of plans with equal settings, one after the other, all with the setting that is chosen."""
    return LaunchPlan(plans[0].settings, lambda setting: [one for plan in plans for one in plan.launches(setting)])


def planned(form: Callable[..., LaunchPlan | None]) -> Callable[..., Call | None]:
    """Decorate a form that returns a LaunchPlan, or None for what it cannot do, as a prepared form with `settings`."""

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
        return bound(plan, next(one for one in (found, *plan.settings) if _has_aligned_descriptors(plan.launches(one))))

    return bind


def _has_aligned_descriptors(launches: list[Launch]) -> bool:
    """Whether all arrays begin where descriptors can."""
    return all(is_aligned(arg.array) for launch in launches for arg in launch.args if isinstance(arg, BlockDescriptor))


def is_aligned(array: Any) -> bool:
    """Whether an array begins at a multiple of 16 bytes: Triton then loads and stores vectors, and descriptors can
    begin.
    """
    return (array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr) % ALIGNED == 0


def capability_of(array: Any) -> int:
    """The compute capability, times ten, of the device on which an array lies; 0 on a host."""
    if isinstance(array, chip.AbsentArray):
        return chip.capability()
    return 0 if isinstance(array, np.ndarray) else driver.capability()


def bound(plan: LaunchPlan, setting: Any) -> Call:
    """The call that runs the launches of one setting. It keeps the arrays alive and may be repeated.

    Raises Refused where the device is too old, or lacks registers or shared memory.
    """
    try:
        return _bound(plan.launches(setting))
    except (OutOfResources, PTXASError) as error:
        raise Refused(str(error)) from error


def _bound(launches: list[Launch]) -> Call:
    if not launches:
        return nothing
    some = next(arrays_of(launches))
    device: Any = chip if isinstance(some, chip.AbsentArray) else driver
    on_host = isinstance(some, np.ndarray) and device is not chip
    since = max(launch.min_capability for launch in launches)
    if since and not on_host and since > capability_of(some):
        raise Refused("the device is too old")
    call = interpreter.call if on_host else device.call
    rooms = {
        room: np.empty(room.size, room.dtype) if on_host else device.workspace(number, room.size, room.dtype)
        for room, number in workspace_numbers(launches).items()
    }
    works = []
    for launch in launches:
        args = (arg.array if isinstance(arg, View) else arg for arg in launch.args)
        works.append(call(launch, tuple(rooms[arg] if isinstance(arg, Workspace) else arg for arg in args)))
    return chain(works)


def workspace_numbers(launches: list[Launch]) -> dict[Workspace, int]:
    """The number of the memory of each Workspace: another may have the same after the last launch that uses the first.

    So a form that copies some samples at a time needs memory for the largest copy only.
    """
    named = [list(dict.fromkeys(_workspaces_of(launch))) for launch in launches]
    last = {room: number for number, some in enumerate(named) for room in some}
    numbers: dict[Workspace, int] = {}
    for number, some in enumerate(named):
        taken = {numbers[room] for room in numbers if last[room] >= number}
        free = (one for one in count() if one not in taken)
        numbers |= {room: next(free) for room in some if room not in numbers}
    return numbers


def _workspaces_of(launch: Launch) -> Iterator[Workspace]:
    args = (arg.array if isinstance(arg, View) else arg for arg in launch.args)
    return (arg for arg in args if isinstance(arg, Workspace))


def arrays_of(launches: list[Launch]) -> Any:
    """Every array of the launches, as often as they name it."""
    named = (
        arg.array if isinstance(arg, View | BlockDescriptor) else arg for launch in launches for arg in launch.args
    )
    return (one for one in named if hasattr(one, "strides"))


def are_floats(*arrays: Any) -> bool:
    """Whether all arrays hold floating-point numbers that the forms compute with in float32."""
    return all(x.dtype.name in FLOATS for x in arrays)
