"""Python files of the user's own: they are run here, and what fails in them is told in one sentence with its line.

It does not know what they are for.
"""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from castile.launch.processes import streams


@contextmanager
def running(path: str | Path, doing: str) -> Iterator[None]:
    """What fails within is the user's code: raises ValueError in one sentence that begins with `doing`. What it prints
    goes to standard error.
    """
    try:
        with streams.beside():
            yield
    except (Exception, SystemExit) as error:
        raise ValueError(f"{doing} failed: {in_one_line(path, error)}") from error


def in_one_line(path: str | Path, error: BaseException) -> str:
    """The error in one line: its kind, its text, and the last line of the file that it came by."""
    said = " ".join(str(error).split())
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == _full(path)]
    # Python's own text of a fault of syntax says the line
    at = f" (line {lines[-1]})" if lines and not isinstance(error, SyntaxError) else ""
    if isinstance(error, SystemExit):
        return f"it calls sys.exit{at}: leave that, and reading a command line, to `if __name__ == '__main__'`"
    return f"{type(error).__name__}{': ' * bool(said)}{said}{at}"


def module(path: str | Path, what: str, gives: str) -> ModuleType:
    """The file, run. Raises ValueError in one sentence that begins with `what` and the path where it cannot be, and
    where it lacks the function that `gives` begins with, as in "search(run), which proposes plans".

    It sees a command line of its own name alone: castile's is not its. What it prints goes to standard error.
    """
    spec = importlib.util.spec_from_file_location(_name(path), _full(path))
    if spec is None or spec.loader is None:
        raise ValueError(f"{what} {path} is no Python file: its name should end in .py")
    found = importlib.util.module_from_spec(spec)
    # What lies beside it can be imported, behind all that is installed.
    if (folder := str(_full(path).parent)) not in sys.path:
        sys.path.append(folder)
    # Python looks a class's annotations up where its module is listed.
    sys.modules[found.__name__] = found
    words, sys.argv = sys.argv, [str(path)]
    try:
        with streams.beside():
            spec.loader.exec_module(found)
    except (Exception, SystemExit) as error:
        del sys.modules[found.__name__]
        is_its_own = isinstance(error, OSError) and error.filename == str(_full(path))
        why = error.strerror if isinstance(error, OSError) and is_its_own else in_one_line(path, error)
        raise ValueError(f"{what} {path}: {why}") from error
    finally:
        sys.argv = words
    if not callable(getattr(found, gives.partition("(")[0], None)):
        raise ValueError(f"{what} {path} has no function {gives}")
    return found


def _name(path: str | Path) -> str:
    """The name of its module: its own behind its folder, as others elsewhere, or what is installed, may share that."""
    return f"{_full(path).parent}/.{Path(path).stem}"


def _full(path: str | Path) -> Path:
    return Path(path).absolute()
