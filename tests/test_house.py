"""The rules of the house: who may import whom, how long things may be, and that everything is found by its name."""

import ast
import importlib
import importlib.util
import re
import statistics
import subprocess
import sys
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

from castile.launch.__main__ import commands

CHECKOUT = Path(__file__).resolve().parent.parent
# Top to bottom: a package imports only itself and what stands after it.
PACKAGES = ("launch", "planner", "runtime", "kernels")
# The rooms of the runtime that run tasks, move data or talk; the others are pure, and all that the planner uses.
BUSY_ROOMS = {"executor", "runner", "worker", "mapper", "debug", "watchdog", "backends", "comm"}
# Who may import a package that is not there everywhere, as module names or their beginnings.
OWNERS = {
    "mpi4py": ("castile.runtime.comm.mpi",),
    "cupy": (
        "castile.runtime.comm.looks",
        "castile.runtime.comm.nccl",
        "castile.runtime.comm.staged",
        "castile.runtime.backends.cuda",
        "castile.kernels.triton",
    ),
    "cupyx": ("castile.runtime.comm.nccl", "castile.runtime.backends.cuda", "castile.kernels.triton"),
    "triton": ("castile.kernels.triton", "castile.kernels.estimates"),
    "onnx": ("castile.launch.importers.onnx",),
}
# Folders in which a file's name is all the registration there is.
REGISTERED = (
    "planner/ops", "planner/layers", "planner/searches", "planner/rewrites", "runtime/backends", "runtime/comm",
    "launch/models", "launch/data", "launch/importers", "kernels/numpy", "kernels/triton",
    "kernels/cupy",
)  # fmt: skip
# Rooms of a package in the order in which a plan, or a run, comes about: one imports itself and what stands before it.
# What stands in one entry is one room: a module, and the folder that it fronts. The launcher's commands come after all.
WAYS = {
    "planner": (
        {"axes"}, {"op"}, {"bodies", "shapes"}, {"graph"}, {"families"}, {"ops"}, {"layers"}, {"rewrite", "rewrites"},
        {"strategy"}, {"step"}, {"lower", "lowering"}, {"cost", "costs"}, {"simulate", "simulation"}, {"choices"},
        {"evaluation"}, {"known"}, {"bounds"}, {"sketch"}, {"search", "searching", "searches"},
        {"explanation", "alternatives"},
    ),
    "launch": (
        {"processes"}, {"typed"}, {"checkpoints"}, {"models", "arrays", "importers"}, {"data"}, {"reports"},
        {"pictures"}, {"here"}, {"jobs"}, {"measuring"}, {"training"}, set(commands()),
    ),
}  # fmt: skip
MOST_LINES_OF_A_FILE = 400
MOST_LINES_OF_A_FUNCTION = 70
MOST_LINES_OF_A_MEDIAN_FUNCTION = 10


@cache
def modules() -> dict[str, Path]:
    """Every module of castile by its full name."""
    paths = [path for package in PACKAGES for path in sorted((CHECKOUT / package).rglob("*.py"))]
    return {name_of(path): path for path in paths}


def name_of(path: Path) -> str:
    parts = path.relative_to(CHECKOUT).with_suffix("").parts
    return ".".join(("castile", *(parts[:-1] if parts[-1] == "__init__" else parts)))


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


@cache
def imports(name: str) -> frozenset[str]:
    """The full names that a module imports, anywhere in it: `from a import b` is a.b where that is a module."""
    found: set[str] = set()
    for node in ast.walk(tree(modules()[name])):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            deeper = {f"{base}.{alias.name}" for alias in node.names}
            found |= (deeper & set(modules())) or {base}
    return frozenset(found)


def inside(name: str, *beginnings: str) -> bool:
    return any(name == beginning or name.startswith(beginning + ".") for beginning in beginnings)


def offences(is_wrong) -> list[str]:
    return [f"{name} imports {other}" for name in modules() for other in sorted(imports(name)) if is_wrong(name, other)]


def package_of(name: str) -> str:
    return name.split(".")[1] if name.startswith("castile.") else ""


def test_imports_run_one_way():
    def is_upward(name, other):
        return package_of(other) in PACKAGES and PACKAGES.index(package_of(other)) < PACKAGES.index(package_of(name))

    assert offences(is_upward) == []


@pytest.mark.parametrize("package", WAYS)
def test_rooms_are_in_order(package):
    where = {room: n for n, rooms in enumerate(WAYS[package]) for room in rooms}
    found = {path.stem for path in (CHECKOUT / package).iterdir() if not path.stem.startswith("__")}
    assert set(where) == found, "each module and folder has its place in WAYS"

    def place(name):
        return where.get(name.split(".")[2]) if inside(name, f"castile.{package}") and name.count(".") > 1 else None

    def is_wrong(name, other):
        # A folder of which files are found by name is a list, and no room that is used.
        is_list = other.removeprefix("castile.").replace(".", "/") in REGISTERED
        places = place(name), place(other)
        return None not in places and not is_list and places[1] > places[0]

    assert offences(is_wrong) == []


