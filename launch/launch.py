"""`castile launch`: starts a castile command on several MPI ranks, with the environment that needs.

Knows mpirun; not what the command does.
"""

import ctypes
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO, Annotated, Any, Self

import tyro

from castile.launch.processes import hostfile as hostfiles
from castile.launch.processes import installing, last_words, mpi_settings, notes
from castile.launch.processes.ranks import PASSED_ON, UserError, num_launched
from castile.launch.typed import options
from castile.runtime.memory import written

# How long mpirun may take to end its ranks after a signal. Killed outright, it would leave them behind.
GRACE_SECONDS = 10.0
# <linux/prctl.h>: the signal that a process gets when its parent ends.
PR_SET_PDEATHSIG = 1
# Variables of what computes and of where the user keeps things.
_HANDED_OVER = re.compile(
    r"DEBUG|PYTHONPATH|(OMP|OPENBLAS|MKL)_NUM_THREADS|XDG_(CACHE|DATA)_HOME|(CUDA|CUPY|NCCL|NUMBA|TRITON)_\w+"
)
# Python with NumPy and MPI takes more, before a rank has done anything.
LEAST_RANK_BYTES = 2**25
# Variables of batch systems, within whose allocations mpirun starts ranks on other hosts too.
ALLOCATIONS = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID")
# What is passed on for a signal: to ranks, which end as they end on it alone, and to mpirun, which ends them at once.
_AT_FIRST: dict[int, int] = {signal.SIGINT: PASSED_ON, signal.SIGTERM: signal.SIGUSR1}
_AGAIN: dict[int, int] = {signal.SIGTERM: signal.SIGINT}
_VALUE_OPTIONS = ("-n", "--ranks", "--hostfile")


@dataclass(frozen=True)
class Launch:
    """Run a castile command on several MPI ranks: `castile launch -n 4 train convnet`."""

    ranks: Annotated[int, tyro.conf.arg(aliases=["-n"], metavar="N")]
    """How many ranks; there may be more than cores."""
    command: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="COMMAND...")]
    """The castile command and its own options, as without `launch`."""
    hostfile: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """A file with one host a line, `NAME slots=COUNT`; without it all ranks run here."""
    dry_run: bool = False
    """Print the command line and the variables it needs, and start nothing."""
    json: bool = False
    """Print one JSON object: that of the command, or with --dry-run the command line and its variables."""


COMMAND = Launch


def parse(args: Sequence[str]) -> Launch:
    """Splits `args` where the castile command begins, so that its options stay its own."""
    own, command = _split(list(args))
    # The positional words come after `--`, so that tyro reads none of them as an option of ours.
    words = ["--", *command] if command else []
    return options.read(Launch, "castile launch", [*own, *words])


def run(command: Launch) -> int:
    """Starts the ranks, passes signals on, and returns mpirun's exit status.

    Raises UserError for no command, fewer than one rank or more than have room, a launch within a launch, a bad host
    file, hosts of one name, or no mpirun.
    """
    _check(command)
    asked = ["--json"] if command.json and not command.dry_run else []
    program = [sys.executable, "-m", "castile", *command.command, *asked]
    words = mpirun_words(command.ranks, command.hostfile, program)
    added = {name: value for name, value in variables().items() if name not in os.environ}
    if not command.dry_run:
        # within an allocation of Slurm's hosts have its names, and may have no ssh
        if command.hostfile is not None and "SLURM_JOB_ID" not in os.environ:
            hostfiles.check_apart(hostfiles.names(command.hostfile))
        return start(words, os.environ | added | _plain())
    if command.json:
        print(json.dumps({"command": words, "environment": added}))
    else:
        print(shlex.join([*(f"{name}={value}" for name, value in added.items()), *words]))
    return 0


def _plain() -> dict[str, str]:
    """What keeps styles out of what ranks write where this is no terminal: mpirun gives them one all the same."""
    return {} if sys.stdout is not None and sys.stdout.isatty() else {"TERM": "dumb"}


