"""The doctor: it tells what is there, names what is missing and the line that installs it, and writes settings once."""

import importlib.metadata
import json
import os
import shlex
import subprocess
import sys

import pytest

from castile import __version__
from castile.launch import doctor, launch
from castile.launch.__main__ import main
from castile.launch.processes import mpi_settings
from tests import standing


def test_json_is_one_object_with_units_in_its_keys(capsys):
    assert main(["doctor", "--json"]) == 0
    out, err = capsys.readouterr()
    facts = json.loads(out)
    assert err == ""
    assert facts["cores"]["usable"] == len(os.sched_getaffinity(0))
    assert facts["memory"]["total_bytes"] >= facts["memory"]["unused_bytes"] > 0
    assert facts["blas"]["name"]
    assert set(facts) >= {"castile", "cores", "memory", "blas", "mpi", "mpi_settings", "root", "gpu", "cupy", "triton"}


def test_the_screen_and_the_json_say_the_same():
    findings = doctor.examine()
    facts = json.loads(doctor.as_json(findings))
    text = doctor.as_text(findings)
    assert all(fact["words"] in text for fact in facts.values())
    assert all(fact["remedy"] in text for fact in facts.values() if "remedy" in fact)


@pytest.mark.parametrize("told", ["", "Haswell"])
def test_a_library_that_is_told_another_processor_is_told_of(told, monkeypatch):
    monkeypatch.setenv("OPENBLAS_CORETYPE", told)
    blas = next(finding for finding in doctor.examine() if finding.name == "BLAS")
    assert blas.facts["core_type"] == told and ("OPENBLAS_CORETYPE=Haswell takes" in blas.words) == bool(told)


def test_what_is_missing_comes_with_the_line_that_installs_it(monkeypatch):
    def nothing(package):
        raise importlib.metadata.PackageNotFoundError(package)

    monkeypatch.setattr(importlib.metadata, "version", nothing)
    missing = {finding.name: finding for finding in doctor.examine() if not finding.found}
    assert {"MPI", "CuPy", "Triton", "NCCL"} <= set(missing)
    assert missing["MPI"].remedy == f"{shlex.quote(sys.executable)} -m pip install 'castile[mpi]'"
    assert missing["CuPy"].remedy.endswith(" -m pip install 'castile[gpu]'")


def test_no_mpirun_is_a_finding_and_not_a_failure(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    assert main(["doctor", "--json", "--ranks", "2"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert not facts["mpi"]["found"] and not facts["start-up"]["found"]


def test_an_mpirun_that_does_not_start_is_none(monkeypatch, tmp_path):
    tool = tmp_path / "mpirun"
    tool.write_text("#!/bin/sh\necho 'Error: no room' >&2\nexit 1\n")
    tool.chmod(0o755)
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    found = next(finding for finding in doctor.examine() if finding.name == "MPI")
    assert not found.found and found.words == f"{tool} does not start: Error: no room"


def test_who_has_no_home_in_the_environment_has_ranks_all_the_same(monkeypatch):
    """mpirun does not start without one, as in containers and services."""
    monkeypatch.delenv("HOME")
    assert os.path.isabs(launch.variables()["HOME"])
    found = next(finding for finding in doctor.examine() if finding.name == "MPI")
    assert found.found and "Error" not in found.words


def test_settings_are_written_once_and_keep_what_stands_there(tmp_path):
    (tmp_path / "openmpi-mca-params.conf").write_text("# mine\nbtl = self,vader\n")
    assert len(mpi_settings.missing_settings(tmp_path)) == 7
    assert len(mpi_settings.write_settings(tmp_path)) == 2
    assert mpi_settings.missing_settings(tmp_path) == []
    assert mpi_settings.write_settings(tmp_path) == []
    text = (tmp_path / "openmpi-mca-params.conf").read_text()
    assert text.startswith("# mine\nbtl = self,vader\n") and "^ofi" not in text
    assert "mpi_yield_when_idle = 1" in text


def test_what_an_older_castile_wrote_is_brought_up_to_date_and_nothing_else(tmp_path):
    path = tmp_path / "prte-mca-params.conf"
    path.write_text("# mine\nhwloc_default_binding_policy = core\n")
    assert mpi_settings.write_settings(tmp_path)
    good = path.read_text()
    path.write_text(good.replace("= slot:oversubscribe", "= :oversubscribe") + "theirs = 1\n")
    assert mpi_settings.missing_settings(tmp_path) == ["prte-mca-params.conf: rmaps_default_mapping_policy"]
    assert mpi_settings.write_settings(tmp_path) == [path]
    now = path.read_text()
    assert mpi_settings.missing_settings(tmp_path) == [] and ":oversubscribe" in now and "= :" not in now
    assert "hwloc_default_binding_policy = core\n" in now and "theirs = 1\n" in now and now.count("policy") == 2


def test_a_comment_is_not_a_setting(tmp_path):
    (tmp_path / "openmpi-mca-params.conf").write_text("# btl = ^ofi\n")
    assert "openmpi-mca-params.conf: btl" in mpi_settings.missing_settings(tmp_path)


def test_a_folder_that_cannot_be_written_is_told_in_a_sentence(tmp_path, monkeypatch, capsys):
    (tmp_path / "etc").write_text("a file where the folder should be")
    monkeypatch.setattr(mpi_settings, "folder", lambda: tmp_path / "etc")
    assert main(["doctor", "--write-mpi-settings"]) == 2
    err = capsys.readouterr().err
    assert "cannot write Open MPI's settings" in err and "Traceback" not in err


def test_fewer_than_no_ranks_are_refused(capsys):
    assert main(["doctor", "--ranks", "-1"]) == 2
    assert "--ranks -1" in capsys.readouterr().err


def test_ranks_know_how_long_a_message_goes_at_once() -> None:
    mpi = pytest.importorskip("castile.runtime.comm.mpi")
    assert mpi_settings.process_variables()["OMPI_MCA_btl_sm_eager_limit"] == str(mpi.EAGER_BYTES)


@pytest.mark.mpi
def test_ranks_start_and_are_timed(capsys):
    assert main(["doctor", "--ranks", "3", "--json"]) == 0
    start = json.loads(capsys.readouterr().out)["start-up"]
    assert start["found"], start
    assert 0 < start["start_seconds"] < 60


@pytest.mark.mpi
def test_a_bare_mpirun_starts_more_ranks_than_cores_once_the_settings_are_written():
    if mpi_settings.missing_settings(mpi_settings.folder()):
        pytest.skip("this environment has no Open MPI settings; `castile doctor --write-mpi-settings` writes them")
    others = ("OMPI_", "PRTE_", "PMIX_")
    bare = {name: value for name, value in os.environ.items() if not name.startswith(others)}
    root = dict.fromkeys(mpi_settings.ROOT_VARIABLES, "1")
    num_ranks = (os.cpu_count() or 1) + 2
    words = [str(launch.mpirun_path()), "-n", str(num_ranks), sys.executable, "-m", "castile", "--version"]
    ended = subprocess.run(words, env=bare | root, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout) == (0, f"castile {__version__}\n"), ended.stderr


@pytest.mark.mpi
def test_one_rank_alone_answers_under_mpirun():
    status, out, err = standing.run(3, "-m", "castile", "doctor", "--json")
    assert status == 0, err
    assert json.loads(out)["cores"]["found"]
