"""Bad input: status 2, one clear sentence from one rank, no traceback, and every file as it was before."""

import json
import os
import re
import subprocess
import sys
import tracemalloc

import msgspec
import numpy as np
import pytest

from castile.launch import models
from castile.launch.__main__ import main
from castile.launch.here import probe
from castile.launch.jobs.execution import prepare
from castile.launch.processes import notes
from castile.planner import strategy as strategies
from castile.planner.cost import CostModel
from castile.planner.costs.database import Database
from castile.planner.costs.snapshot import Environment, Measured, snapshot_of
from castile.planner.known.seeds import seeds
from castile.planner.lower import Lowering
from castile.runtime import machine as machines
from castile.runtime.task import CostKey
from tests import homes
from tests.effort import rare
from tests.mpi import CHECKOUT, mpirun_apart

TINY = """
[[processor]]
kind = "cpu"
flops_per_second = 5e10
bytes_per_second = 8e9
memory_bytes = 100_000
"""
# A model of one's own, but for what follows it.
OWN = """
def build(batch=None, dtype="float32"):
    from castile.planner.graph import Graph
    from castile.planner.op import Init
    g = Graph("own", dtype)
    image = g.input("image", (batch or 64, 1, 8, 8), "b c h w")
    label = g.input("label", (batch or 64,), "b", "int32")
    logits = g.linear("head", g.reshape("flat", image, "b c h w -> b (c h w)"), features=10)
"""
LEARNS = "    g.minimise(g.cross_entropy('loss', logits, label))\n    return g\n"
THEIRS = {
    "lossless.py": "    return g\n",
    "idle.py": f"    g.linear('aside', logits, features=3)\n{LEARNS}",
    "unread.py": f"    g.param('gain', (3,), ('a',), Init('zeros'))\n{LEARNS}",
}
RECIPES = {
    "no_recipe.py": "{'batch': 64}",
    "words.py": "Recipe('digits', '64', 0.1)",
    "uphill.py": "Recipe('digits', 64, -0.1)",
    "hollow.py": "Recipe('digits', 64, 0.1, epochs=0)",
}
OWNER = r"[\w./ ]+ \([\d.]+ (?:GiB|MiB|KiB|bytes)\)"


def plan_of(model, num_procs):
    graph = models.parse(model).graph()
    return seeds(Lowering(graph, machines.local(num_procs)))["data_parallel"]


def plan_files(folder):
    """Plans that fit other jobs, and plans that fit none."""
    one = plan_of("mlp", 1)
    (folder / "mlp1.json").write_bytes(strategies.encode(one))
    (folder / "mlp2.json").write_bytes(strategies.encode(plan_of("mlp", 2)))
    (folder / "convnet1.json").write_bytes(strategies.encode(plan_of("convnet", 1)))
    (folder / "elsewhere.json").write_bytes(strategies.encode(msgspec.structs.replace(one, machine="0" * 16)))
    whole = json.loads((folder / "mlp1.json").read_bytes())

    def changed(name, node, config):
        tree = {**whole, "configs": {**whole["configs"], node: config}}
        (folder / name).write_text(json.dumps(tree))

    changed("frozen.json", "loss", {"split": {"v": 2}, "procs": [0, 0]})
    changed("beyond.json", "fc1", {"procs": [7]})
    changed("negative.json", "fc1", {"procs": [-1]})
    changed("nobody.json", "fc11", {"procs": [0]})
    changed("too_few.json", "fc1", {"split": {"b": 2}, "procs": [0]})
    (folder / "unknown.json").write_text(json.dumps({**whole, "num_proc": 1}))
    (folder / "thirds.json").write_text(json.dumps({**whole, "microbatches": 3}))
    halves = {**whole["configs"], "fc1": {"split": {"b": 2}, "procs": [0, 0]}}
    (folder / "single.json").write_text(json.dumps({**whole, "microbatches": 64, "configs": halves}))
    (folder / "cut.json").write_bytes((folder / "mlp1.json").read_bytes()[:200])
    (folder / "garbage.json").write_bytes(np.random.default_rng(0).bytes(300))
    (folder / "empty.json").write_bytes(b"")
    (folder / "newer.json").write_text(json.dumps({**whole, "schema": 99}))


