"""Triton on NumPy arrays, by Triton's interpreter, to check numbers without a GPU.

TRITON_INTERPRET=1 must be in the environment before Triton is imported. It knows no kernel.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import numpy as np
from triton import knobs
from triton import language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

# Programs of a launch that walks: each takes more than one piece of the work.
_WALKERS = 2


# What NumPy computes as a kernel does of two tensors of one of these types, or of one and one of these numbers.
_WHOLE = {"int32": (int,), "int64": (int,)}
_NUMBERS = _WHOLE | dict.fromkeys(("fp16", "fp32", "fp64"), (int, float))
_BITS: dict[str, tuple[type, ...]] = dict.fromkeys(("int1", *_WHOLE), ())
_CONDITIONS = {
    "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "eq": np.equal, "ne": np.not_equal,
}  # fmt: skip
_SUMS = {"add": np.add, "sub": np.subtract, "mul": np.multiply}
_MASKS = {"and": np.bitwise_and, "or": np.bitwise_or}


class HostPointer:
    """A NumPy array as the interpreter wants a tensor: an address, a dtype, and itself where a copy is asked for."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array
        self.dtype = array.dtype

    def data_ptr(self) -> int:
        """Where the first element lies."""
        return int(self.array.__array_interface__["data"][0])

    # The interpreter copies tensors to the host and back; these are there already.

    def untyped_storage(self) -> "HostPointer":
        return self

    def cpu(self) -> "HostPointer":
        return self

    def copy_(self, other: Any) -> "HostPointer":
        return self

    def new_empty(self, *shape: Any, device: Any = None) -> "HostPointer":
        return self

    def set_(self, *what: Any) -> "HostPointer":
        return self

    def storage_offset(self) -> int:
        return 0

    def size(self) -> tuple[int, ...]:
        return self.array.shape

    def stride(self) -> tuple[int, ...]:
        return tuple(step // self.array.itemsize for step in self.array.strides)


def call(launch: Any, args: tuple[Any, ...]) -> Callable[[], None]:
    """The call that interprets a Launch on args. ValueError if Triton was imported to compile."""
    if not knobs.runtime.interpret:
        raise ValueError("kernels in Triton run on arrays of CuPy; on NumPy's they need TRITON_INTERPRET=1")
    _mend()
    grid = (min(launch.grid[0], _WALKERS), *launch.grid[1:]) if launch.is_persistent else launch.grid
    return partial(_run, launch.kernel[grid], tuple(map(_argument, args)), launch.constants)


def _argument(arg: Any) -> Any:
    if hasattr(arg, "block"):
        return TensorDescriptor(HostPointer(arg.array), arg.shape, arg.steps, arg.block)
    return HostPointer(arg) if isinstance(arg, np.ndarray) else arg


def _run(kernel: Callable[..., Any], args: tuple[Any, ...], constants: dict[str, Any]) -> None:
    with np.errstate(all="ignore"):
        kernel(*args, **constants)


@cache
def _mend() -> None:
    """Repairs of the interpreter: one of Triton 3.6 with NumPy from 2.4 on, and up to 3.9 bfloat16 and conditions.

    And what took most of its time: it did sums and products of integers again in 64 bits, to tell an overflow that it
    tells only when debugging, made the table of dtypes anew for all that it read, and wrote out the type of each shape
    and of each block, and compared shapes of the same numbers by making them again. A number beside a block became a
    block of its own each time, and a sum of two blocks of one type asked anew what may be added to what.
    """
    from triton.language.semantic import TritonSemantic
    from triton.runtime import interpreter

    options = interpreter.interpreter_builder.options
    interpreter.interpreter_builder.options = replace(options, sanitize_overflow=options.debug)
    interpreter._get_np_dtype = _by_name(interpreter._get_np_dtype)
    tl.core._type_for_tuple_values = _of_shapes(tl.core._type_for_tuple_values)
    tl.block_type.__init__ = _kept_blocks(tl.block_type.__init__)
    tl.tensor.__init__ = _kept_tensors(tl.tensor.__init__)
    TritonSemantic.broadcast_impl_value = _unless_alike(TritonSemantic.broadcast_impl_value)
    TritonSemantic.binary_op_type_checking_impl = _kept_numbers(TritonSemantic.binary_op_type_checking_impl)

    patch = interpreter._patch_lang_tensor

    def patched(tensor: Any, scope: Any) -> None:
        # int() of an array of one element is refused by newer NumPy.
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(np.asarray(self.handle.data).reshape(-1)[0]))

    interpreter._patch_lang_tensor = patched
    # Each function that a kernel called had the whole language exchanged anew, a third of all time, and left it so.
    interpreter._patch_lang(SimpleNamespace(__globals__={"tl": tl, "core": tl.core}))
    interpreter._patch_lang = lambda kernel: interpreter._LangPatchScope()
    for kinds, operators in ((_NUMBERS, _CONDITIONS | _SUMS), (_BITS, _MASKS)):
        for name, compute in operators.items():
            slow = getattr(tl.tensor, f"__{name}__")
            setattr(tl.tensor, f"__{name}__", _at_once(compute, kinds, slow, interpreter.TensorHandle))
    tl.tensor.__add__ = _moved(tl.tensor.__add__, interpreter.interpreter_builder)
    builder = interpreter.InterpreterBuilder
    cast, dot, splat = builder.cast_impl, builder.create_dot, builder.create_splat

    def widened(handle: Any) -> Any:
        if handle.dtype.scalar != tl.bfloat16:
            return handle
        return interpreter.TensorHandle((handle.data.astype(np.uint32) << 16).view(np.float32), tl.float32)

    def rounded(self: Any, handle: Any, to: Any) -> Any:
        # NumPy lacks bfloat16: its bits are integers, which were cut off, not rounded, and taken for numbers.
        if to.scalar != tl.bfloat16:
            return cast(self, widened(handle), to)
        wide = np.asarray(widened(handle).data, np.float32)
        return interpreter.TensorHandle(_upper_half(wide), tl.bfloat16)

    def spread(self: Any, to: Any, handle: Any) -> Any:
        # What two integers are compared to is called an integer, and became one, which is no mask from 3.9 on.
        held = interpreter.TensorHandle(handle.data, tl.int1) if handle.data.dtype == np.bool_ else handle
        return splat(self, to, held)

    builder.cast_impl, builder.create_splat = rounded, spread
    # What a GPU takes of a number and of what is none is the number: NumPy's took the other.
    builder.create_maxnumf = lambda self, a, b: self.binary_op(a, b, np.fmax)
    builder.create_minnumf = lambda self, a, b: self.binary_op(a, b, np.fmin)
    builder.create_dot = lambda self, a, b, *rest: dot(self, widened(a), widened(b), *rest)


