"""A step shown: its timelines as a trace and as a picture, in the files that a user asks for.

It does not know which of them was measured.
"""

from __future__ import annotations

from collections.abc import Mapping

from castile.launch.pictures import timeline as timelines
from castile.launch.reports import trace
from castile.launch.typed import files
from castile.launch.typed.files import Outputs
from castile.runtime.machine import Machine
from castile.runtime.task import TaskGraph
from castile.runtime.timeline import Timeline


def write(
    outputs: Outputs, title: str, tasks: TaskGraph, lanes: Mapping[str, Timeline], machine: Machine, *,
    trace_path: str, picture_path: str,
) -> None:  # fmt: skip
    """Write the timelines of a step, each under its name, to these files; an empty path asks for none."""
    outputs.write("trace", trace_path, lambda path: trace.write(path, tasks, lanes))
    outputs.write(
        "picture", picture_path,
        lambda path: files.write(path, timelines.picture(title, tasks, lanes, machine).encode()),
    )  # fmt: skip
