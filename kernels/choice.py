"""Choices: the form of a kernel, and its setting, that is used for arrays of certain shapes; as text that can be
stored.

A call is named by its `key`: the kernel, shapes, strides and dtypes, and literals. A choice also depends on the device,
the sources and the libraries' versions; whoever stores it keeps track of those. It knows no kernel and no form.
"""

import json
from collections.abc import Iterator, Sequence
from math import prod
from typing import Any, NamedTuple


class Choice(NamedTuple):
    """A folder of forms, and the setting of the form there, as text; "" where the form has no settings."""

    form: str
    setting: str = ""

    def __str__(self) -> str:
        return f"{self.form} {self.setting}".rstrip()


class Array(NamedTuple):
    """What a choice depends on of an array; strides are in bytes, and 0 along dims of one element."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str

    def transpose(self, dims: Sequence[int]) -> "Array":
        """The array with its dims in another order."""
        return self._replace(shape=tuple(self.shape[d] for d in dims), strides=tuple(self.strides[d] for d in dims))

    @property
    def nbytes(self) -> int:
        """Bytes from the first element to the end of the last."""
        return (1 + sum((n - 1) * step for n, step in zip(self.shape, self.strides, strict=True)) // self.itemsize
                ) * self.itemsize if prod(self.shape) else 0  # fmt: skip

    @property
    def full_strides(self) -> tuple[int, ...]:
        """Strides to allocate such an array: its own, but those of a contiguous array along dims of one element."""
        dense = (self.itemsize * prod(self.shape[dim + 1 :]) for dim in range(len(self.shape)))
        return tuple(own if n > 1 else step for n, own, step in zip(self.shape, self.strides, dense, strict=True))

    @property
    def itemsize(self) -> int:
        """Bytes of one element, from the digits with which names of dtypes end."""
        return max(1, int("".join(filter(str.isdigit, self.dtype)) or 8) // 8)


def memory_order(x: Any) -> tuple[int, ...]:
    """The dims of an array, the outermost in memory first, and those of one element last."""
    return tuple(sorted(range(len(x.shape)), key=lambda dim: -x.strides[dim] if x.shape[dim] > 1 else 0))


class Operands(NamedTuple):
    """Arrays and literals of a call."""

    outs: tuple[Any, ...]
    args: tuple[Any, ...]


class KernelCall(NamedTuple):
    """A kernel call without its data: arrays are `Array`s. Only kernels that add by themselves accumulate."""

    kernel: str
    outs: tuple[Array, ...]
    args: tuple[Any, ...]
    params: dict[str, Any]
    accumulate: bool = False


# What has been measured and is taken from now on in this process, by key.
_chosen: dict[str, Choice] = {}


def setting_text(setting: Any) -> str:
    """A setting, made of numbers, words and tuples, as text: the same for equal ones."""
    return "" if setting is None else json.dumps(setting, separators=(",", ":"))


def kernel_call(
    name: str, outs: tuple[Any, ...], args: tuple[Any, ...], params: dict[str, Any], accumulate: bool
) -> KernelCall:
    """A call on arrays of any library, without its data."""
    bare = {word: _bare(value) for word, value in params.items()}
    return KernelCall(name, tuple(map(_bare, outs)), tuple(map(_bare, args)), bare, accumulate)


def key(call: KernelCall) -> str:
    """The call as text; `call_of` is the inverse."""
    fields = [call.kernel, _as_json(call.outs), _as_json(call.args), _as_json(call.params), call.accumulate]
    return json.dumps(fields, sort_keys=True, separators=(",", ":"))


def call_of(text: str) -> KernelCall:
    """The call that a `key` names. ValueError in one sentence for text that names none."""
    try:
        kernel, outs, args, params, accumulate = json.loads(text)
        params = {word: _read(value) for word, value in params.items()}
        call = KernelCall(str(kernel), tuple(map(_read, outs)), tuple(map(_read, args)), params, bool(accumulate))
        # Whatever else stands in the text would be lost.
        if key(call) == text:
            return call
    except (ValueError, TypeError, KeyError, AttributeError):
        pass
    raise ValueError(f"no kernel call is named {text!r}")


def remember(which: str, choice: Choice) -> None:
    """Let the call of that key be bound by this choice from now on."""
    _chosen[which] = choice


def forget() -> None:
    """Drop all remembered choices: calls are bound by their forms' first settings."""
    _chosen.clear()


def known(which: str) -> Choice | None:
    """The choice that was remembered for the call of that key."""
    return _chosen.get(which)


def find(
    name: str, outs: tuple[Any, ...], args: tuple[Any, ...], params: dict[str, Any], accumulate: bool
) -> Choice | None:
    """The choice that was remembered for a call on these arrays."""
    return known(key(kernel_call(name, outs, args, params, accumulate))) if _chosen else None


def arrays_of(call: KernelCall) -> Iterator[Array]:
    """All arrays of a call."""
    yield from call.outs
    yield from (arg for arg in call.args if isinstance(arg, Array))


def _bare(x: Any) -> Any:
    if hasattr(x, "strides"):
        # Along a dim of one element there is no step, whatever a library says.
        steps = tuple(int(step) if size > 1 else 0 for size, step in zip(x.shape, x.strides, strict=True))
        return Array(tuple(map(int, x.shape)), steps, x.dtype if isinstance(x, Array) else x.dtype.name)
    if isinstance(x, tuple | list):
        return tuple(map(_bare, x))
    return x.item() if hasattr(x, "item") else x


def _as_json(x: Any) -> Any:
    if isinstance(x, Array):
        return {"dtype": x.dtype, "shape": x.shape, "strides": x.strides}
    if isinstance(x, tuple | list):
        return [_as_json(one) for one in x]
    return {word: _as_json(value) for word, value in x.items()} if isinstance(x, dict) else x


def _read(x: Any) -> Any:
    if isinstance(x, dict):
        return Array(tuple(map(int, x["shape"])), tuple(map(int, x["strides"])), str(x["dtype"]))
    return tuple(map(_read, x)) if isinstance(x, list) else x