def variables() -> dict[str, str]:
    """What mpirun and the ranks need in their environment, where it does not say otherwise."""
    return mpi_settings.variables() | dict.fromkeys(mpi_settings.THREAD_VARIABLES, "1")


def mpirun_path() -> Path:
    """This environment's own mpirun, else the first on PATH. Raises UserError, with the line that installs one."""
    folders = [sysconfig.get_path("scripts"), *os.environ.get("PATH", "").split(os.pathsep)]
    for folder in folders:
        path = Path(folder) / "mpirun"
        if os.access(path, os.X_OK):
            return path
    raise UserError(f"there is no mpirun here: install one with `{installing.line('castile[mpi]')}`")


def mpirun_words(num_ranks: int, hostfile: Path | None, program: Sequence[str]) -> list[str]:
    """The command line that starts `program` on `num_ranks` ranks, on the hosts of `hostfile` as their slots say.

    Raises UserError for a host file that is none.
    """
    words = [str(mpirun_path()), "-n", str(num_ranks)]
    if hostfile is not None:
        hostfiles.names(hostfile)
        words += ["--hostfile", str(hostfile)]
        # what is set here, mpirun gives to ranks of this host alone; which GPUs a host may use Slurm says on each
        ours = {"CUDA_VISIBLE_DEVICES"} if "SLURM_JOB_ID" in os.environ else set()
        for name in sorted({name for name in {**os.environ, **variables()} if _HANDED_OVER.fullmatch(name)} - ours):
            words += ["-x", name]
    return [*words, *program]


def start(words: Sequence[str], environment: Mapping[str, str]) -> int:
    """Runs mpirun to its end and returns its exit status; a signal that ends us is passed on to it first.

    Ranks' output passes through; of what mpirun itself says of their end no more than `notes` tells.
    """
    said: list[str] = []
    hosts: list[str] = []
    read, write = os.pipe()
    with ExitStack() as stack:
        # from before mpirun is there until all is said
        passing = stack.enter_context(_Passing())
        passed = passing.passed
        left = stack.enter_context(last_words.awaited())
        told = stack.enter_context(open(read, "rb"))
        ours = {**environment, last_words.VARIABLE: left.told}
        process = stack.enter_context(_started(words, ours, told, write))
        passing.to(process)
        relay = threading.Thread(target=_relay, args=(told, left, passed, said, hosts), daemon=True)
        relay.start()
        status = process.wait()
        # The pipe stays open for as long as any rank lives.
        relay.join(GRACE_SECONDS)
        last = left.read()
        # mpirun may have ended the ranks before they could say it
        if passed and status and last and not any(last in text for text in said):
            print(f"castile: {last}", file=sys.stderr)
        if hosts and not passed and not _is_ours(status):
            if not any(notes.KILLED in text for text in said):
                print(notes.lost(hosts[0], last), file=sys.stderr)
            # mpirun that has lost a host ends with 0
            status = status or 1
    if status > 0 and any(map(notes.is_unread, said)):
        return 128 + signal.SIGPIPE
    if status and passed:
        # mpirun ends with 1, as after any failure, or as what it was given in place of the signal; a shell that runs us
        # in a loop is to see that it was Ctrl-C
        return 128 + passed[0]
    return 128 - status if status < 0 else status


def _started(
    words: Sequence[str], environment: Mapping[str, str], told: IO[bytes], write: int
) -> subprocess.Popen[bytes]:
    """mpirun, which writes its and the ranks' errors to a pipe: `told` is the end to read; that to write is its alone.

    It has the end to read, too: it would end before its ranks if it met a pipe that nobody reads when we are gone.
    """
    with open(write, "wb") as telling:
        # A group of its own, so that Ctrl-C reaches it through us alone; such a group must not read the terminal.
        return subprocess.Popen(
            words, env=dict(environment), stdin=subprocess.DEVNULL, stderr=telling, pass_fds=(told.fileno(),),
            process_group=0, preexec_fn=_ending_with_parent(),
        )  # fmt: skip