def database_files(folder):
    key = CostKey("linear.F", "4x4;4x4;4x4|", "float32", 128, 192)
    rows = [Measured(msgspec.structs.replace(Measured(key, 1e-6)).key, 1e-6)]
    Database(folder / "good.db").add(snapshot_of(Environment("another processor"), rows))
    whole = (folder / "good.db").read_bytes()
    (folder / "cut.db").write_bytes(whole[: len(whole) // 2])
    (folder / "garbage.db").write_bytes(np.random.default_rng(1).bytes(5000))
    (folder / "header.db").write_bytes(whole[:50])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bad")
    plan_files(folder)
    database_files(folder)
    (folder / "tiny.toml").write_text(TINY)
    (folder / "cut.toml").write_text(TINY[:60])
    (folder / "typo.toml").write_text(TINY.replace("flops_per", "flop_per"))
    (folder / "misspelt.toml").write_text(f'{TINY}attained = [["linaer.F", 0.5]]\n')
    (folder / "unknown.toml").write_text(f'{TINY}unaligned = [["linear.X", 0.5]]\n')
    (folder / "negative.toml").write_text(TINY.replace("8e9", "-8e9"))
    (folder / "no_build.py").write_text("x = 1\n")
    for name, recipe in RECIPES.items():
        (folder / name).write_text(f"from castile.launch.models import Recipe\nRECIPE = {recipe}\n{OWN}{LEARNS}")
    for name, body in THEIRS.items():
        (folder / name).write_text(OWN + body)
    (folder / "syntax.py").write_text("def build(batch=None\n")
    (folder / "cut.npz").write_bytes((CHECKOUT / "launch/data/digits.npz").read_bytes()[:1000])
    (folder / "short.txt").write_text("too short")
    return folder


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return homes.make(tmp_path_factory.mktemp("home"))


@pytest.fixture
def unmeasured(tmp_path):
    """The variables of a user's folder in which this host was never measured."""
    return homes.make(tmp_path / "home", 0)


CASES = [
    # a plan that is for something else
    ("train mlp --plan convnet1.json", r"plan convnet1.json was made for convnet, and not for mlp with 64"),
    ("train mlp1.json", r"no model 'mlp1.json': name the model first; a plan's file goes with --plan"),
    ("train mlp --undecayed *.bais,gain", r"--undecayed \*.bais,gain: no parameter has a name like that"),
    ("train mlp:width=64 --plan mlp1.json", r"plan mlp1.json was made for mlp, and not for mlp:width=64 with"),
    ("train mlp --dtype float64 --plan mlp1.json", r"plan mlp1.json .* not for mlp with 64 .*, in float64: give"),
    ("train mlp --batch 32 --plan mlp1.json", r"plan mlp1.json was made for mlp, and not for mlp with 32"),
    ("train mlp --plan elsewhere.json", r"plan elsewhere.json: .* another machine"),
    ("train mlp --plan mlp2.json", r"plan mlp2.json: it is for 2 processors, but 1 rank runs: .*castile launch -n 2"),
    ("simulate mlp1.json --machine dgx-h100", r"another machine"),
    ("simulate mlp --plan convnet1.json", r"convnet1.json was made for convnet"),
    ("profile mlp --plan convnet1.json", r"plan convnet1.json was made for convnet, and not for mlp with 64"),
    ("profile mlp --plan mlp2.json", r"it is for 2 processors, but 1 rank runs"),
    # a plan that is none
    ("train mlp --plan frozen.json", r"plan frozen.json: loss: axis 'v' of cross_entropy"),
    ("train mlp --plan beyond.json", r"plan beyond.json: fc1: processor 7 is out of range; the machine has 1"),
    ("train mlp --plan negative.json", r"plan negative.json: fc1: processor -1 is out of range"),
    ("train mlp --plan nobody.json", r"a node 'fc11' that mlp does not have \(did you mean 'fc1'"),
    ("train mlp --plan too_few.json", r"fc1: .* need 2 processors, 1 are named"),
    ("simulate frozen.json --machine local:procs=1", r"plan frozen.json: loss: axis 'v' of cross_entropy"),
    # files that cannot be read
    ("train mlp --plan missing.json", r"plan missing.json: No such file"),
    ("train mlp --plan unknown.json", r"plan unknown.json: unknown field 'num_proc' \(did you mean 'num_procs'"),
    ("train mlp --plan cut.json", r"plan cut.json is not JSON"),
    ("train mlp --plan garbage.json", r"plan garbage.json is not JSON"),
    ("train mlp --plan empty.json", r"plan empty.json is not JSON"),
    ("train mlp --plan newer.json", r"plan newer.json: schema 99"),
    ("simulate too_few.json --machine local:procs=1", r"plan too_few.json: fc1: .* need 2 processors"),
    ("plan mlp --machine local:procs=1 --from beyond.json", r"plan beyond.json: fc1: processor 7 is out of range"),
    ("simulate cut.json", r"plan cut.json is not JSON"),
    ("simulate thirds.json --machine local:procs=1", r"plan thirds.json: .* 3 equal microbatches"),
    ("explain thirds.json --machine local:procs=1", r"plan thirds.json: .* 3 equal microbatches"),
    ("plan mlp --from thirds.json --machine local:procs=1 --budget 1", r"plan thirds.json: .* 3 equal microbatches"),
    ("train mlp --plan thirds.json", r"plan thirds.json: .* 3 equal microbatches"),
    ("simulate single.json --machine local:procs=1", r"plan single.json: fc1: .* 64 microbatches has fewer samples"),
    ("plan mlp --machine cut.toml", r"machine file cut.toml is not TOML"),
    ("plan mlp --machine typo.toml", r"'processor\[0\].flop_per_second' \(did you mean 'flops_per_second'"),
    ("plan mlp --machine negative.toml", r"bytes_per_second must be above 0"),
    ("plan mlp --machine misspelt.toml", r"attained: no kernel 'linaer.F' \(did you mean 'linear.F'\?\): give an"),
    ("plan mlp --machine unknown.toml", r"unaligned: no kernel 'linear.X'"),
    ("plan mlp --machine missing.toml", r"machine file missing.toml: No such file"),
    ("train mlp --profile cut.db", r"cut.db is damaged"),
    ("train mlp --profile garbage.db", r"garbage.db is no profile database, or a damaged one"),
    ("profile mlp --profile header.db", r"header.db is no profile database, or a damaged one"),
    ("plan mlp --profile missing.db", r"profile database missing.db: no such file"),
    ("plan mlp --profile garbage.db", r"garbage.db is no profile database"),
    ("train mlp --data digits:file=missing.npz", r"data set digits: no file missing.npz"),
    ("train mlp --data digits:file=cut.npz", r"data set digits: cut.npz is damaged"),
    ("train gpt --data text:file=missing.txt", r"data set text: missing.txt: No such file"),
    ("train gpt --data text:file=short.txt", r"short.txt has 9 bytes, too few"),
    ("train missing.py", r"model file missing.py: No such file"),
    ("train no_build.py", r"no_build.py has no function build"),
    ("train syntax.py", r"model file syntax.py: .*never closed"),
    ("simulate mlp1.json --machine local:procs=2 --batch 3", r"was made for mlp, and not for mlp with 3 samples"),
    *(
        (f"{command} {file}", told)
        for command in ("train", "plan", "simulate", "profile", "validate")
        for file, told in (
            ("lossless.py", r"own has no loss to minimise: name it with minimise\(loss\)"),
            ("idle.py", r"parameter 'aside.weight' has no influence on the loss 'loss'"),
            ("unread.py", r"parameter 'gain' has no influence on the loss 'loss'"),
        )
    ),
    ("explain mlp1.json --machine local:procs=1 --why-not data_paralel", r"data_paralel' \(did you mean 'data_"),
    ("explain mlp1.json --machine local:procs=1 --op fc11", r"no node 'fc11' \(did you mean 'fc1'"),
    ("diff mlp1.json cut.json --machine local:procs=1", r"plan cut.json is not JSON"),
    ("diff mlp1.json beyond.json --machine local:procs=1", r"plan beyond.json: fc1: processor 7 is out of range"),
    ("plan mlp --machine local:procs=2 --pin fc11:{b:2}", r"'fc11'"),
    ("plan mlp --machine local:procs=2 --search mcm", r"no search 'mcm' \(did you mean 'mcmc'"),
    ("plan mlp --machine local:procs=2 --seeds fsp", r"no known plan 'fsp' \(did you mean 'fsdp'"),
    ("plan mlp --machine local:procs=2 --objective speed", r"no objective 'speed'"),
    ("plan mlp --machine local:procs=2 --accumulate 3", r"--accumulate 3: a batch of 64 samples does not make"),
    ("profile mlp --plan cut.json", r"plan cut.json is not JSON"),
    ("validate mlpp", r"no model 'mlpp'"),
    # names and settings
    ("train mlpp", r"no model 'mlpp' \(did you mean 'mlp'"),
    ("train mlp:widht=3", r"no setting 'widht' \(did you mean 'width'"),
    ("train mlp:width=wide", r"setting 'width' should be a whole number, got 'wide'"),
    ("train gpt:width=130", r"width 130 should be a multiple of heads"),
    ("train mlp --search mcm", r"no search 'mcm' \(did you mean 'mcmc'"),
    ("train mlp --search pipeline_2", r"at most as many stages as --accumulate makes pieces, here 1"),
    (
        "plan mlp --machine local:procs=4 --accumulate 2 --search pipeline_4",
        r"at most as many stages as --accumulate makes pieces, here 2",
    ),
    ("train mlp --data digit", r"no data set 'digit' \(did you mean 'digits'"),
    ("train mlp --data text", r"takes 'image' of shape \(1, 8, 8\), data set text has 'tokens' of shape "),
    ("train mlp --machine dgx-h10", r"no machine 'dgx-h10' \(did you mean 'dgx-h100'"),
    ("train mlp --machine dgx-h100", r"kind 'h100-sxm5-80gb', and steps run on this host's cpu"),
    ("train mlp --machine local:procs=3", r"it has 3 processors, but 1 rank runs"),
    ("train mlp --machine local:cores=3", r"has no setting 'cores'.*; its settings: procs, nodes"),
    ("train --stpes 5 mlp", r"train has no option --stpes \(did you mean '--steps'\?\); `castile train --help`"),
    ("plan mlp --machin=local", r"castile plan has no option --machin \(did you mean '--machine'\?"),
    ("doctor --no-json", r"castile doctor has no option --no-json"),
    ("list model", r"castile list: no kind 'model' \(did you mean 'models'\?\); there are models, machines, data"),
    ("list models gtp", r"no model 'gtp' \(did you mean 'gpt'\?\); there are alexnet,"),
    ("list models gpt:layer=3", r"model gpt has no setting 'layer' \(did you mean 'layers'"),
    ("list plans megatron_4", r"castile list plans: there is no 'megatron_4' \(did you mean 'megatron'"),
    ("plan --model mlp", r"castile plan has no option --model: give MODEL by itself"),
    ("simulate --file=mlp1.json", r"castile simulate has no option --file: give MODEL\|FILE by itself"),
    ("doctor --ranks 1000000000", r"--ranks 1000000000: so many ranks have no room in the .* give at most \d+$"),
    ("train no_recipe.py", r"model no_recipe.py: RECIPE is a dict: write Recipe\(data=..., batch=..., lr=...\)"),
    ("plan words.py", r"model words.py: RECIPE: batch: expected a whole number, got a text"),
    ("train uphill.py", r"model uphill.py: RECIPE: lr: expected a number > 0"),
    ("train hollow.py", r"model hollow.py: RECIPE: epochs: expected a whole number >= 1"),
    # numbers
    ("train mlp --budget 10x", r"budget '10x'"),
    ("train mlp --budget 0", r"budget '0'"),
    ("train mlp --batch 0", r"--batch 0: give 1 or more"),
    ("train mlp --batch -1", r"--batch -1: give 1 or more"),
    ("train mlp --batch 1438", r"1437 samples, too few for a batch of 1438"),
    ("train mlp --steps 0", r"--steps 0: give 1 or more"),
    ("train mlp --steps -5", r"--steps -5: give 1 or more"),
    ("train mlp --epochs 0", r"--epochs 0: give 1 or more"),
    ("train mlp --plan p.json --search dynamic", r"--plan p.json and --search dynamic: give one of the two"),
    ("train mlp --plan p.json --budget 10s", r"--plan p.json and --budget 10s: give one of the two"),
    ("train mlp --steps 2 --epochs 2", r"--steps 2 and --epochs 2: give one of the two"),
    ("train mlp --lr 0", r"--lr 0.0: give a number above 0"),
    ("train mlp --lr -0.1", r"--lr -0.1: give a number above 0"),
    ("train mlp --lr nan", r"--lr nan: give a number above 0"),
    ("train mlp --seed -1", r"seed .* got -1"),
    ("plan mlp --batch -1", r"--batch -1"),
    ("plan mlp --budget many", r"budget 'many'"),
    ("profile mlp --batch 0", r"--batch 0: give 1 or more"),
    ("validate mlp --batch -2", r"--batch -2: give 1 or more"),
    ("validate mlp --rounds 0", r"--rounds 0: give 1 or more"),
    ("validate mlp --plans 3", r"--plans 3: at least 4 are needed"),
    # paths that cannot be written: said before anything is measured
    ("train mlp --out tiny.toml/plan.json", r"--out tiny.toml/plan.json: .*tiny.toml is not a folder"),
    ("train mlp --out .", r"--out .: this is a folder"),
    ("train mlp --trace tiny.toml/x/trace.json", r"--trace .*tiny.toml is not a folder"),
    ("train mlp --profile tiny.toml/profile.db", r"profile database tiny.toml/profile.db: "),
    ("plan mlp --budget 1 --out tiny.toml/plan.json", r"tiny.toml"),
    ("simulate mlp --trace tiny.toml/trace.json", r"tiny.toml/trace.json"),
    # too large for memory
    ("train mlp --machine tiny.toml", OWNER),
    ("plan mlp --machine tiny.toml", OWNER),
    ("simulate mlp --machine tiny.toml", OWNER),
    ("profile mlp --machine tiny.toml", OWNER),
]


def check_sentence(err, told):
    assert err.startswith("castile: ") and err.count("\n") == 1 and err.endswith("\n"), err
    assert "Traceback" not in err and re.search(told, err), err


@pytest.mark.parametrize("words, told", CASES, ids=[words for words, _ in CASES])
def test_bad_input_is_told_in_one_sentence(words, told, folder, unmeasured, monkeypatch, capsys):
    """Before anything is measured: who mistypes a name does not wait for this host's figures."""
    monkeypatch.chdir(folder)
    for name, value in unmeasured.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(probe, "measure", None)
    before = homes.contents(folder)
    status = main(words.split())
    err = capsys.readouterr().err
    assert status == 2, err
    check_sentence(err, told)
    assert homes.contents(folder) == before


ALONE = [
    "train mlp --plan convnet1.json",
    "train mlp --profile garbage.db",
    *rare(
        "train mlp --plan frozen.json",
        "train mlp --plan cut.json",
        "train mlp --lr nan",
        "simulate mlp --machine tiny.toml",
    ),
]


@pytest.mark.parametrize("words", ALONE)
def test_the_same_as_a_process_of_its_own(words, folder, unmeasured):
    before, env = homes.contents(folder), {**os.environ, **unmeasured, "PYTHONPATH": str(CHECKOUT)}
    command = [sys.executable, "-m", "castile", *words.split()]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=env)
    assert (done.returncode, done.stdout) == (2, "")
    check_sentence(homes.but_for_compiling(done.stderr), dict(CASES)[words])
    assert homes.contents(folder) == before


ON_TWO_RANKS = [
    ("train mlp --plan {}/mlp1.json", r"it is for 1 processor, but 2 ranks run"),
    ("train mlp --profile {}/garbage.db", r"garbage.db is no profile database"),
    ("train gpt --data text:file={}/missing.txt", r"missing.txt: No such file"),
    *rare(("train mlp --steps 0", r"--steps 0: give 1 or more")),
    ("train mlp --out {}/tiny.toml/plan.json", r"tiny.toml is not a folder"),
    ("train mlp --machine {}/tiny.toml", r"it has 1 processor, but 2 ranks run"),
    ("profile mlpp", r"no model 'mlpp'"),
    ("train mlp:width=200000 --budget 20", OWNER),
]


@pytest.mark.mpi
@pytest.mark.parametrize("words, told", ON_TWO_RANKS, ids=[words for words, _ in ON_TWO_RANKS])
def test_one_rank_of_two_tells_it(words, told, folder, home):
    before = homes.contents(folder)
    status, _, err = mpirun_apart(2, "-m", "castile", *words.format(folder).split(), **home)
    # But for mpirun's own note on a rank that ended, stderr holds the sentence alone.
    told_once = "".join(notes.plain((line.encode() for line in err.splitlines(keepends=True)), str, []))
    assert status == 2, err
    check_sentence(homes.but_for_compiling(told_once.strip(" ")), told)
    assert homes.contents(folder) == before


def test_the_five_largest_owners_are_named_before_anything_is_allocated():
    # Two weights of 320 GB each, which no host that runs tests holds.
    graph = models.parse("mlp:width=200000,layers=3").graph()
    machine = machines.local(1)
    lowering = Lowering(graph, machine)
    tracemalloc.start()
    with pytest.raises(ValueError, match=r"processor 0 needs .* but has") as refused:
        prepare(lowering, seeds(lowering)["data_parallel"], CostModel(machine))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    owners = re.findall(OWNER, str(refused.value).partition("most of it is ")[2])
    assert len(owners) == 5 and len(set(owners)) == 5
    assert {"fc2.weight", "fc3.weight"} <= {owner.split()[0] for owner in owners}
    assert peak < 2**26


def test_a_good_database_of_another_processor_is_not_lost(folder, home, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    for name, value in home.items():
        monkeypatch.setenv(name, value)
    path = tmp_path / "good.db"
    path.write_bytes((folder / "good.db").read_bytes())
    assert main(["plan", "mlp", "--profile", str(path), "--budget", "1"]) == 2
    check_sentence(capsys.readouterr().err, "nothing in it was measured on this host")
    assert main(["train", "mlp", "--steps", "2", "--budget", "5", "--profile", str(path)]) == 0
    assert len(Database(path).snapshot(Environment("another processor")).rows) == 1
