"""Which rewrites a network is planned with: those that leave a step least work, where its maker leaves that open."""

import pytest

from castile.launch import models
from castile.launch.checkpoints.manifest import Facts
from castile.launch.training import resume
from castile.planner import rewrite as rewrites
from castile.planner import strategy as strategies
from castile.planner.cost import CostModel
from castile.planner.families.updates import Updates
from castile.planner.lower import Lowering
from castile.planner.op import find
from castile.planner.searching.rewriting import LEAST_SAVING, choose_rewrites
from castile.runtime import machine as machines
from castile.runtime.timeline import PICOSECONDS
from tests.answers import answer, sentence

GPUS = machines.parse("flexflow-p100:nodes=1")
NORMED = "resnet:depth=small,size=8"
NETWORKS = (
    NORMED, "convnet", "mlp", "gpt:layers=1,width=16,seq=8,vocab=16", "moe:layers=2,width=16,seq=8,vocab=16",
)  # fmt: skip
PLAN = ("plan", NORMED, "--machine", "flexflow-p100:nodes=1", "--search", "data_parallel")


def lowered(text: str) -> Lowering:
    return Lowering(models.parse(text).graph(8), GPUS, Updates(find("sgd")(momentum=0.9)))


def work(lowering: Lowering) -> float:
    """Seconds of a step whose nodes are all whole on one processor."""
    tasks = lowering.lower(lowering.plan(dict.fromkeys(lowering.piece.nodes, strategies.Config())))
    return CostModel(lowering.machine).picoseconds(tasks.cost_keys)[tasks.cost].sum() / PICOSECONDS


@pytest.mark.parametrize("text", NETWORKS)
def test_no_rewrite_saves_more(text):
    lowering = lowered(text)
    names, made, saved = choose_rewrites(lowering)
    whole, taken = work(lowering), [name for name in names.split(rewrites.AND) if name]
    left = work(made)
    assert made.graph.fingerprint == (rewrites.apply(names, lowering.graph) if taken else lowering.graph).fingerprint
    assert saved == pytest.approx(1 - left / whole) and (saved > LEAST_SAVING) == bool(taken)
    for name in rewrites.available():
        more = rewrites.apply(rewrites.AND.join([*taken, name]), lowering.graph)
        assert work(lowering.remade(graph=more)) >= (1 - LEAST_SAVING) * left


def test_what_is_asked_of_it_happens():
    taken = {text: choose_rewrites(lowered(text))[0] for text in NETWORKS}
    assert taken[NORMED] == "fuse" and taken["mlp"] == "", taken


@pytest.mark.parametrize(
    ("words", "machine", "dtype", "names"),
    [
        (50_257, "dgx-h100:nodes=1", "bfloat16", "classes_first"),
        (50_304, "dgx-h100:nodes=1", "bfloat16", ""),
        (50_257, "dgx-h100:nodes=1", "float32", ""),
        (50_257, "flexflow-p100:nodes=1", "float16", ""),
    ],
)
def test_classes_lie_outermost_where_rows_of_them_begin_anywhere(words, machine, dtype, names):
    graph = models.parse(f"gpt:layers=2,width=256,heads=4,seq=256,vocab={words}").graph(8, dtype)
    assert choose_rewrites(Lowering(graph, machines.parse(machine)))[0] == names


@pytest.mark.parametrize(
    ("machine", "dtype", "names"),
    [
        ("dgx-h100:nodes=1", "bfloat16", "channels_last"),
        ("dgx-a100:nodes=1", "float16", "channels_last"),
        ("dgx-h100:nodes=1", "float32", ""),
        ("flexflow-p100:nodes=1", "float16", ""),
    ],
)
def test_channels_lie_innermost_where_kernels_attain_less_of_planes(machine, dtype, names):
    lowering = Lowering(models.parse("alexnet").graph(256, dtype), machines.parse(machine))
    assert choose_rewrites(lowering)[0] == names


