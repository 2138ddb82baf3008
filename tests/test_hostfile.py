"""Host files: hosts that Open MPI would take for one are refused in a sentence; who does not answer is left to it."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from castile.launch.__main__ import main
from castile.launch.processes import hostfile
from castile.launch.processes.ranks import UserError

SSH = """#!/bin/sh
# ssh -o BatchMode=yes HOST COMMAND
cat "{folder}/$3" 2>/dev/null
"""
HERE = "here"
NAMES = st.sampled_from(["a", "b", HERE])


@pytest.fixture
def answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with what each host answers by ssh; those without a file do not."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "ssh").write_text(SSH.format(folder=tmp_path))
    (folder / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return tmp_path


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(found=st.lists(st.one_of(st.none(), st.tuples(st.sampled_from("xyz"), NAMES)), max_size=4))
def test_two_hosts_of_one_name_are_refused(found: list[tuple[str, str] | None], answers: Path) -> None:
    """Each has a machine and a name: the same machine by two names in the file is one host."""
    names = {HERE: socket.gethostname()}
    for n, told in enumerate(found):
        (answers / f"h{n}").unlink(missing_ok=True)
        if told is not None:
            (answers / f"h{n}").write_text(f"boot {told[0]}\nuts\n{names.get(told[1], told[1])}\n")
    hosts = {("this", HERE), *(told for told in found if told is not None)}
    clash = len(hosts) > len({name for _, name in hosts})
    try:
        hostfile.check_apart([f"h{n}" for n in range(len(found))])
    except UserError as error:
        assert clash and "both call themselves" in str(error)
    else:
        assert not clash


def test_a_launch_over_hosts_of_one_name_ends_at_once(answers: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for host in ("one", "two"):
        (answers / host).write_text(f"boot of {host}\nuts\nubuntu\n")
    (answers / "hosts").write_text("one slots=2\ntwo slots=2\n")
    assert main(["launch", "-n", "4", "--hostfile", str(answers / "hosts"), "doctor"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("castile: one and two both call themselves 'ubuntu'") and err.count("\n") == 1
