"""Models by name: each builds, computes a loss and a gradient for every parameter, and its words are strict."""

import importlib
import inspect
import re
from math import log, prod, sqrt

import numpy as np
import pytest

from castile.launch import data, models
from castile.launch.jobs import jobs, sample_checks
from castile.launch.typed import settings
from castile.planner.graph import Graph, Node
from castile.runtime import rng
from castile.runtime.region import slices
from tests.effort import rare, some
from tests.op_laws import reference, relative

SMALL = {
    "gpt": "gpt:layers=2,width=8,heads=2,seq=6,vocab=11",
    "llama": "llama:layers=2,width=16,heads=4,kv_heads=2,hidden=12,seq=6,vocab=11",
    "mlp": "mlp:layers=1,width=7,size=4",
    "convnet": "convnet:size=4",
    "resnet": "resnet:size=8,width=2",
    "lstm": "lstm:layers=2,width=5,seq=4,vocab=11",
    "seq2seq": "seq2seq:width=5,seq=3,vocab=9",
    "moe": "moe:layers=2,width=8,heads=2,seq=6,vocab=11,experts=3",
    "dlrm": "dlrm:sizes=9+5+3,numbers=2,features=4,bottom=5,top=7+3",
    "rnnlm": "rnnlm:layers=2,width=5,seq=3,vocab=11",
    "rnntc": "rnntc:layers=2,width=5,seq=3,vocab=11,classes=3",
    "nmt": "nmt:layers=2,width=4,seq=3,vocab=9",
    "bert": "bert:layers=2,width=8,heads=2,seq=6,vocab=11,positions=8,dropout=0",
    "xdl": "xdl:sizes=9+5+3,features=4,top=7+3",
    "candle_uno": "candle_uno:width=7,encoders=2,layers=2,cell=3,descriptors=4,fingerprints=2",
    "lenet": "lenet:size=12",
    "alexnet": "alexnet:size=63,width=1,hidden=5,classes=4,dropout=0",
    "vgg": "vgg:depth=11,size=32,width=1,hidden=6,classes=4,dropout=0",
    "inception": "inception:size=75,width=1,blocks=1,classes=4,dropout=0",
    "resnext": "resnext:size=32,width=1,groups=2,group_width=1,blocks=1,classes=4",
    "wide_resnet": "wide_resnet:size=32,width=1,times=2,blocks=1,classes=4",
    "vit": "vit:size=8,patch=4,layers=2,width=6,heads=2,hidden=7,classes=4",
}


def small(name: str) -> str:
    """A size of the model that the definitions of the kernels compute at once; a model without an entry is as it is."""
    return SMALL.get(name, name)


# Models that take a while as they are, most of full size, at a size that runs in a moment.
SCALED = {
    "lstm": "lstm:seq=8",
    "moe": "moe:layers=1",
    "rnnlm": "rnnlm:width=16,seq=4,vocab=40",
    "rnntc": "rnntc:layers=2,width=16,seq=4,vocab=40",
    "nmt": "nmt:layers=1,width=16,seq=4,vocab=40",
    "bert": "bert:layers=2,width=16,heads=2,seq=12,positions=12,vocab=40",
    "llama": "llama:layers=2,width=16,heads=4,kv_heads=2,hidden=24,seq=12,vocab=40",
    "xdl": "xdl:sizes=40+30+20,features=8,top=16",
    "candle_uno": "candle_uno:width=16,encoders=2,layers=2,cell=9,descriptors=13,fingerprints=12",
    "alexnet": "alexnet:size=63,width=4,hidden=32,classes=10",
    "vgg": "vgg:size=32,width=2,hidden=32,classes=10",
    "inception": "inception:size=75,width=4,blocks=1,classes=10",
    "resnext": "resnext:size=32,width=4,groups=4,group_width=1,blocks=1,classes=10",
    "wide_resnet": "wide_resnet:size=32,width=4,times=2,blocks=1,classes=10",
    "vit": "vit:size=32,patch=8,layers=2,width=16,heads=4,hidden=32,classes=10",
}