def test_only_the_backends_use_kernels():
    # How loops are compiled is no kernel.
    def is_wrong(name, other):
        users = ("castile.kernels", "castile.runtime.backends")
        return inside(other, "castile.kernels") and other != "castile.kernels.compiler" and not inside(name, *users)

    # The launcher shows kernels' sources, which it takes from the table, and has the ways to run their calls timed, or
    # told of chips that are not here.
    def is_seen(name, other):
        rooms = ("table", "tuning", "estimates.calls")
        return inside(name, "castile.launch") and other in [f"castile.kernels.{room}" for room in rooms]

    assert offences(lambda name, other: is_wrong(name, other) and not is_seen(name, other)) == []


def test_the_planner_and_the_pure_rooms_use_no_busy_room():
    busy = [f"castile.runtime.{room}" for room in BUSY_ROOMS]

    def is_wrong(name, other):
        thinks = inside(name, "castile.planner") or (inside(name, "castile.runtime") and not inside(name, *busy))
        return thinks and inside(other, *busy)

    assert offences(is_wrong) == []


@pytest.mark.parametrize("library", OWNERS)
def test_a_library_that_may_be_absent_has_its_owners(library):
    assert offences(lambda name, other: inside(other, library) and not inside(name, *OWNERS[library])) == []


def test_no_import_is_bare_or_relative():
    assert offences(lambda name, other: inside(other, *PACKAGES)) == []
    relative = [
        f"{name}, line {node.lineno}"
        for name, path in modules().items()
        for node in ast.walk(tree(path))
        if isinstance(node, ast.ImportFrom) and node.level
    ]
    assert relative == []


def test_no_import_cycle():
    below = {name: [other for other in imports(name) if other in modules() and other != name] for name in modules()}
    done: set[str] = set()
    path: list[str] = []

    def visit(name):
        if name in path:
            pytest.fail(" -> ".join([*path[path.index(name) :], name]))
        if name not in done:
            path.append(name)
            for other in below[name]:
                visit(other)
            path.pop()
            done.add(name)

    for name in below:
        visit(name)


@cache
def top_level(name: str) -> set[str]:
    """What a module binds by its own statements, wherever in it they stand."""
    bound: set[str] = set()
    for node in ast.walk(tree(modules()[name])) if name in modules() else ():
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            bound.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            bound.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            bound |= {alias.asname or alias.name for alias in node.names}
    return bound


def test_programs_within_texts_import_what_there_is():
    """Programs that tests and pages hold as text are read by no checker, and fail late when a module has moved."""
    pages = [CHECKOUT / "README.md", *(CHECKOUT / "docs").glob("*.md")]
    programs = [path for folder in ("tests", "benchmarks") for path in (CHECKOUT / folder).rglob("*.py")]
    statement = re.compile(rf"from (castile\.(?:{'|'.join(PACKAGES)})[\w.]*) import (\w+(?:, \w+)*)")
    found = [(path, text) for path in (*pages, *programs) for text in statement.findall(path.read_text("utf-8"))]
    named = {(path.name, base, name) for path, (base, names) in found for name in names.split(", ")}
    known = {*modules(), *map(package_above, modules())}
    wrong = {
        f"{file}: from {base} import {name}"
        for file, base, name in named
        if f"{base}.{name}" not in known and name not in top_level(base)
    }
    assert len(named) > 100 and wrong == set()


def package_above(name: str) -> str:
    return name.rpartition(".")[0]


BLOCKED = """
import importlib, sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"cupy", "cupyx", "triton", "mpi4py"} or name.startswith("castile.kernels"):
            raise ImportError(name + " is blocked")
sys.meta_path.insert(0, Absent())
for name in sys.argv[1:]:
    importlib.import_module(name)
assert not [name for name in sys.modules if name.split(".")[0] in {"cupy", "triton", "mpi4py"}]
"""


