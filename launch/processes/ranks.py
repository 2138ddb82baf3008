"""Which rank this process is, and how a job ends: with its status, one clear sentence, or one traceback.

Knows no command and no plan; MPI only through the runtime's communicator.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import os
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from castile.launch.processes import installing, last_words, mpi_settings
from castile.launch.processes.signals import PASSED_ON, SIGNALS, Handler, handle, hear_no_more, limit, meant, restore
from castile.launch.processes.streams import UNHEARD

if TYPE_CHECKING:
    from castile.runtime.comm.mpi import MpiCommunicator

# How long a rank that is not the first to fail waits to be ended by the one that was.
PATIENCE_SECONDS = 5.0
# So long the ranks of other hosts than the first hold back, because a claim is seen on its own host only and the end of
# a job takes a while to get to the others; those of each further host by so much more, up to so many hosts.
OTHERS_DELAY_SECONDS, HOST_DELAY_SECONDS, MOST_DELAYS = 1.0, 0.2, 10

# After so long an interrupt that was dropped comes again.
REPEAT_SECONDS = 0.01

# The file of what loads modules, as frames have it.
_LOADER = "<frozen importlib._bootstrap>"
# Open MPI's mpirun, others', and Slurm's srun; what mpirun starts by srun has both.
_OF_SLURM = "SLURM_STEP_NUM_TASKS"
_SIZE_VARIABLES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", _OF_SLURM)

# What signals have raised: a library that one comes upon may drop it, or tell of a fault of its own instead.
_heard: list[KeyboardInterrupt | Ended] = []


class UserError(ValueError):
    """A mistake that the user can mend: its text is one clear sentence that says how."""


class Ended(BaseException):
    """A signal ended the work, as the user or what runs the job wanted; the text says what there is of it.

    at_once   whether no thread is waited for that writes or reads still, as the user asked for the second time
    """

    def __init__(self, number: int, text: str, at_once: bool = False) -> None:
        super().__init__(text)
        self.number, self.at_once = number, at_once


@dataclass(frozen=True)
class World:
    """This process among the ranks of the job: `local_rank` counts those of its own host, `host_index` the hosts.

    `communicator` is None when the process is alone.
    """

    rank: int
    size: int
    local_rank: int
    host: str
    host_index: int = 0
    communicator: MpiCommunicator | None = None


def num_launched() -> int:
    """The number of ranks that an MPI launcher says it started with this one; 1 without a launcher."""
    sizes = (int(os.environ[name]) for name in _SIZE_VARIABLES if os.environ.get(name, "").isdigit())
    return next(sizes, 1)


@functools.cache
def this_world() -> World:
    """This process's place in the job, from MPI itself; MPI is not started where no launcher started this process.

    The first call is one for all ranks to make together.
    Raises UserError when a launcher started several ranks but MPI is missing here or knows of one rank only.
    """
    launched = num_launched()
    if launched == 1:
        return World(rank=0, size=1, local_rank=0, host=socket.gethostname())
    for name, value in mpi_settings.process_variables().items():
        os.environ.setdefault(name, value)
    communicator = _communicator(launched)
    if communicator.size == 1:
        raise UserError(f"the launcher started {launched} ranks, but each sees itself alone: {_mismatch(launched)}")
    return World(
        rank=communicator.rank,
        size=communicator.size,
        local_rank=communicator.local_rank,
        host=communicator.host,
        host_index=communicator.host_index,
        communicator=communicator,
    )


def _mismatch(launched: int) -> str:
    ours = f"`castile launch -n {launched} ...`"
    if _SIZE_VARIABLES[0] not in os.environ and _OF_SLURM in os.environ:
        return f"srun has to speak to Open MPI: start them by `srun --mpi=pmix ...`, or by {ours} in the allocation"
    path = Path(sys.prefix) / "bin" / "mpirun"
    return f"mpirun and mpi4py belong to different MPI libraries; use {path}, or {ours}"


def _communicator(launched: int) -> MpiCommunicator:
    try:
        from castile.runtime.comm import mpi

        return mpi.world()
    except ImportError as error:
        raise UserError(
            f"the launcher started {launched} ranks, but MPI for Python does not load here ({error}): "
            f"install it with `{installing.line('castile[mpi]')}`"
        ) from error


def main_guard(body: Callable[[], int]) -> int:
    """Runs `body` and returns its exit status, ending the whole job when it fails on any rank.

    A user's mistake, or no room for what is printed, is one sentence from one rank and status 2; a rank that does not
    answer is one from another and status 1; any other exception is one traceback, from the first rank that failed, and
    status 1. After these comes what the process leaves, where it has something. All go to stderr. Ctrl-C is status 130.
    """
    with _hearing_interrupts():
        return _guarded(body)


def interrupt(end: KeyboardInterrupt | Ended, frame: FrameType | None) -> NoReturn:
    """Raise what a signal ends the work with, in its handler: it comes through whatever runs there."""
    if _is_loading(frame):
        # Libraries in C print what they meet while they are loaded; nothing is under way yet.
        os._exit(_interrupted(end))
    _heard.append(end)
    raise end


def _guarded(body: Callable[[], int]) -> int:
    _heard.clear()
    last_words.follow("")
    try:
        try:
            return body()
        finally:
            _flush()
    except SystemExit as stop:
        return _end(stop.code if isinstance(stop.code, int) else int(stop.code is not None), _text_of(stop.code))
    except (KeyboardInterrupt, Ended) as end:
        return _interrupted(end)
    except BrokenPipeError:
        # The reader of our output has gone.
        _drop_output()
        return _end(141, "")
    except BaseException as error:
        if _heard:
            return _interrupted(_heard[-1])
        # Whatever else is written is refused with its name.
        if isinstance(error, OSError) and error.filename is None and error.errno in UNHEARD:
            _drop_output()
            return _end(2, f"castile: {_where()}standard output: {error.strerror}; make room or send it elsewhere\n")
        if _is_unanswered(error):
            left = last_words.latest()
            return _end(1, f"castile: {error}{f': {left}' if left else ''}\n")
        left = f"castile: {last_words.following()}\n" if last_words.following() else ""
        if is_users_mistake(error):
            return _end(2, f"castile: {_where()}{_sentence(error)}\n{left}")
        return _end(1, f"{_report(error)}{left}")


def _interrupted(end: KeyboardInterrupt | Ended) -> int:
    if isinstance(end, KeyboardInterrupt):
        return _end(130, "")
    status = _end(128 + end.number, f"castile: {end}\n")
    if end.at_once:
        os._exit(status)
    return status


@contextlib.contextmanager
def _hearing_interrupts() -> Iterator[None]:
    """A block that Ctrl-C ends, and the signals that ask for an end, of which it is said which it was: a log may be all
    that there is to read. Interrupts come again where C code dropped them."""

    def dropped(what: Any) -> None:
        if not issubclass(what.exc_type, KeyboardInterrupt | Ended):
            hook(what)
            return
        # C code called Python, and went on: it comes again when that has ended, and ends what sleeps.
        number = what.exc_value.number if isinstance(what.exc_value, Ended) else signal.SIGINT
        threading.Thread(target=_repeat, args=(number, dropped.__code__)).start()

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    unhandled = (number for number in SIGNALS if signal.getsignal(number) is signal.SIG_DFL)
    ours: dict[signal.Signals, Handler] = dict.fromkeys(unhandled, _asked_to_end)
    # what a script starts in the background is to ignore Ctrl-C
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        ours[signal.SIGINT] = lambda number, frame: interrupt(KeyboardInterrupt(), frame)
        ours[PASSED_ON] = lambda number, frame: signal.raise_signal(signal.SIGINT)
    before = handle(ours)
    limit()
    hook, sys.unraisablehook = sys.unraisablehook, dropped
    try:
        yield
    finally:
        restore(before)
        sys.unraisablehook = hook


def _asked_to_end(number: int, frame: FrameType | None) -> NoReturn:
    interrupt(Ended(number, f"ended by {meant(number)}"), frame)


def _repeat(number: int, hook: CodeType) -> None:
    """Send the main thread a signal again, once it has left the hook, which could not raise what ends the work."""
    main = threading.main_thread().ident
    assert main is not None
    time.sleep(REPEAT_SECONDS)
    while hook in _running(sys._current_frames().get(main)):
        time.sleep(REPEAT_SECONDS)
    signal.pthread_kill(main, number)


def _is_loading(frame: FrameType | None) -> bool:
    return any(code.co_filename == _LOADER for code in _running(frame))


def _running(frame: FrameType | None) -> Iterator[CodeType]:
    """What runs there: the frame's code, that of who called it, and so on."""
    while frame is not None:
        yield frame.f_code
        frame = frame.f_back


