"""Kills a random rank at a random step of a training, again and again: each resumed run must end as the unbroken one.

    python benchmarks/kill_safety.py [--runs 100] [--seed 0] [--json] [-- castile launch -n 2 train MODEL ...]

The command must fix its number of steps; --checkpoint, --checkpoint-every, --keep, --resume, --metrics, --search, --out
and --plan are added here: all runs have the plan of data parallelism. One run in three is killed a second time while it
goes on. The last line holds the figures.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.figures import Figure, tell
from castile.launch.checkpoints import folder as folders
from castile.launch.checkpoints.reader import Reader
from castile.runtime.region import whole

CHECKOUT = Path(__file__).resolve().parents[1]
COMMAND = "castile launch -n 2 train mlp --steps 60"
EVERY = 5
PATIENCE_SECONDS = 120.0
# A job is to be over so soon after a rank was killed.
SOON_SECONDS = 2.0
MARK = "CASTILE_KILL_SAFETY"


@dataclass(frozen=True)
class Run:
    """What the runs of one training leave: checkpoints and metrics."""

    folder: Path

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    @property
    def losses(self) -> dict[int, float]:
        """The loss of each step, as the last run that came there had it."""
        path = self.folder / "metrics.jsonl"
        # a rank that was killed may leave half a line
        lines = [line for line in path.read_text().split("\n")[:-1] if line.endswith("}")] if path.exists() else []
        rows = [json.loads(line) for line in lines]
        return {row["step"]: row["loss"] for row in rows if row["kind"] == "step"}

    def words(self, plan: Path, writes_plan: bool) -> list[str]:
        """The options that are added to the command."""
        return ["--checkpoint", str(self.checkpoints), "--checkpoint-every", str(EVERY), "--keep", "2", "--resume",
                "--metrics", str(self.folder / "metrics.jsonl"), "--profile", str(self.folder / "profile.db"),
                *(("--search", "data_parallel", "--out") if writes_plan else ("--plan",)), str(plan)]  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100, metavar="N")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    parser.add_argument("--json", action="store_true", help="print the figures alone")
    parser.add_argument("command", nargs="*", default=COMMAND.split())
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="castile-kill-") as scratch:
        figures = measure(options.command, options.runs, options.seed, Path(scratch), options.json)
    tell(figures)
    return 0 if all(figure.met is not False for figure in figures) else 1


def measure(command: Sequence[str], num_runs: int, seed: int, scratch: Path, quiet: bool) -> list[Figure]:
    """The figures of so many runs. Raises RuntimeError where a run that nobody killed fails."""
    plan, unbroken = scratch / "plan.json", Run(scratch / "unbroken")
    finish(command, unbroken, plan, writes_plan=True)
    expected, steps = latest(unbroken), max(unbroken.losses)
    unloadable = equal = kills = 0
    slowest = 0.0
    for number in range(num_runs):
        rng, run = random.Random(f"{seed}.{number}"), Run(scratch / f"run{number}")
        for _ in range(rng.choice((1, 1, 2))):
            killed = kill(command, run, plan, rng, steps)
            kills, slowest = kills + (killed > 0), max(slowest, killed)
            unloadable += not loads(run)
        finish(command, run, plan)
        same = run.losses == unbroken.losses and alike(latest(run), expected)
        equal += same
        if not quiet:
            print(f"run {number}: {'equal' if same else 'NOT EQUAL'}, {kills} kills so far", flush=True)
    if not quiet:
        print(f"{equal} of {num_runs}")
    return [
        Figure("kill_safety_kills", kills, least=0.9 * num_runs),
        Figure("kill_safety_unloadable", unloadable, most=0),
        Figure("kill_safety_end_seconds", slowest, most=SOON_SECONDS),
        Figure("kill_safety_bit_equal", equal, least=num_runs, note=f"{equal} of {num_runs}"),
    ]


def start(command: Sequence[str], run: Run, plan: Path, writes_plan: bool) -> subprocess.Popen[str]:
    """Start the training; its ranks can be told from all other processes by a variable."""
    run.folder.mkdir(exist_ok=True)
    words = [*([sys.executable, "-m", "castile"] if command[0] == "castile" else command[:1]), *command[1:]]
    path = os.pathsep.join(filter(None, [str(CHECKOUT), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path, MARK: str(run.folder)}
    return subprocess.Popen(
        [*words, *run.words(plan, writes_plan)], env=environment, text=True, stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, process_group=0,
    )  # fmt: skip


def finish(command: Sequence[str], run: Run, plan: Path, writes_plan: bool = False) -> None:
    """Run the training to its end. Raises RuntimeError where it fails."""
    process = start(command, run, plan, writes_plan)
    errors = wait(process)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with status {process.returncode}:\n{errors}")


def kill(command: Sequence[str], run: Run, plan: Path, rng: random.Random, steps: int) -> float:
    """Kill a random rank after a random step; seconds from then to the job's end, 0 where the job was over before."""
    done = max(run.losses, default=0)
    target = rng.randrange(done, steps) if done < steps else steps
    process = start(command, run, plan, writes_plan=False)
    deadline = time.perf_counter() + PATIENCE_SECONDS
    victims: list[int] = []
    while process.poll() is None and max(run.losses, default=0) <= target and time.perf_counter() < deadline:
        # looked for before the step comes: looking takes longer than a step
        victims = victims or (ranks_of(run) if run.checkpoints.exists() else [])
        time.sleep(0.001)
    time.sleep(rng.uniform(0, 0.004))
    if victims and process.poll() is None:
        begun = time.perf_counter()
        os.kill(rng.choice(victims), signal.SIGKILL)
        wait(process)
        return time.perf_counter() - begun
    wait(process)
    return 0.0


def wait(process: subprocess.Popen[str]) -> str:
    """What the job said on stderr, when it is over. Raises TimeoutError for one that does not end."""
    try:
        return process.communicate(timeout=PATIENCE_SECONDS)[1]
    except subprocess.TimeoutExpired:
        # mpirun killed outright would leave its ranks running
        process.terminate()
        process.communicate()
        raise TimeoutError(f"the job did not end within {PATIENCE_SECONDS} s") from None


def ranks_of(run: Run) -> list[int]:
    """The processes that are ranks of this run's job, in the order of their ranks."""
    found = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            entries = dict(e.split(b"=", 1) for e in (folder / "environ").read_bytes().split(b"\0") if b"=" in e)
        except OSError:
            continue
        if entries.get(MARK.encode()) == os.fsencode(run.folder) and b"OMPI_COMM_WORLD_RANK" in entries:
            found[int(entries[b"OMPI_COMM_WORLD_RANK"])] = int(folder.name)
    return [pid for _, pid in sorted(found.items())]


def loads(run: Run) -> bool:
    """Whether the folder gives a checkpoint that is whole, or never held one."""
    try:
        found = folders.latest(run.checkpoints)
    except ValueError as error:
        print(error, file=sys.stderr)
        return False
    return found is None or not found.warnings


def latest(run: Run) -> Reader:
    """The checkpoint at the end of a run."""
    found = folders.latest(run.checkpoints)
    if found is None:
        raise RuntimeError(f"{run.checkpoints} holds no checkpoint at the end of a run")
    return found.open()


def alike(one: Reader, other: Reader) -> bool:
    """Whether two checkpoints hold the same bits after the same step."""
    if (one.step, one.samples, one.regions) != (other.step, other.samples, other.regions):
        return False
    return all(
        one.read(name, whole(region.shape)).tobytes() == other.read(name, whole(region.shape)).tobytes()
        for name, region in one.regions.items()
    )


if __name__ == "__main__":
    sys.exit(main())