def _by_name(numpy_dtype: Callable[[Any], np.dtype]) -> Callable[[Any], np.dtype]:
    """NumPy's dtype for each of Triton's, found once for all blocks of a dtype."""
    kept: dict[str, np.dtype] = {}

    def found(dtype: Any) -> np.dtype:
        name = dtype.scalar.name
        if name not in kept:
            kept[name] = numpy_dtype(dtype)
        return kept[name]

    return found


def _of_shapes(type_of: Callable[..., Any]) -> Callable[..., Any]:
    """The type of a tuple of values, made once for each shape."""
    of_shape = cache(type_of)

    def found(values: Any, fields: Any = None) -> Any:
        shape = tuple([x.value if type(x) is tl.constexpr else x for x in values])
        if fields is None and all([type(n) is int for n in shape]):
            return of_shape(shape)
        return type_of(values, fields)

    return found


def _kept_blocks(make: Callable[..., None]) -> Callable[..., None]:
    """What makes the type of a block: all but the type of its elements as it was for the first of its shape."""
    kept: dict[tuple[Any, ...], dict[str, Any]] = {}

    def init(self: Any, element_ty: Any, shape: Any) -> None:
        key = (element_ty.name, *[x.value if type(x) is tl.constexpr else x for x in shape])
        found = kept.get(key)
        if found is None:
            make(self, element_ty, shape)
            kept[key] = {name: x for name, x in vars(self).items() if name != "element_ty"}
        else:
            self.__dict__.update(found)
            self.element_ty = element_ty

    return init