def is_users_mistake(error: BaseException) -> bool:
    """Whether the text of `error` is meant for the user: a UserError, an unusable file, too little memory, an integer
    among the data that is out of range, or a ValueError of ours.

    A ValueError is ours when a `raise` statement of castile raised it: one that comes out of a library is a fault.
    """
    if isinstance(error, UserError | MemoryError):
        return True
    if isinstance(error, OSError):
        return error.filename is not None
    return _is_out_of_range(error) or (isinstance(error, ValueError) and _raised_here(error.__traceback__))


def _is_out_of_range(error: BaseException) -> bool:
    if not isinstance(error, IndexError):
        return False
    # backends load NumPy, which is to find how many threads it may have
    from castile.runtime.backends.base import is_out_of_range

    return is_out_of_range(error)


def _is_unanswered(error: BaseException) -> bool:
    if not isinstance(error, RuntimeError):
        return False
    # the runtime loads NumPy, which is to find how many threads it may have
    from castile.runtime.watchdog import Unanswered

    return isinstance(error, Unanswered)


def silent() -> bool:
    """Whether this rank leaves the talking to rank 0."""
    return this_world().rank != 0


def wait_for_the_end(status: int) -> NoReturn:
    """Waits in silence for the rank that ends the job; exits with `status` should it never do so."""
    hear_no_more()
    time.sleep(PATIENCE_SECONDS)
    os._exit(status)


