"""Run by tests on several ranks: one command or script after another, each as if these ranks were started for it.

standing.py FOLDER   words come by the socket FOLDER/door; what a rank says goes to FOLDER/RANK.out and FOLDER/RANK.err
"""

import contextlib
import json
import os
import runpy
import socket
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from castile.launch.__main__ import main
from castile.launch.processes.ranks import main_guard, this_world

# What tells this process that it is a rank.
OWN = {name: value for name, value in os.environ.items() if name.startswith(("OMPI_", "PMIX_", "PRTE_"))}


@contextlib.contextmanager
def written_below(stem: str) -> Iterator[None]:
    """What is written meanwhile, by code in C too, goes to STEM.out and STEM.err."""
    streams = ((sys.stdout, f"{stem}.out"), (sys.stderr, f"{stem}.err"))
    before = [os.dup(stream.fileno()) for stream, _ in streams]
    for stream, path in streams:
        with open(path, "a") as file:
            os.dup2(file.fileno(), stream.fileno())
    try:
        yield
    finally:
        for (stream, _), number in zip(streams, before):
            stream.flush()
            os.dup2(number, stream.fileno())
            os.close(number)


def status_of(words: Sequence[str]) -> int:
    """With which `python WORDS` would end."""
    if words[:2] == ["-m", "castile"]:
        return main(words[2:])
    sys.argv = list(words)
    return main_guard(lambda: run(words[0]))


def run(path: str) -> int:
    runpy.run_path(path, run_name="__main__")
    return 0


rank = this_world().rank
with socket.socket(socket.AF_UNIX) as door:
    door.connect(f"{sys.argv[1]}/door")
    stem = f"{sys.argv[1]}/{rank}"
    for line in door.makefile():
        do = json.loads(line)
        os.environ.clear()
        os.environ.update(do["environment"] | OWN)
        os.chdir(do["folder"])
        with written_below(stem):
            status = status_of(do["words"])
        door.sendall(f"{status}\n".encode())
