"""ONNX's own suite for backends: its cases of one operator, and those that PyTorch once exported.

python -m tests.onnx_suite          # the whole score, and what castile lacks of the rest
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import numpy as np
import onnx
from onnx import numpy_helper

from tests.onnx_cases import answer

# Numbers of few bits, which castile computes with in other words.
LEFT_OUT = re.compile(r"_cuda|float16|float8|float4|u?int[24](_|$)|_e4m3|_e5m2")
# Their cases take longer to make than all others together.
SLOW = ("averagepool", "lppool", "maxpool")
FOLDERS = ("pytorch-converted", "pytorch-operator")


@dataclass(frozen=True)
class Case:
    """A network, what it is given, and what it should say, to some tolerance."""

    name: str
    model: onnx.ModelProto
    inputs: list[np.ndarray]
    outputs: list[np.ndarray]
    rtol: float = 1e-3
    atol: float = 1e-7


@dataclass
class Score:
    """Names of cases that were right, and why others were not: wrong numbers, or what castile lacks."""

    right: list[str] = field(default_factory=list)
    wrong: dict[str, str] = field(default_factory=dict)
    lacking: dict[str, str] = field(default_factory=dict)


def of_nodes(without: Collection[str] = ()) -> Iterator[Case]:
    """The cases of one operator, but those of some of the suite's modules."""
    nodes = import_module("onnx.backend.test.case.node")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for info in iter_modules(nodes.__path__):
            if info.name not in without:
                import_module(f"{nodes.__name__}.{info.name}")
    for case in nodes._NodeTestCases:
        given, wanted = (
            [numpy_helper.to_array(one) if isinstance(one, onnx.TensorProto) else one for one in some]
            for some in case.data_sets[0]
        )
        # sequences and texts are no arrays of numbers
        told = [None if one is None or isinstance(one, list) else np.asarray(one) for one in (*given, *wanted)]
        arrays = [one for one in told if one is not None and one.dtype.kind in "fiub"]
        if len(arrays) == len(told) and not LEFT_OUT.search(case.name):
            yield Case(case.name, case.model, arrays[: len(given)], arrays[len(given) :], case.rtol, case.atol)


def of_pytorch() -> Iterator[Case]:
    """The networks of one layer, with their weights, that PyTorch exported."""
    data = Path(onnx.__file__).parent / "backend" / "test" / "data"
    for path in sorted(path for folder in FOLDERS for path in (data / folder).iterdir() if path.is_dir()):
        arrays = [
            [_array(file) for file in sorted((path / "test_data_set_0").glob(f"{kind}_*.pb"))]
            for kind in ("input", "output")
        ]
        yield Case(path.name, onnx.load_model(path / "model.onnx"), *arrays, atol=1e-6)


def _array(path: Path) -> np.ndarray:
    return numpy_helper.to_array(onnx.load_tensor(str(path)))


def score(cases: Iterator[Case]) -> Score:
    """How castile does."""
    found = Score()
    for case in cases:
        told = answer(case.model, case.inputs)
        if told.results is None:
            found.lacking[case.name] = told.lacks
        elif trouble := _trouble(case, told.results):
            found.wrong[case.name] = trouble
        else:
            found.right.append(case.name)
    return found


def _trouble(case: Case, results: list[np.ndarray]) -> str:
    """In which way results are not what they should be; "" where they are."""
    for number, (got, want) in enumerate(zip(results, case.outputs, strict=True)):
        if got.shape != want.shape:
            return f"result {number} has shape {got.shape}, not {want.shape}"
        whole = got if want.dtype.kind == "f" else got.astype(want.dtype)
        if not np.allclose(whole, want, case.rtol, case.atol, equal_nan=True):
            return f"result {number} is off by {np.abs(whole - want).max()}"
    return ""


def main() -> None:
    """Print the score."""
    for what, cases in (("cases of one operator", of_nodes()), ("cases of PyTorch", of_pytorch())):
        found = score(cases)
        every = len(found.right) + len(found.wrong) + len(found.lacking)
        print(f"{what}: {len(found.right)} of {every} right, {len(found.wrong)} wrong")
        for name, why in found.wrong.items():
            print(f"  wrong: {name}: {why}")
        for why, count in Counter(found.lacking.values()).most_common(40):
            print(f"  {count:4d} lack {why}")


if __name__ == "__main__":
    main()