def scaled(name: str) -> str:
    """A size of the model that runs in a moment: as it is, unless it takes a while as it is."""
    return SCALED.get(name, name)


def values(graph: Graph, seed: int = 0) -> dict[str, np.ndarray]:
    """Parameters as they begin, and inputs: normal numbers, or integers below 2."""
    env = {}
    for t in graph.params:
        assert t.init is not None
        kinds = {"zeros": np.zeros(t.shape), "ones": np.ones(t.shape)}
        drawn = kinds.get(t.init.kind)
        env[t.name] = t.init.scale * rng.normal(seed, t.name, t.shape) if drawn is None else drawn
    for name in graph.inputs:
        t = graph.tensors[name]
        number = rng.normal(seed, name, t.shape)
        env[name] = number if t.floating else (np.abs(number * 100) % 2).astype(t.dtype)
    return env


def listed(result) -> list:
    return list(result) if isinstance(result, tuple) else [result]


def read(node: Node, env: dict[str, np.ndarray]) -> list[np.ndarray]:
    """What a node reads of its operands."""
    part = node.whole()
    return [env[name][slices(part.reads(n))] for n, name in enumerate(node.inputs)]


def forward(graph: Graph, env: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    env = dict(env)
    for node in graph.nodes.values():
        context = {"at": node.whole()} if "at" in node.op.asks("F") else {}
        results = listed(node.op.forward(reference, *read(node, env), **context))
        env.update(zip(node.outputs, results, strict=True))
    return env


def backward(graph: Graph, env: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The gradient of the loss to every tensor it depends on, summed over the uses of a tensor."""
    gradients = {graph.loss: np.ones(())}
    for node in reversed(graph.nodes.values()):
        for which, body in (("B", "grad_inputs"), ("W", "grad_params")):
            if not node.op.has(which):
                continue
            given = {"at": node.whole(), "y": tuple(env[n] for n in node.outputs)}
            context = {name: given[name] for name in node.op.asks(which)}
            pulled = [gradients.get(n, np.zeros(graph.tensors[n].shape)) for n in node.outputs[: node.op.flows]]
            arrays = [pulled[0] if node.op.flows == 1 else tuple(pulled), *read(node, env)]
            targets = [n for n, name in enumerate(node.inputs) if graph.tensors[name].param == (which == "W")]
            for n, piece in zip(targets, listed(getattr(node.op, body)(reference, *arrays, **context)), strict=True):
                if piece is not None:
                    whole = gradients.setdefault(node.inputs[n], np.zeros(graph.tensors[node.inputs[n]].shape))
                    whole[slices(node.whole().reads(n))] += piece
    return gradients


@pytest.mark.parametrize("name", models.available())
def test_a_model_builds_as_its_recipe_says(name):
    model = models.parse(name)
    graph = model.graph()
    assert graph.batch == model.recipe.batch and graph.name == name
    assert graph.loss and all(output in graph.tensors for output in graph.outputs)
    assert model.graph(batch=3, dtype="float64").tensors[graph.loss].dtype == "float64"
    assert settings.split(model.recipe.data)[0] in data.available() and model.recipe.lr > 0
    assert models.parse(name).graph().fingerprint == graph.fingerprint != model.graph(batch=3).fingerprint


@pytest.mark.parametrize("text", [*(small(name) for name in models.available()), small("gpt") + ",tied=true"])
def test_every_parameter_has_its_gradient(text):
    graph = models.parse(text).graph(batch=3, dtype="float64")
    env = values(graph)
    gradients = backward(graph, forward(graph, env))
    # so small that hardly any rectifier or maximum changes sides between the ends
    generator, h = np.random.default_rng(0), 1e-6
    assert all(gradients[t.name].shape == t.shape for t in graph.params)
    for t in some(graph.params):
        direction = generator.normal(size=t.shape)
        ends = [forward(graph, {**env, t.name: env[t.name] + s * h * direction})[graph.loss] for s in (1, -1)]
        slope, along = float(ends[0] - ends[1]) / (2 * h), float(np.sum(gradients[t.name] * direction))
        assert abs(slope - along) <= 1e-6 * max(1.0, abs(along)), t.name


@pytest.mark.parametrize("name", models.available())
def test_a_model_begins_as_ignorant_as_it_should_be(name):
    graph = models.parse(small(name)).graph(batch=8, dtype="float64")
    env = values(graph)
    classes, loss = graph.tensors[graph.outputs[0]].shape[-1], graph.nodes[graph.loss]
    ignorant = np.square(env[loss.inputs[1]]).mean() if loss.op.name == "mse" else log(classes)
    assert abs(float(forward(graph, env)[graph.loss]) - ignorant) < 1


def in_groups() -> Graph:
    """Convolutions of every kind, in groups."""
    g = Graph("groups", "float32")
    lines, images = g.input("lines", (2, 6, 9), "b c l"), g.input("images", (2, 6, 9, 8), "b c h w")
    g.conv1d("one", lines, channels=4, kernel=3, groups=2)
    g.conv2d("two", images, channels=9, kernel=(3, 2), groups=3)
    g.conv_transpose2d("back", images, channels=4, kernel=(2, 3), groups=2)
    return g


def test_weights_begin_as_large_as_those_of_torch_do_by_default():
    """By how many inputs an output has, as the shape of a weight tells; by the units of what has gates."""
    seen = set()
    for graph in (in_groups(), *(models.parse(small(name)).graph(batch=2) for name in models.available())):
        for node in graph.nodes.values():
            for t in (graph.tensors[name] for name in node.inputs):
                if t.init is not None and t.init.kind == "uniform":
                    inputs = t.shape[1] if t.axes[0] == "g" else prod(t.shape[1:])
                    assert t.init.scale == pytest.approx(1 / sqrt(inputs)), t.name
                    seen.add(node.op.name)
    assert seen >= {"linear", "conv1d", "conv2d", "conv_transpose2d", "lstm_cell", "contract"}


@pytest.mark.parametrize("name", models.available())
def test_no_two_units_of_a_layer_begin_alike(name):
    """They would stay alike."""
    for t in models.parse(small(name)).graph(2).params:
        if len(t.shape) > 1 and t.name.endswith("weight"):
            assert t.init.kind in ("normal", "uniform") and 0 < t.init.scale < 2, t.name


EPSILONS = {
    "gpt": 1e-5, "moe": 1e-5, "llama": 1e-5, "bert": 1e-12, "vit": 1e-6,
    "resnet": 1e-5, "resnext": 1e-5, "wide_resnet": 1e-5, "inception": 1e-3,
}  # fmt: skip


@pytest.mark.parametrize("name", models.available())
def test_every_norm_adds_to_a_variance_what_those_of_the_published_model_do(name):
    ops = (node.op for node in models.parse(small(name)).graph(2).nodes.values())
    assert {op.eps for op in ops if hasattr(op, "eps")} == ({EPSILONS[name]} if name in EPSILONS else set())


def test_patches_begin_as_those_of_torchvision_do():
    (weight,) = (t for t in models.parse("vit").graph(2).params if t.name == "conv_proj.weight")
    assert weight.init.kind == "normal" and weight.init.scale == pytest.approx(1 / sqrt(3 * 16 * 16))


@pytest.mark.parametrize("name", models.available())
def test_a_model_takes_the_samples_of_its_data_set(name):
    model = jobs.fitted(models.parse(name), "", 0)
    graph = model.graph()
    taken = {n: graph.tensors[n].shape[1:] for n in graph.inputs}
    try:
        shapes = data.load(model.recipe.data, 0, sample_checks.taken(graph)).shapes
    except ValueError as error:
        if "no folder" not in str(error):
            raise
        pytest.skip("its images are not installed")
    # a data set may have more than a model takes in
    assert taken.items() <= shapes.items()


@pytest.mark.parametrize("text", [*SMALL.values(), *rare(*SCALED.values())])
def test_a_model_of_any_size_takes_the_samples_of_its_data_set(text):
    """What samples show of a data set's settings is what the model takes, where nobody says otherwise."""
    model = jobs.fitted(models.parse(text), "", 0)
    if model.recipe.data in ("digits", "idx"):
        pytest.skip("its images are as they are")
    graph = model.graph(2)
    found = data.load(model.recipe.data, 0, sample_checks.taken(graph))
    assert {n: graph.tensors[n].shape[1:] for n in graph.inputs}.items() <= found.shapes.items()
    # bytes of texts are as many as they are
    if model.recipe.data not in ("text", "masked"):
        sample_checks.check(graph, found)


@pytest.mark.parametrize("name", models.available())
def test_a_model_takes_what_is_synthetic(name):
    graph = models.parse(small(name)).graph(2)
    found = data.load("synthetic:samples=50", 0, sample_checks.taken(graph))
    assert found.shapes == {n: graph.tensors[n].shape[1:] for n in graph.inputs}
    sample_checks.check(graph, found)


@pytest.mark.parametrize("name", data.available())
def test_what_samples_show_is_a_setting(name):
    module = importlib.import_module(f"castile.launch.data.{name}")
    assert getattr(module, "SHOWN", {}).keys() <= settings.names(module.load, data.RESERVED).keys()


def test_a_tied_head_shares_the_table():
    tied, untied = (models.parse(small("gpt") + f",tied={word}").graph(batch=2) for word in ("true", "false"))
    assert tied.nodes["head"].inputs[1] == "tok.weight" == tied.nodes["tok"].inputs[1]
    assert len(untied.params) == len(tied.params) + 1


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (text, key)
        for text in (*map(small, models.available()), "gpt:size=124m,layers=1,width=8,heads=2,seq=6,vocab=11")
        for key, kind in settings.names(models.parse(text).build, ("training",)).items()
        if kind is bool
    ],
)
def test_a_setting_that_is_true_or_false_is_taken_at_its_word(text: str, key: str) -> None:
    yes, no = (models.parse(f"{text}{',' if ':' in text else ':'}{key}={word}").graph(2) for word in ("true", "false"))
    one, other = ([(n.name, n.op, n.inputs) for n in graph.nodes.values()] for graph in (yes, no))
    assert one != other