def _ending_with_parent() -> Callable[[], None] | None:
    """What mpirun does first: it asks Linux for a SIGHUP, on which it ends its ranks, should this process end before
    it. A process that is killed outright passes nothing on. None where there is no such thing to ask for.

    It hears no SIGTERM: batch systems send that to every process of a job, and ranks are to have the time until they
    kill. What it starts hears it.
    """
    if sys.platform != "linux":
        return None
    libc, parent = ctypes.CDLL(None, use_errno=True), os.getpid()

    def ask() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM,))
        libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGHUP))
        # it may have ended before it could be asked
        if os.getppid() != parent:
            os._exit(128 + signal.SIGTERM)

    return ask


class _Passing:
    """While it is entered signals are noted, and passed on to mpirun as soon as that is there: at first as what it
    gives its ranks without killing them after it.
    """

    def __init__(self) -> None:
        self.passed: list[int] = []
        self._waiting: list[int] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._note) for number in _passed()}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def to(self, process: subprocess.Popen[bytes]) -> None:
        """Pass on to this process what has come and what comes."""
        self._process = process
        self._pass()

    def _note(self, number: int, frame: FrameType | None) -> None:
        is_again = number in self.passed or signal.SIGINT in self.passed
        self.passed.append(number)
        self._waiting.append((_AGAIN if is_again else _AT_FIRST).get(number, number))
        self._pass()

    def _pass(self) -> None:
        while self._waiting and self._process is not None:
            self._process.send_signal(self._waiting.pop(0))


def _passed() -> tuple[signal.Signals, ...]:
    # Only the main thread may set handlers.
    if threading.current_thread() is not threading.main_thread():
        return ()
    # What this process is to ignore (nohup; Ctrl-C for what a script starts in the background) stays ignored.
    known = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
    return tuple(number for number in known if signal.getsignal(number) is not signal.SIG_IGN)


def _is_ours(status: int) -> bool:
    """Whether a rank of castile has ended the job with that status, and said why; MPI has other numbers."""
    return status in (1, 2) or 128 < status < 128 + signal.NSIG


def _relay(
    stream: IO[bytes], left: last_words.Awaited, passed: Sequence[int], said: list[str], hosts: list[str]
) -> None:
    """Writes what is told, the ranks' last words once, whoever says them first; notes in `said` what castile says, and
    in `hosts` where ranks were lost.
    """

    def is_said(last: str) -> bool:
        return any(last in text for text in said)

    def unsaid() -> str:
        return "" if is_said(last := left.read()) else last

    # who was asked to end has not died
    for text in notes.told(stream, lambda: None if passed else unsaid(), hosts):
        is_again = text == f"castile: {(last := left.read())}\n" and is_said(last)
        said += [text] if text.startswith("castile: ") or notes.is_unread(text) else []
        if is_again or notes.is_unread(text):
            continue
        # ranks would stand still, should nobody read on
        with suppress(OSError):
            sys.stderr.write(text)
            sys.stderr.flush()


def _split(args: list[str]) -> tuple[list[str], list[str]]:
    position = 0
    while position < len(args) and args[position].startswith("-") and args[position] != "--":
        position += 2 if args[position] in _VALUE_OPTIONS else 1
    command = args[position:]
    return args[:position], command[1:] if command[:1] == ["--"] else command


def _check(command: Launch) -> None:
    if command.ranks < 1:
        raise UserError(f"-n {command.ranks}: a job has at least 1 rank")
    # mpirun would start them all the same, and the host stand still
    there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    is_here = command.hostfile is None and not any(name in os.environ for name in ALLOCATIONS)
    if is_here and command.ranks * LEAST_RANK_BYTES > there:
        raise UserError(
            f"-n {command.ranks}: so many ranks have no room in the {written(there)} of this host: give at most "
            f"{there // LEAST_RANK_BYTES}, or --hostfile FILE with more hosts"
        )
    if not command.command:
        raise UserError("nothing to launch: name a castile command, as in `castile launch -n 2 train convnet`")
    if command.command[0] == "launch" or num_launched() > 1:
        raise UserError("a launch within a launch: start `castile launch` once, outside mpirun")