def _raised_here(frames: TracebackType | None) -> bool:
    if frames is None:
        return False
    while frames.tb_next is not None:
        frames = frames.tb_next
    code = frames.tb_frame.f_code.co_code
    own = str(frames.tb_frame.f_globals.get("__name__", "")).startswith("castile.")
    return own and code[frames.tb_lasti] == dis.opmap["RAISE_VARARGS"]


def _text_of(code: object) -> str:
    return f"{code}\n" if isinstance(code, str) else ""


def _where() -> str:
    """The host that a sentence is true of, where that may be another than the one where the user looks."""
    world = _world_if_any()
    return f"on {world.host}: " if world is not None and world.host_index else ""


def _sentence(error: BaseException) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, MemoryError):
        return f"too little memory here ({str(error) or 'none is left'}): take a smaller batch or a smaller model"
    if _is_out_of_range(error):
        where = "".join(f"{note}: " for note in getattr(error, "__notes__", ()))
        return f"{where}{error}: mend the samples, or give the model as many rows or classes as they need"
    return str(error)


def _report(error: BaseException) -> str:
    world = _world_if_any()
    who = f"rank {world.rank} of {world.size}" if world else "a rank"
    head = f"castile: {who} on {socket.gethostname()} failed\n"
    return head + "".join(traceback.format_exception(error))


def _end(status: int, text: str) -> int:
    """Ends the job when there are other ranks and `status` is not 0; alone, says `text` and returns `status`."""
    if num_launched() == 1 or status == 0:
        _say(text)
        return status
    hear_no_more()
    world = _world_if_any()
    if world is not None and world.host_index:
        time.sleep(OTHERS_DELAY_SECONDS + HOST_DELAY_SECONDS * min(world.host_index - 1, MOST_DELAYS))
    if _claim():
        _say(text)
        _abort(world, status)
    wait_for_the_end(status)


def _flush() -> None:
    # there is none where it was closed before Python began
    if sys.stdout is not None:
        sys.stdout.flush()


def _drop_output() -> None:
    """What is left of the output goes nowhere: a second complaint when Python ends would be noise."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _say(text: str) -> None:
    # where nobody can be told how it ended, the status says so all the same
    with contextlib.suppress(OSError):
        _flush()
    with contextlib.suppress(OSError):
        sys.stderr.write(text)
        sys.stderr.flush()


def _world_if_any() -> World | None:
    # The first call is collective: a rank that fails before it must not wait there for the others.
    return this_world() if num_launched() == 1 or this_world.cache_info().currsize else None


def _claim() -> bool:
    """True on the first rank of this host that asks, false on all that ask later."""
    # Open MPI's own folder of the job, where there is one, goes away with the job.
    folder = os.environ.get("PMIX_SERVER_TMPDIR", tempfile.gettempdir())
    try:
        os.close(os.open(Path(folder) / f"castile-end-{os.getuid()}-{_job()}", os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        return False
    except OSError:
        # Better two texts than none.
        return True
    return True


def _job() -> str:
    """A name that the ranks of this job on this host share, and no other job has had."""
    if "PMIX_NAMESPACE" in os.environ:
        return "".join(letter if letter.isalnum() else "-" for letter in os.environ["PMIX_NAMESPACE"])
    # Other launchers start all ranks of a host from one process of their own; numbers of processes come again.
    parent = os.getppid()
    began = Path(f"/proc/{parent}/stat").read_text().rsplit(")", 1)[1].split()[19]
    return f"{parent}-{began}"


def _abort(world: World | None, status: int) -> NoReturn:
    if world is not None and world.communicator is not None:
        world.communicator.abort(status)
    # A launcher ends the other ranks when one exits with a status that is not 0.
    os._exit(status)
