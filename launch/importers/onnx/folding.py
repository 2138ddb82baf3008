"""What nodes make of known numbers: by ONNX's own evaluator, but where weights are only moved, and not looked at.

It does not know what becomes of the numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from castile.launch.importers.onnx.file import numbers, package
from castile.launch.importers.onnx.values import Known, Unsupported, from_start, known

# Operators that give known numbers a new shape; what they make of a weight is that weight still.
MOVES = ("Transpose", "Reshape", "Flatten", "Squeeze", "Unsqueeze")


@dataclass(frozen=True)
class Folding:
    """Computes nodes of a file.

    batch, file_batch   samples a step, and how many the file itself says
    noted               whether the file says what is trained
    """

    path: str
    opsets: Mapping[str, int]
    batch: int
    file_batch: int
    noted: bool

    def folded(self, node: Any, inputs: Sequence[Any]) -> list[Known]:
        """What a node makes of known numbers is known."""
        given = [one for one in inputs if one is not None]
        first = given[0] if given else None
        if node.op_type == "Identity" and first is not None and first.learned:
            # weights that begin alike PyTorch writes once, and names so, where it does not note what is trained
            return [first if self.noted else replace(first, name=node.output[0])]
        if node.op_type == "Constant" and (tensor := _tensor(node)) is not None:
            return [numbers(tensor, self.path).derived("", tuple(tensor.dims), lambda a: a)]
        if node.op_type == "ConstantOfShape":
            value = next((package().numpy_helper.to_array(a.t) for a in node.attribute), np.zeros(1, np.float32))
            full = np.broadcast_to(value.reshape(()), tuple(int(n) for n in given[0].array))
            # files that left out their weights hold the shapes of these instead
            is_weight = given[0].learned and full.size > 1 and full.dtype.kind == "f"
            return [known(node.output[0], full, is_weight)]
        if node.op_type in MOVES and first is not None and first.learned and first.is_floating:
            return [_moved(node, first, partial(evaluated, node, opsets=self.opsets), inputs[1:])]
        if node.op_type == "Expand":
            return [known(node.output[0], self._stretched(*(one.array for one in given)))]
        if node.op_type == "GatherElements":
            return [known(node.output[0], _at_places(node, *(one.array for one in given)))]
        made = evaluated(node, [one if one is None else one.array for one in inputs], self.opsets)
        return [known(name, array) for name, array in zip(node.output, made, strict=False)]

    def _stretched(self, array: np.ndarray, stated: np.ndarray) -> np.ndarray:
        """Known numbers as long as a file says, where the batch that it was written for stands for the one there is."""
        shape, before = [int(n) for n in stated], len(stated) - array.ndim
        for n, length in enumerate(shape[before:] if self.file_batch and before >= 0 else ()):
            there = array.shape[n]
            if (there, length) == (self.batch, self.file_batch):
                shape[before + n] = self.batch
            elif (there, length) == (self.file_batch, self.batch) and (array == array.take([0], n)).all():
                array = array.take([0], n)
        try:
            return np.broadcast_to(array, np.broadcast_shapes(array.shape, tuple(shape)))
        except ValueError as error:
            raise Unsupported(f"of known numbers ({error})") from error


def evaluated(node: Any, arrays: Sequence[np.ndarray | None], opsets: Mapping[str, int]) -> list[np.ndarray]:
    """What ONNX's own evaluator says that a node gives. Raises Unsupported where it cannot."""
    onnx = package()
    feeds = {name: array for name, array in zip(node.input, arrays, strict=True) if name and array is not None}
    names = [onnx.helper.make_tensor_value_info(name, 0, None) for name in feeds]
    outputs = [onnx.helper.make_tensor_value_info(name, 0, None) for name in node.output if name]
    graph = onnx.helper.make_graph([node], "one", names, outputs)
    versions = [onnx.helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    try:
        evaluator = onnx.reference.ReferenceEvaluator(onnx.helper.make_model(graph, opset_imports=versions))
        # logarithms of distances of zero are left out by what comes after them
        with np.errstate(all="ignore"):
            made = evaluator.run(None, feeds)
        found = iter([np.asarray(one) for one in made])
    except Exception as error:
        raise Unsupported(f"of known numbers ({' '.join(str(error).split())})") from error
    return [next(found) if name else np.zeros(0) for name in node.output]


def _tensor(node: Any) -> Any:
    """The tensor of a constant that states one, under the name that the constant gives it."""
    for attribute in node.attribute:
        if attribute.name == "value":
            tensor = type(attribute.t)()
            tensor.CopyFrom(attribute.t)
            tensor.name = node.output[0]
            return tensor
    return None


def _at_places(node: Any, array: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Elements of a dim, which ONNX's evaluator takes of at most 64."""
    dim = next((a.i for a in node.attribute if a.name == "axis"), 0) % array.ndim
    there = array[tuple(slice(None if n == dim else length) for n, length in enumerate(places.shape))]
    return np.take_along_axis(there, from_start(places, array.shape[dim]), dim)


def _moved(node: Any, first: Known, made: Callable[[list[np.ndarray | None]], list[np.ndarray]], others: Any) -> Known:
    """A weight whose dims an operator moves; its numbers are not looked at."""
    if node.op_type == "Transpose":
        dims = next((tuple(a.ints) for a in node.attribute if a.name == "perm"), tuple(range(len(first.shape)))[::-1])
        return first.turned(dims)
    blank = np.broadcast_to(np.zeros((), np.int8), first.shape)
    (like,) = made([blank, *(one if one is None else one.array for one in others)])
    return first.reshaped(like.shape)