@pytest.mark.parametrize("name", models.available())
def test_a_setting_that_is_a_number_makes_another_graph_or_is_refused(name: str) -> None:
    base, given = settings.split(small(name))
    build, plain = models.parse(small(name)).build, models.parse(small(name)).graph(2).fingerprint
    for key, kind in settings.names(build, ("batch", "training")).items():
        if kind is int:
            known = given.get(key) or inspect.signature(build).parameters[key].default or 1
            larger = settings.joined(base, given | {key: str(24 * int(known))})
            try:
                assert models.parse(larger).graph(2).fingerprint != plain, key
            except ValueError as error:
                assert re.search(rf"{key}|classes are cut|positions", str(error)), key


def test_truth_has_three_words_each() -> None:
    for words, tied in ((("true", "yes", "1", "True"), True), (("false", "no", "0", "False"), False)):
        assert {models.parse(f"gpt:tied={word}").settings["tied"] for word in words} == {tied}


def test_a_causal_model_does_not_see_what_comes():
    graph = models.parse(small("gpt")).graph(batch=2, dtype="float64")
    env = values(graph)
    later = {**env, "tokens": env["tokens"].copy()}
    later["tokens"][:, 4:] = 7
    one, other = (forward(graph, e)[graph.outputs[0]] for e in (env, later))
    assert relative(one[:, :4], other[:, :4]) == 0 and relative(one[:, 4:], other[:, 4:]) > 1e-6