def test_a_plan_says_what_it_is_rewritten_by(tmp_path, capsys):
    path = tmp_path / "plan.json"
    found = answer(capsys, *PLAN, "--out", str(path))
    said = answer(capsys, *PLAN[:1], f"{NORMED},rewrite=fuse", *PLAN[2:])
    plain = answer(capsys, *PLAN[:1], f"{NORMED},rewrite=none", *PLAN[2:])
    assert (found["rewrite"], said["rewrite"], plain["rewrite"]) == ("fuse", "fuse", "")
    assert found["work_saved_share"] > LEAST_SAVING and said["work_saved_share"] == plain["work_saved_share"] == 0
    assert found["found"]["step_seconds"] == said["found"]["step_seconds"] < plain["found"]["step_seconds"]
    assert found["model"] == said["model"] == strategies.read(path).model == f"{NORMED},rewrite=fuse"
    # Its file is enough to look at it again, and to go on from.
    assert answer(capsys, "simulate", str(path))["step_seconds"] == found["found"]["step_seconds"]
    for model in (NORMED, found["model"]):
        assert answer(capsys, *PLAN[:1], model, *PLAN[2:], "--from", str(path))["model"] == found["model"]
    assert "rewrite=fuse" in sentence(capsys, *PLAN[:1], f"{NORMED},rewrite=none", *PLAN[2:], "--from", str(path))


@pytest.mark.parametrize("name", rewrites.available())
@pytest.mark.parametrize("text", ["mlp", "convnet:channels=4"])
def test_what_a_model_leaves_open_a_plan_decides(text, name):
    """And nothing else: neither what the user says of it, nor for another model or other settings."""
    model, colon = models.parse(text), "," if ":" in text else ":"
    asked = f"{text}{colon}rewrite={name}"
    planned = model.as_planned(asked)
    assert planned.graph(8).fingerprint == models.parse(asked).graph(8).fingerprint
    assert models.parse(planned.text) == planned
    others = ("", text, f"{text}{colon}rewrite=none", f"gpt:rewrite={name}", f"{text}{colon}depth=3,rewrite={name}")
    assert all(model.as_planned(other) is model for other in others)
    for said in ("none", *rewrites.available()):
        given = models.parse(f"{text}{colon}rewrite={said}")
        assert given.as_planned(asked) is given


def test_whoever_takes_a_rewritten_plan_need_not_name_its_rewrites(alone, capsys):
    found = answer(capsys, "plan", "convnet:rewrite=fuse", "--machine", "local:procs=1", "--out", "plan.json")
    assert found["rewrite"] == "fuse"
    with_plan = ("convnet", "--plan", "plan.json")
    simulated = answer(capsys, "simulate", *with_plan)
    trained = answer(capsys, "train", *with_plan, "--steps", "2", "--out", "trained.json")
    answer(capsys, "profile", *with_plan)
    for path in ("plan.json", "trained.json"):
        assert answer(capsys, "explain", path, "--model", "convnet")["model"] == "convnet:rewrite=fuse"
    assert simulated["model"] == trained["run"]["model"] == "convnet:rewrite=fuse"
    assert "made for convnet:rewrite=fuse" in sentence(capsys, "train", "convnet:rewrite=none", *with_plan[1:])


def test_a_checkpoint_that_names_rewrites_is_of_the_network_before_them():
    """And one of a network that has changed since, or is gone, stays what it says."""
    rewritten, built = models.parse(f"{NORMED},rewrite=fuse"), models.parse(NORMED)
    graphs = [model.graph(8, "float32").fingerprint for model in (rewritten, built)]
    saved = Facts(rewritten.text, "digits", 8, 0, graphs[0], "float32")
    assert resume.as_built(saved) == Facts(NORMED, "digits", 8, 0, graphs[1], "float32")
    plain = Facts(NORMED, "digits", 8, 0, graphs[1], "float32")
    gone = Facts("gone.py:rewrite=fuse", "digits", 8, 0, graphs[0], "float32")
    for one in (plain, gone, Facts(rewritten.text, "digits", 8, 0, "other", "float32")):
        assert resume.as_built(one) == one


def test_where_memory_decides_the_graph_stays(capsys):
    facts = answer(capsys, *PLAN, "--objective", "memory")
    assert (facts["model"], facts["work_saved_share"]) == (NORMED, 0)


@pytest.mark.parametrize("machine", ["local:procs=2", "cores.toml"])
def test_cores_are_planned_for_as_the_model_is(tmp_path, capsys, machine, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = '[[processor]]\nkind = "cpu"\nflops_per_second = 1e9\nbytes_per_second = 1e9\nmemory_bytes = 1_000_000_000\n'
    (tmp_path / "cores.toml").write_text(f"nodes = 1\n{text}task_overhead_seconds = 1e-6\n")
    facts = answer(capsys, "plan", NORMED, "--machine", machine, "--search", "data_parallel")
    assert (facts["model"], facts["rewrite"], facts["work_saved_share"]) == (NORMED, None, 0)


def test_a_rewrite_that_there_is_not_is_refused(capsys):
    assert "fuse" in sentence(capsys, *PLAN[:1], f"{NORMED},rewrite=fus", *PLAN[2:])
