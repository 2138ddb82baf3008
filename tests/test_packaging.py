"""Packaging: a wheel, an editable install, a bare checkout and one without links all give the same castile.

No network: pip builds with the setuptools of this environment, and the new environments see its other packages.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
from pathlib import Path

import pytest

from castile import __version__

CHECKOUT = Path(__file__).resolve().parent.parent
LINKED = ("kernels", "runtime", "planner", "launch")
DATA = (".toml", ".npz", ".md", ".txt")
IGNORED = (".git", ".venv", "build", "dist", "*.egg-info", "__pycache__", ".*_cache", ".hypothesis")
SITE = Path(sysconfig.get_path("purelib"))

pytestmark = pytest.mark.slow


def run(*words: str | Path, cwd: Path, **environment: str) -> str:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "OMPI_COMM", "PMI"))}
    whole = clean | environment
    ended = subprocess.run(words, cwd=cwd, env=whole, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, f"{words}:\n{ended.stdout}{ended.stderr}"
    return ended.stdout


@pytest.fixture(scope="module")
def copy(tmp_path_factory) -> Path:
    """A copy of the checkout, so that building leaves nothing in it."""
    target = tmp_path_factory.mktemp("copy") / "castile"
    shutil.copytree(CHECKOUT, target, symlinks=True, ignore=shutil.ignore_patterns(*IGNORED))
    return target


@pytest.fixture(scope="module")
def builders(tmp_path_factory) -> Path:
    """A folder with setuptools and wheel alone, so that pip sees no other castile."""
    folder = tmp_path_factory.mktemp("builders")
    for pattern in ("setuptools*", "wheel*", "_distutils_hack"):
        for path in SITE.glob(pattern):
            (folder / path.name).symlink_to(path)
    return folder


@pytest.fixture(scope="module")
def wheel(copy, builders, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(*pip(Path(sys.executable), "wheel"), "-w", folder, copy, cwd=folder, PYTHONPATH=str(builders))
    (found,) = folder.glob("*.whl")
    return found


def pip(python: Path, command: str) -> list[str | Path]:
    offline = ["--no-deps", "--no-index", "--no-build-isolation", "--quiet", "--disable-pip-version-check"]
    return [sys.executable, "-m", "pip", "--python", python, command, *offline]


def new_environment(folder: Path) -> Path:
    venv.create(folder, with_pip=False, symlinks=True)
    return folder / "bin" / "python"


def show_dependencies(python: Path) -> None:
    # The packages of this environment come after the new one's own; its .pth files are not read, so no castile of ours.
    target = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=Path("/")).strip()
    (Path(target) / "dependencies.pth").write_text(f"{SITE}\n")


def check(python: Path, cwd: Path, **environment: str) -> Path:
    """Runs castile there and returns the folder that it was imported from."""
    assert run(python, "-m", "castile", "--version", cwd=cwd, **environment) == f"castile {__version__}\n"
    code = (
        "import castile.runtime.region as one, castile.planner, castile.launch.__main__, castile.kernels, castile;"
        "assert one.__name__ == 'castile.runtime.region'; print(castile.__file__);"
        "castile.launch.__main__.main(['--help'])"
    )
    file, _, commands = run(python, "-c", code, cwd=cwd, **environment).partition("\n")
    assert "doctor" in commands
    return Path(file).parent


def data_files(folder: Path) -> set[str]:
    """The data beside the modules, under the names that they have inside castile."""
    paths = [path for name in LINKED for path in (folder / name).rglob("*") if path.suffix in DATA]
    return {str(path.relative_to(folder)) for path in paths}


def test_a_wheel_holds_modules_and_data_and_runs_from_elsewhere(wheel, copy, tmp_path):
    python = new_environment(tmp_path / "v")
    run(*pip(python, "install"), "--no-compile", wheel, cwd=tmp_path)
    show_dependencies(python)
    assert "doctor" in run(tmp_path / "v" / "bin" / "castile", "--help", cwd=tmp_path)
    folder = check(python, tmp_path)
    assert folder.is_relative_to(tmp_path / "v")
    assert (folder / "py.typed").is_file() and not (folder / "runtime").is_symlink()
    assert data_files(folder) == data_files(copy)
    modules = {str(path.relative_to(copy)) for name in LINKED for path in (copy / name).rglob("*.py")}
    assert modules <= {str(path.relative_to(folder)) for path in folder.rglob("*.py")}


def test_a_wheel_holds_nothing_under_a_bare_name(wheel, tmp_path):
    shutil.unpack_archive(wheel, tmp_path / "wheel", "zip")
    assert {path.name.split("-")[0] for path in (tmp_path / "wheel").iterdir()} == {"castile"}
    assert not list((tmp_path / "wheel").rglob("*.pyc"))


def test_an_editable_install_runs_the_checkout(copy, builders, tmp_path):
    python = new_environment(tmp_path / "v")
    run(*pip(python, "install"), "--editable", copy, cwd=tmp_path, PYTHONPATH=str(builders))
    show_dependencies(python)
    assert "doctor" in run(tmp_path / "v" / "bin" / "castile", "--help", cwd=tmp_path)
    assert check(python, tmp_path) == copy / "castile"


def test_a_checkout_runs_without_an_install(tmp_path):
    assert check(Path(sys.executable), tmp_path, PYTHONPATH=str(CHECKOUT)) == CHECKOUT / "castile"


def test_a_copy_that_lost_its_links_runs(tmp_path):
    for name in ("castile", *LINKED):
        shutil.copytree(CHECKOUT / name, tmp_path / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in LINKED:
        (tmp_path / "castile" / name).unlink()
    assert check(Path(sys.executable), Path("/"), PYTHONPATH=str(tmp_path)) == tmp_path / "castile"


def test_the_links_are_relative():
    for name in LINKED:
        assert os.readlink(CHECKOUT / "castile" / name) == f"../{name}"


def test_what_the_makefile_and_the_readme_promise_is_declared():
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    assert set(project["optional-dependencies"]) == {"mpi", "gpu", "onnx", "test", "bench"}
    assert project["scripts"] == {"castile": "castile.__main__:main"}
    assert "Apache License" in (CHECKOUT / "LICENSE").read_text()