def test_a_python_file_is_a_model(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "from castile.planner.graph import Graph\n"
        "def build(batch=None, dtype='float32', *, width: int = 3):\n"
        "    g = Graph('mine', dtype)\n"
        "    x = g.input('image', (batch or 4, 5), 'b i')\n"
        "    g.minimise(g.sum('loss', g.linear('fc', x, features=width)))\n"
        "    return g\n"
    )
    graph = models.parse(f"{path}:width=6").graph(batch=2)
    assert graph.tensors["fc"].shape == (2, 6)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("gtp", r"no model 'gtp' \(did you mean 'gpt'.*there are.*a Python file with build\(\), or an ONNX file$"),
        ("gpt:layer=3", r"no setting 'layer' \(did you mean 'layers'"),
        ("gpt:layers=many", "setting 'layers' should be a whole number, got 'many'"),
        ("gpt:tied=maybe", "setting 'tied' should be true or false"),
        ("gpt:layers", "name:key=value"),
        ("gpt:layers=", "name:key=value"),
        ("gpt:layers=1,layers=2", "'layers' is given twice"),
        ("gpt:batch=3", "no setting 'batch'"),
        ("nowhere/to/be/found.py", "nowhere/to/be/found.py: No such file"),
    ],
)
def test_a_wrong_word_is_refused_in_one_sentence(text, words):
    with pytest.raises(ValueError, match=words) as caught:
        models.parse(text)
    assert "\n" not in str(caught.value)