def _kept_tensors(make: Callable[..., None]) -> Callable[..., None]:
    """Makes tensors; what depends on a shape only is computed for the first tensor of that shape."""
    kept: dict[tuple[int, ...], dict[str, Any]] = {}

    def init(self: Any, handle: Any, type: Any) -> None:
        key = tuple(type.shape.values) if type.is_block() else ()
        found = kept.get(key)
        if found is None:
            make(self, handle, type)
            kept[key] = {name: x for name, x in vars(self).items() if name not in ("handle", "type", "dtype")}
        else:
            self.__dict__.update(found)
            self.handle, self.type, self.dtype = handle, type, type.scalar

    return init


def _unless_alike(broadcast: Callable[..., Any]) -> Callable[..., Any]:
    """What spreads two tensors over each other, where there is anything to do."""

    def spread(self: Any, one: Any, other: Any) -> Any:
        if one.type.is_block() and other.type.is_block() and one.type.shape.values == other.type.shape.values:
            return one, other
        return broadcast(self, one, other)

    return spread


def _kept_numbers(alike: Callable[..., tuple[Any, Any]]) -> Callable[..., tuple[Any, Any]]:
    """What brings two operands to one type and shape: what becomes of a number is kept for all that are as the other.

    Nothing writes into what an operand holds. Of two tensors of one type neither is looked at further, unless their
    quotient is asked for, which may be of another.
    """
    kept: dict[tuple[Any, ...], Any] = {}

    def found(self: Any, one: Any, other: Any, *how: bool, **named: bool) -> tuple[Any, Any]:
        is_number, beside_number = type(one) in (int, float), type(other) in (int, float)
        if named or (is_number and beside_number):
            return alike(self, one, other, *how, **named)
        if is_number or beside_number:
            number, block = (one, other) if is_number else (other, one)
            shape = tuple(block.type.shape.values) if block.type.is_block() else ()
            key = (type(number), repr(number), is_number, block.type.scalar.name, shape, how)
            if key in kept:
                return (kept[key], block) if is_number else (block, kept[key])
            made = alike(self, one, other, *how)
            # What became another type itself is to become it again.
            if made[is_number] is block:
                kept[key] = made[not is_number]
            return made
        kind = one.type.scalar
        if type(kind) is tl.dtype and kind.name == other.type.scalar.name and not any(how[3:]):
            spread: tuple[Any, Any] = self.broadcast_impl_value(one, other)
            return spread
        return alike(self, one, other, *how)

    return found


def _upper_half(x: np.ndarray) -> np.ndarray:
    """The bits of x in bfloat16, rounded to the nearest, or to the even one of two; NaN stays NaN."""
    bits = x.view(np.uint32)
    near = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(x), np.uint32(0x7FC0), near).astype(np.uint16)


def _at_once(compute: np.ufunc, kinds: Mapping[str, Any], slow: Callable[..., Any], handle: Any) -> Callable[..., Any]:
    """An operator on two tensors of one type, or a tensor and a number, as NumPy computes it; all else as it was.

    kinds    the types of tensors, and which numbers may stand beside each
    slow     the operator as it was, which asks what each operand is and what their types make of each other
    handle   what the interpreter holds of a result
    """
    is_condition = compute in _CONDITIONS.values()

    def found(self: Any, other: Any) -> Any:
        numbers = kinds.get(self.dtype.name)
        if numbers is None:
            return slow(self, other)
        if type(other) in numbers:
            result = compute(self.handle.data, other)
        elif type(other) is tl.tensor and other.dtype.name == self.dtype.name:
            result = compute(self.handle.data, other.handle.data)
        else:
            return slow(self, other)
        return _tensor(handle(result, tl.int1 if is_condition else self.dtype), self, other)

    return found


def _moved(add: Callable[..., Any], builder: Any) -> Callable[..., Any]:
    """Addition that moves places in memory by whole numbers without asking what these are; all else as it was."""

    def found(self: Any, other: Any) -> Any:
        if type(other) is tl.tensor and self.dtype.is_ptr() and other.dtype.name in _WHOLE:
            return _tensor(builder.create_addptr(self.handle, other.handle), self, other)
        return add(self, other)

    return found


def _tensor(held: Any, one: Any, other: Any) -> Any:
    """The tensor of what was computed of two operands: a block if one of them is."""
    is_block = one.type.is_block() or (type(other) is tl.tensor and other.type.is_block())
    # Triton has a class of its own that is called tuple.
    return tl.tensor(held, tl.block_type(held.dtype, [*held.data.shape]) if is_block else held.dtype)
