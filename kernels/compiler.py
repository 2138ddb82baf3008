"""How Numba compiles castile's loops: without passes that take long and bring nothing, and each loop by one process
only.

It does not know what the loops compute. It needs Numba, and is imported where that is installed.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any
from zlib import crc32

from numba.core import event
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder, Flags


class Loop(CompilerBase):
    """The compiler of functions that Python calls."""

    def compile_extra(self, func: Any) -> Any:
        self.state.update(flags=_Options(self.state.flags))
        with _uncollected():
            return super().compile_extra(func)

    def define_pipelines(self) -> list[Any]:
        return [DefaultPassBuilder.define_nopython_pipeline(self.state)]


class Part(Loop):
    """The compiler of functions that only compiled loops call.

    Numba would optimise such a function and make machine code of it, and do both again in each caller. Here it becomes
    machine code only as a part of its callers.
    """

    def define_pipelines(self) -> list[Any]:
        self.state.update(library=_Joined(self.state.targetctx.codegen(), self.state.func_id.func_qualname))
        return super().define_pipelines()


class _Options(Flags):
    """Numba's options, compared by those that are set. Numba compares them for each of the ways there are to add two
    numbers, and makes a dictionary of all of them each time.
    """

    def __hash__(self) -> int:
        return hash(frozenset(self._values))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Options) and self._values == other._values


class _Joined(JITCodeLibrary):
    """The unoptimised code of a function and of those that it calls."""

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:
        """None: there is no machine code."""
        self._ensure_finalized()
        return 0

    @property
    def codegen(self) -> Any:
        """Of which numba asks that the machine code knows of its environment."""
        return _NoEnvironment


class _NoEnvironment:
    @staticmethod
    def set_env(name: str, environment: Any) -> None:
        pass


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """A context without garbage collection, which would traverse all that Numba knows of a function, many times.

    Unlike in `castile.runtime.garbage`, what is left over is garbage: it stays in the youngest generation.
    """
    looked = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if looked:
            gc.enable()


def by_one_process(loop: Any) -> Any:
    """The loop, which waits while another process compiles it and then loads the result from disk: ranks need the same
    loops at the same time.
    """
    compile_here = loop.compile

    def compiled_once(signature: Any) -> Any:
        with turn(loop):
            return compile_here(signature)

    loop.compile = compiled_once
    return loop


@contextlib.contextmanager
def turn(loop: Any) -> Iterator[None]:
    """A context that holds the loop's lock among processes; where nothing can be locked, none."""
    place = crc32(loop.__qualname__.encode())
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):
            file = _turns(Path(loop.stats.cache_path))
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
            except BlockingIOError:
                # For whoever counts the time to wait is to compile.
                with event.trigger_event("numba:compile", {"dispatcher": loop}):
                    fcntl.lockf(file, fcntl.LOCK_EX, 1, place)
            held.callback(fcntl.lockf, file, fcntl.LOCK_UN, 1, place)
        yield


@cache
def _turns(folder: Path) -> Any:
    """The lock file of a folder, in which each loop locks a byte. It stays open: closing it would release all locks."""
    return (folder / "turns.lock").open("ab")