def test_who_leaves_the_ending_of_a_file_out_is_told_its_name(tmp_path, monkeypatch):
    """What has a model's name is that, whatever files are there."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nets").mkdir()
    (tmp_path / "gpt").mkdir()
    for path in ("mine.py", "mlp.py", "nets/deep.py", "nets/theirs.onnx", "plain.txt"):
        (tmp_path / path).write_text("")
    for text, path in (("mine:width=3", "mine.py"), ("./mlp", "mlp.py"), ("nets/deep", "nets/deep.py"),
                       ("nets/theirs", "nets/theirs.onnx")):  # fmt: skip
        with pytest.raises(ValueError, match=rf"no model .* \(did you mean '{path}', a file that is here\?\); there"):
            models.parse(text)
    with pytest.raises(ValueError, match="no model 'plain'; there are"):
        models.parse("plain")
    assert not models.parse("mlp").is_theirs and not models.parse("gpt").is_theirs


def test_a_file_that_is_no_model_is_refused(tmp_path):
    for name, source in (("empty.py", ""), ("broken.py", "def build(:\n"), ("lost.py", "import no_such_module\n")):
        (tmp_path / name).write_text(source)
        with pytest.raises(ValueError, match=name):
            models.parse(str(tmp_path / name))


@pytest.mark.parametrize("name", models.available())
def test_what_no_machine_has_memory_for_is_refused_at_once(name):
    for batch in (10**20, *rare(10**15)):
        with pytest.raises(ValueError, match=rf"model {name}: build\(\) gave .* more than any machine has memory for"):
            models.parse(name).graph(batch)


def test_settings_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="width 10 should be a multiple of heads, 4"):
        models.parse("gpt:width=10,heads=4").graph()
    with pytest.raises(ValueError, match="at least 1 sample"):
        models.parse("mlp").graph(batch=0)


FAULTS = [
    ("    return 1 / 0\n", r"build\(\) failed: ZeroDivisionError: division by zero \(line 3\)"),
    ('    return Graph("m", dtype).rleu\n', r"build\(\) failed: .* no layer 'rleu' \(did you mean 'relu'.* \(line 3\)"),
    (
        "    g, o = Graph('m', dtype), Graph('o')\n    g.relu('it', o.input('x', (2, 3), 'b i'))\n",
        r"build\(\) failed: ValueError: it: the tensor 'x' is of another graph \(line 4\)",
    ),
    (
        "    g = Graph('m')\n    g.add('it', g.input('a', (2, 3), 'b i'), g.input('c', (2, 3), 'b i', 'int32'))\n",
        r"build\(\) failed: ValueError: it \(add\): .*dtypes.*must be equal \(line 4\)",
    ),
    (
        "    g = Graph('m')\n    g.relu('it', g.input('x', (2, 3), 'b i'))\n    g.outputs = ['its']\n    return g\n",
        r"build\(\) names 'its' as an output, which no layer gives",
    ),
    (
        "    g = Graph('m')\n    g.relu('it', g.input('x', (2, 3), 'b i'))\n    g.loss = 'its'\n    return g\n",
        r"build\(\) names 'its' as its loss, which no layer gives",
    ),
    (
        "    g = Graph('m')\n    g.relu('it', g.input('x', (2, 3), 'b i'))\n    g.outputs = ['x']\n    return g\n",
        r"build\(\) names 'x' as an output, which no layer gives",
    ),
    (
        "    g = Graph('m')\n    g.relu('it', g.input('x', (2, 3), 'b i'))\n"
        "    g.minimise(g.param('w', (), (), None))\n    return g\n",
        r"build\(\) names 'w' as its loss, which no layer gives",
    ),
    (
        "    g = Graph('m')\n    g.relu('it', g.param('x', (2, 3), ('b', 'i'), None))\n    return g\n",
        r"build\(\) gave a graph without inputs: samples come by g.input",
    ),
    (
        "    g = Graph('m')\n    g.relu('it', g.input('x', (), ''))\n    return g\n",
        r"build\(\) gave 'x' the shape \(\), whose first dim should be the batch",
    ),
    *(
        (
            f"    g = Graph('m')\n    g.param('w', (3,), ('a',), {init})\n    return g\n",
            rf"build\(\) failed: ValueError: {told}",
        )
        for init, told in (
            ("Init('norml', 1.0)", r"parameters begin as one of normal, .*, not as 'norml' \(line 4\)"),
            ("Init('normal', float('nan'))", r"the scale of what begins as normal should be .*: nan \(line 4\)"),
            ("'normal'", r"tensor 'w': say how it begins by an Init, not by 'normal' \(line 4\)"),
            ("Init('given')", r"tensor 'w' of shape \(3,\) is given a NoneType: give an array"),
            ("Init('given', values=[0.0] * 3)", r"tensor 'w' of shape \(3,\) is given a list: give an array"),
            (
                "Init('given', values=np.ones((3, 1)))",
                r"tensor 'w' .* is given an array of shape \(3, 1\): give an array",
            ),
        )
    ),
    ("    return batch.shape\n", r"build\(\) failed: AttributeError: .* \(line 3\)"),
    ('    return Graph("m", dtype)\n', r"build\(\) gave a graph of no nodes"),
    ("    return dtype\n", r"build\(\) should give a Graph, not str"),
]


@pytest.mark.parametrize("body, told", FAULTS)
def test_what_fails_in_a_users_model_is_told_with_its_line(body, told, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    imports = "from castile.planner.graph import Graph; from castile.planner.op import Init; import numpy as np"
    (tmp_path / "mine.py").write_text(f"{imports}\ndef build(batch=None, dtype='float32'):\n{body}")
    with pytest.raises(ValueError, match=rf"model(?: file)? mine\.py: {told}"):
        models.parse("mine.py").graph()


@pytest.mark.parametrize("shapes", [((16, 3), (16,)), ((8, 3), (3,)), ((3,), (8, 3)), ((8, 3), ()), ((8, 3), (4,))])
def test_samples_come_as_many_to_every_input_as_a_batch_has(shapes, tmp_path, monkeypatch):
    """An input of another length would be fed with the first of them, or with none."""
    monkeypatch.chdir(tmp_path)
    inputs = [f"g.input('x{n}', {shape}, '{' '.join('abc'[: len(shape)])}')" for n, shape in enumerate(shapes)]
    lines = ["g = Graph('m')", *(f"g.relu('r{n}', {text})" for n, text in enumerate(inputs)), "return g"]
    head = "from castile.planner.graph import Graph\ndef build(batch=None, dtype='float32'):\n"
    (tmp_path / "mine.py").write_text(head + "".join(f"    {line}\n" for line in lines))
    wrong = next(n for n, shape in enumerate(shapes) if shape[:1] != (8,))
    with pytest.raises(ValueError, match=rf"gave 'x{wrong}' the shape .* first dim should be the batch, 8 samples"):
        models.parse("mine.py").graph(8)


@pytest.mark.parametrize(
    "params, missing", [("", "batch and dtype"), ("dtype", "batch"), ("batch=3, width=4", "dtype")]
)
def test_a_users_model_that_takes_not_what_all_take_is_told(params, missing, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(f"def build({params}): pass")
    with pytest.raises(ValueError, match=rf"model file mine\.py: build\(\) does not take {missing}: write def build"):
        models.parse("mine.py")


def test_what_fails_in_a_model_of_ours_is_a_fault_of_ours(monkeypatch):
    monkeypatch.setattr("castile.launch.models.mlp.build", lambda batch=None, dtype="float32": 1 / 0)
    with pytest.raises(ZeroDivisionError):
        models.parse("mlp").graph()


def test_a_users_model_that_cannot_be_run_is_told_with_its_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for source, told in (("\nfoo\n", "NameError: name 'foo' is not defined \\(line 2\\)"), ("open('gone')", "gone")):
        (tmp_path / "mine.py").write_text(source)
        with pytest.raises(ValueError, match=rf"model file mine\.py: .*{told}"):
            models.parse("mine.py")


@pytest.mark.parametrize("place", ["top", "in build"])
def test_a_users_model_that_ends_the_program_is_told(place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    build = "def build(batch=None, dtype='float32'):\n    sys.exit()\n"
    (tmp_path / "mine.py").write_text(f"import sys\n{build if place == 'in build' else 'sys.exit()'}\n")
    with pytest.raises(ValueError, match=r"^model file mine\.py: .*it calls sys\.exit \(line \d\): leave that"):
        models.parse("mine.py").graph()


ANNOTATED = """
from __future__ import annotations
from dataclasses import dataclass
from castile.planner.graph import Graph
from castile.planner.ops.relu import Relu
from castile.planner.op import op
Own = int

@op("... -> ...")
class Mine(Relu):
    times: {kind} = 1

def build(batch=None, dtype="float32"):
    @dataclass
    class Size:
        width: Own = {width}
    g = Graph("mine", dtype)
    x = g.apply(Mine(), "own", g.input("x", (batch or 4, Size().width), "b c"))
    g.minimise(g.sum("loss", x))
    return g
"""


def test_files_of_one_name_may_postpone_their_annotations_and_stay_apart(tmp_path):
    found = []
    for width in (3, 5):
        path = tmp_path / str(width) / "random.py"
        path.parent.mkdir()
        path.write_text(ANNOTATED.replace("{width}", str(width)).replace("{kind}", "Own"))
        found.append(models.parse(str(path)))
    graphs = [model.graph() for model in found]
    assert [graph.tensors["x"].shape for graph in graphs] == [(4, 3), (4, 5)]
    assert {graph.nodes["own"].op.name for graph in graphs} == {"random.Mine"}
    assert importlib.import_module("random").__file__ != found[0].file
    kinds = [type(graph.nodes["own"].op) for graph in graphs]
    assert kinds[0] is not kinds[1] and kinds[0].__module__ != kinds[1].__module__