def test_the_planner_imports_without_gpu_mpi_and_kernels():
    names = [name for name in modules() if inside(name, "castile.planner")]
    words = [sys.executable, "-c", BLOCKED, *names]
    ended = subprocess.run(words, cwd=CHECKOUT, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr


def test_the_launcher_starts_without_the_heavy_libraries():
    code = (
        "import sys; import castile.launch.__main__ as m; m.commands(); "
        "print(sorted({'numpy', 'scipy', 'numba', 'tyro', 'rich', 'mpi4py'} & set(sys.modules)))"
    )
    answer = subprocess.run([sys.executable, "-c", code], cwd=CHECKOUT, capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


def test_files_are_short():
    lengths = {
        name: len(path.read_text(encoding="utf-8").splitlines())
        for name, path in modules().items()
        if not inside(name, "castile.kernels")
    }
    worst = max(lengths, key=lengths.__getitem__)
    assert lengths[worst] <= MOST_LINES_OF_A_FILE, f"{worst} has {lengths[worst]} lines"


def function_lengths() -> dict[str, int]:
    """Lines of every function without its docstring."""
    lengths = {}
    for name, path in modules().items():
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                doc = node.body[0] if ast.get_docstring(node) is not None else None
                words = (doc.end_lineno or doc.lineno) - doc.lineno + 1 if doc else 0
                lengths[f"{name}.{node.name} (line {node.lineno})"] = node.end_lineno - node.lineno + 1 - words
    return lengths


def test_functions_are_short():
    lengths = function_lengths()
    counted = {name: length for name, length in lengths.items() if not name.startswith("castile.kernels")}
    worst = max(counted, key=counted.__getitem__)
    assert counted[worst] <= MOST_LINES_OF_A_FUNCTION, f"{worst} has {counted[worst]} lines"
    median = statistics.median(lengths.values())
    assert median <= MOST_LINES_OF_A_MEDIAN_FUNCTION, f"the median of {len(lengths)} functions is {median} lines"


def test_every_module_says_what_it_is():
    assert [name for name, path in modules().items() if not ast.get_docstring(tree(path))] == []


def test_work_left_to_do_names_its_place():
    # A note without a number of an issue or a page of decisions is a promise that nobody keeps.
    left = re.compile(r"#.*\b(TODO|FIXME|XXX|HACK)\b(?!.*(#\d+|docs/decisions/))")
    found = [
        f"{path.relative_to(CHECKOUT)}:{number}"
        for folder in (*PACKAGES, "castile", "benchmarks")
        for path in sorted((CHECKOUT / folder).rglob("*.py"))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if left.search(line)
    ]
    assert found == []


def test_every_decision_is_in_the_list():
    folder = CHECKOUT / "docs" / "decisions"
    listed = re.findall(r"^\| \[(\d{4})\]\((\1-[a-z0-9-]+\.md)\) \|", (folder / "README.md").read_text("utf-8"), re.M)
    assert [page for _, page in listed] == sorted(path.name for path in folder.glob("[0-9]*.md"))


def registered() -> list[str]:
    paths = [path for folder in REGISTERED for path in sorted((CHECKOUT / folder).glob("*.py"))]
    return [name_of(path) for path in paths if path.stem != "__init__"]


@pytest.mark.parametrize("name", registered())
def test_what_is_registered_by_its_file_is_importable(name):
    for library, owners in OWNERS.items():
        if inside(name, *owners) and importlib.util.find_spec(library) is None:
            pytest.skip(f"{name} needs {library}, which is not installed")
    assert importlib.import_module(name).__doc__


def test_commands_are_what_their_files_say():
    from castile.launch.__main__ import commands

    found = commands()
    assert {"doctor", "launch"} <= set(found)
    for name, line in found.items():
        module = importlib.import_module(f"castile.launch.{name}")
        assert line and line == (module.COMMAND.__doc__ or "").split("\n")[0], name
        assert callable(module.run), name


def test_each_command_is_listed_in_order():
    from castile.launch.__main__ import commands

    assert all(first < second for first, second in pairwise(commands()))


def test_commands_that_run_nothing_import_no_scipy():
    # it takes longer to import than all of castile
    names = [
        f"castile.launch.{name}" for name in ("checkpoint", "diff", "doctor", "explain", "launch", "plan", "simulate")
    ]
    code = "import importlib, sys; [importlib.import_module(n) for n in sys.argv[1:]]; print('scipy' in sys.modules)"
    words = [sys.executable, "-c", code, *names]
    assert subprocess.run(words, cwd=CHECKOUT, capture_output=True, text=True, check=True).stdout == "False\n"


def test_options_are_read_without_typeguard():
    # tyro asks it about types such as `int | None`, and it takes longer to import than tyro
    names = ("diff", "explain", "predict", "profile", "simulate", "train", "validate")
    code = (
        "import importlib, sys; from castile.launch.__main__ import parse; "
        "words = lambda name: ['mlp', 'mlp'] if name == 'diff' else ['mlp']; "
        "[parse(name, importlib.import_module(f'castile.launch.{name}'), words(name)) for name in sys.argv[1:]]; "
        "print('typeguard' in sys.modules)"
    )
    words = [sys.executable, "-c", code, *names]
    assert subprocess.run(words, cwd=CHECKOUT, capture_output=True, text=True, check=True).stdout == "False\n"


def test_of_operators_those_are_loaded_that_a_network_has():
    code = (
        "import sys; from castile.launch.__main__ import main; "
        "assert main('plan mlp --machine dgx-h100 --search data_parallel --json'.split()) == 0; "
        "found = [name for name in sys.modules if name.startswith('castile.planner.ops.')]; "
        "print([name.rpartition('.')[2] for name in found], file=sys.stderr)"
    )
    ended = subprocess.run([sys.executable, "-c", code], cwd=CHECKOUT, capture_output=True, text=True, check=True)
    # The last line: before it a command that goes on for long says what it waits for.
    loaded = ast.literal_eval(ended.stderr.splitlines()[-1])
    assert {"linear", "sgd"} <= set(loaded) and len(loaded) < 20, loaded
