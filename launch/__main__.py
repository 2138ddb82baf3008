"""The command `castile`: finds the commands by their files' names, reads the command line, and runs one.

Knows no command: a module of this folder that defines COMMAND (a dataclass whose docstring is its help) and
`run(command) -> int` is one, under its file's name. A module may bring its own `parse(args) -> command`.
"""

import ast
import contextlib
import difflib
import importlib
import io
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, TextIO, cast

from castile import __version__
from castile.launch.processes import mpi_settings, ranks
from castile.launch.processes.streams import Lossy, Parted

_FOLDER = Path(__file__).parent


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line `argv` (default: the process's own) and returns the exit status: 0, 1 or 2."""
    args = list(sys.argv[1:] if argv is None else argv)
    # A rank is a core. Ranks share the cores, and one alone loses too by pools of threads in its libraries, which spin
    # between many short products: steps of gpt took three times as long, of lstm seven times.
    for name in mpi_settings.THREAD_VARIABLES:
        os.environ.setdefault(name, "1")
    # Names of files need not be text, and an encoding need not have every letter: that is no reason to stop.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    # Where it was closed before Python began there is none, and what asks it or writes to it need not know.
    sys.stderr = sys.stderr or open(os.devnull, "w")
    out = sys.stdout and cast(TextIO, Parted(sys.stdout))
    with contextlib.redirect_stderr(cast(TextIO, Lossy(sys.stderr))), contextlib.redirect_stdout(out):
        return ranks.main_guard(lambda: _dispatch(args))


def commands() -> dict[str, str]:
    """The name and the one-line help of every command, in alphabetical order, without importing any."""
    found = {path.stem: _one_line(path) for path in sorted(_FOLDER.glob("*.py"))}
    return {name: line for name, line in found.items() if line is not None}


def parse(name: str, module: ModuleType, args: Sequence[str]) -> Any:
    """The module's COMMAND made from `args`; a usage error or `--help` raises SystemExit, told by rank 0."""
    # slow to import, and not needed for the overview
    from castile.launch.typed import options

    if hasattr(module, "parse"):
        return module.parse(args)
    return options.read(module.COMMAND, f"castile {name}", args)


def _dispatch(args: list[str]) -> int:
    ranks.this_world()
    _check_text(args)
    if not args or args[0] in ("-h", "--help", "help"):
        if not args[1:]:
            return _printed(_overview)
        args = [args[1], "--help"]
    if args[0] == "--version":
        return _printed(lambda: f"castile {__version__}")
    name, *rest = args
    _check_known(name)
    module = importlib.import_module(f"castile.launch.{name}")
    with _only_rank_0_speaks():
        command = parse(name, module, rest)
    return int(module.run(command))


def _printed(text: Callable[[], str]) -> int:
    if not ranks.silent():
        print(text())
    return 0


def _overview() -> str:
    found = commands()
    width = max(map(len, found))
    lines = [f"  {name:<{width}}  {line}" for name, line in found.items()]
    head = "usage: castile COMMAND ...\n\nFinds a fast way to train a network in parallel, and trains it so.\n"
    tail = "`castile COMMAND --help` explains one; `castile --version` says which castile this is."
    return "\n".join([head, *lines, "", tail])


def _check_text(words: Sequence[str]) -> None:
    """Names of files stand in plans, run files, records and pictures, all of which are UTF-8."""
    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError as error:
            raise ranks.UserError(
                f"the word {word!r} is not UTF-8: give what it names another name, which can be written down"
            ) from error


def _check_known(name: str) -> None:
    # To read all of them takes a tenth of a short command's time.
    if any(path.stem == name and _one_line(path) is not None for path in _FOLDER.glob("*.py")):
        return
    found = commands()
    what, known = ("option", ["--help", "--version"]) if name.startswith("-") else ("command", [*found, "help"])
    near = difflib.get_close_matches(name.lower(), known, n=1)
    hint = f"did you mean `castile {near[0]}`?" if near else f"the {what}s are {', '.join(known)}"
    raise ranks.UserError(f"castile has no {what} '{name}'; {hint}")


@contextlib.contextmanager
def _only_rank_0_speaks() -> Iterator[None]:
    if not ranks.silent():
        yield
        return
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            yield
    except SystemExit as stop:
        if stop.code:
            # Rank 0 reads the same words and ends the job after it has told why.
            ranks.wait_for_the_end(2)
        raise


def _one_line(path: Path) -> str | None:
    text = path.read_text(encoding="utf-8")
    if "COMMAND" not in text or path.name == Path(__file__).name:
        return None
    tree = ast.parse(text)
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    for node in tree.body:
        if isinstance(node, ast.Assign) and "COMMAND" in [ast.unparse(target) for target in node.targets]:
            words = ast.get_docstring(classes.get(ast.unparse(node.value), tree))
            return (words or "").split("\n")[0]
    return None


if __name__ == "__main__":
    sys.exit(main())
