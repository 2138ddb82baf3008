"""Records: where a run writes its metrics, and the run itself as a file beside them.

It does not know what happens in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from castile import __version__
from castile.launch.checkpoints import folder as folders
from castile.launch.jobs import runfile
from castile.launch.jobs.jobs import Job
from castile.launch.processes.ranks import silent
from castile.launch.reports.screen import Speaker
from castile.launch.training import metrics
from castile.launch.typed import files

RESOLVED = "resolved.toml"
# Options that say how a run is shown.
HOW_SHOWN = ("print", "json")


def as_facts(command: Any) -> dict[str, Any]:
    """The run as it is reported and written, without options about output."""
    return runfile.given(command, without=HOW_SHOWN)


@contextmanager
def held(command: Any) -> Iterator[metrics.Lines | None]:
    """Lock the folder of checkpoints and the file of metrics against other runs until the block ends; yields that file,
    None where there is none or another rank has it.

    Raises UserError where another run writes to one of them.
    """
    with ExitStack() as stack:
        if command.checkpoint and not silent():
            stack.enter_context(folders.held(Path(command.checkpoint)))
        yield stack.enter_context(metrics.held(command.metrics)) if command.metrics and not silent() else None


def begin(
    command: Any, job: Job, lines: metrics.Lines | None, first_step: int, num_steps: int, say: Speaker
) -> metrics.Metrics:
    """Open the metrics on rank 0: the first record describes the run, which is also written beside them as a run file.

    command   of `castile train`
    lines     its file of metrics, unused where the command names none
    Raises UserError where they cannot be opened.
    """
    if not job.leads:
        return metrics.Metrics()
    log = metrics.start(lines if command.metrics else None, command.tensorboard, command.resume, say.warn)
    has_place = command.metrics and not files.is_stream(Path(command.metrics))
    beside = [Path(command.metrics).with_suffix(f".{RESOLVED}")] if has_place else []
    beside += [Path(command.checkpoint) / RESOLVED] if command.checkpoint else []
    runfile.write(beside, command, HOW_SHOWN, say.warn)
    log.record(
        "run", run=as_facts(command), castile=__version__, num_ranks=job.comm.size, first_step=first_step,
        num_steps=num_steps,
    )  # fmt: skip
    return log
