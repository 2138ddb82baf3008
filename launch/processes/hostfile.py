"""Host files: which hosts a job is to run on, and whether Open MPI can tell them apart.

It does not know how a job is started.
"""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from castile.launch.processes.ranks import UserError

# What tells a host from others, and what it calls itself; a container is a host of its own.
WHO = "cat /proc/sys/kernel/random/boot_id && readlink /proc/self/ns/uts && hostname"
# Whoever does not answer by then is left to Open MPI, which has its own words for it.
ANSWER_SECONDS = 5
MOST_AT_ONCE = 32


def slots(path: Path) -> dict[str, int]:
    """How many ranks each host of a host file of Open MPI's takes. Raises UserError where it is missing, empty or
    malformed.
    """
    if not path.is_file():
        raise UserError(f"there is no host file {path}: give --hostfile a file with one `NAME slots=COUNT` a line")
    found: dict[str, int] = {}
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"the host file {path} cannot be read: {error}") from error
    for number, line in enumerate(text.splitlines(), start=1):
        name, *options = line.split("#")[0].split() or [""]
        counts = [option.removeprefix("slots=") for option in options]
        if any(not count.isdecimal() or int(count) < 1 for count in counts) or len(counts) > 1:
            raise UserError(f"{path}, line {number}: '{line.strip()}' is not a host; write `NAME slots=COUNT`")
        if name:
            found[name] = found.get(name, 0) + int(*counts or (1,))
    if not found:
        raise UserError(f"the host file {path} names no host: write one `NAME slots=COUNT` a line")
    return found


def without(found: Mapping[str, int], lost: Iterable[str]) -> dict[str, int]:
    """The hosts that are left where some are lost, with or without their domains."""
    gone = {_bare(name) for name in lost}
    return {name: count for name, count in found.items() if _bare(name) not in gone}


def _bare(name: str) -> str:
    """A host's name without its domain; an address as it is."""
    return name if name.replace(".", "").isdigit() else name.partition(".")[0]


def check_apart(hosts: Iterable[str]) -> None:
    """Raises UserError where two hosts call themselves alike: Open MPI waits for ever for one of them.

    Each is asked by ssh, as Open MPI starts ranks there.
    """
    elsewhere = [host for host in hosts if host not in ("localhost", "127.0.0.1", socket.gethostname())]
    if not elsewhere:
        return
    with ThreadPoolExecutor(MOST_AT_ONCE) as threads:
        asked = ["sh", "-c", WHO], *(["ssh", "-o", "BatchMode=yes", host, WHO] for host in elsewhere)
        answers = dict(zip(["this host", *elsewhere], threads.map(_answer, asked), strict=True))
    first: dict[str, tuple[str, str]] = {}
    for host, answer in answers.items():
        which, _, name = answer.rpartition("\n")
        other, whose = first.setdefault(name, (host, which))
        if name and whose != which:
            raise UserError(
                f"{other} and {host} both call themselves {name!r}, and Open MPI takes them for one host: give one of "
                "them another name (hostname NAME)"
            )


def _answer(words: list[str]) -> str:
    """What a command says, "" where it fails."""
    try:
        ended = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=ANSWER_SECONDS, env=os.environ
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return "" if ended.returncode else ended.stdout.strip()
