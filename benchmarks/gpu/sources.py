"""What was found of a case holds as long as the sources behind it are the same: their digests. It runs none of them."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.gpu import cases
from benchmarks.gpu.calls import calls
from castile.kernels.table import Table, definitions

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("kernels", "launch", "planner", "runtime")
THEIRS = ("benchmarks/gpu/theirs.py", "benchmarks/torch_model.py")
# What is imported of these is followed.
FOLLOWED = ("castile.kernels", "tests")
# Times what a kernel takes.
CLOCK = "castile.kernels.cupy.measuring"


def of_case(case: Any, errand: str) -> str:
    """Of PyTorch's side, of the kernels that a case calls, or of all of castile where it is a whole step."""
    if errand == "peers":
        return _digest(ROOT / name for name in THEIRS)
    if isinstance(case, cases.Step):
        return of_all()
    return of_kernels(frozenset(call.kernel for call in calls(case)))


@cache
def of_test(path: str, kernel: str) -> str:
    """Of a test in that file and what it imports of tests and kernels, and of one kernel or of all of castile."""
    module = path.removesuffix(".py").replace("/", ".")
    behind = of_kernels(frozenset((kernel,))) if kernel in definitions() else of_all()
    return f"{_digest(map(_path, _closed({module})))} {behind}"


@cache
def of_kernels(names: frozenset[str]) -> str:
    """Of their definitions and forms, and of all that these import of the kernels' package."""
    table = Table("triton")
    modules = {CLOCK}
    for name in names:
        found = (forms.get(name) for forms in (definitions(), table.forms, table.library))
        modules |= {form.__module__ for form in found if form}
    return _digest(_path(module) for module in _closed(modules))


@cache
def of_all() -> str:
    """Of all of castile."""
    return _digest(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def _closed(modules: set[str]) -> set[str]:
    """With all that they import, and what these import."""
    known, new = set[str](), modules
    while new:
        known |= new
        new = {other for module in new for other in _imported(module)} - known
    return known


@cache
def _imported(module: str) -> frozenset[str]:
    """The modules that one imports, wherever in it, and that are followed."""
    return frozenset(name for name in _named(ast.parse(_path(module).read_text())) if _path(name).is_file())


def _named(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(FOLLOWED):
            yield str(node.module)
            yield from (f"{node.module}.{one.name}" for one in node.names)


def _path(module: str) -> Path:
    """A module's file, whether or not there is one."""
    inside = ROOT.joinpath(*module.removeprefix("castile.").split("."))
    return inside / "__init__.py" if inside.is_dir() else inside.with_suffix(".py")


def _digest(paths: Iterable[Path]) -> str:
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in sorted(paths))).hexdigest()[:16]
