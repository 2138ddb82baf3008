"""What castile takes of ONNX's own suite it computes rightly, and it takes no less than it did.

`python -m tests.onnx_suite` prints all of the score, with the cases that take long to make.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnx")

import onnx
from onnx import numpy_helper
from onnx.backend.test.runner import Runner

from castile.launch import models
from castile.launch.arrays import weights
from castile.launch.importers.onnx import operators
from castile.launch.jobs.execution import Execution, feed_from, prepare
from castile.planner.cost import CostModel
from castile.planner.lower import Lowering
from castile.planner.strategy import Config, Strategy
from castile.runtime import machine
from castile.runtime.comm.local import LocalWorld
from tests.effort import rare
from tests.mpi import CHECKOUT
from tests.onnx_suite import SLOW, Case, Score, of_nodes, of_pytorch, score
from tests.training import SGD

# How many are right with onnx 1.23.2; of all cases of one operator it is 1,026.
NODES, PYTORCH = 1001, 110
# And of those on which they are tried by default.
FEW = 295
LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
NUM_PARAMS = {
    "bvlc_alexnet": 60_965_224, "densenet121": 8_062_504, "inception_v1": 6_998_552, "inception_v2": 11_214_888,
    "resnet50": 25_557_032, "shufflenet": 1_393_320, "squeezenet": 1_235_496, "vgg19": 143_667_240,
    "zfnet512": 87_250_536,
}  # fmt: skip
# Of many layers, or of many parameters, of kinds that others have too.
LARGE = ("densenet121", "inception_v2", "vgg19")
# What this one's classes are told by is about 1e10 and the same for all: rounding alone would say which is likeliest.
BEFORE_SOFTMAX = {"squeezenet": "n64"}


def check(found: Score, floor: int) -> None:
    assert found.wrong == {}
    assert len(found.right) >= floor, len(found.right)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_operators_are_right_where_they_are_taken() -> None:
    """Of each operator the first case and every fourth after it; all where the law is proved on all."""
    of: dict[str, list[Case]] = {}
    for case in of_nodes(without=SLOW):
        of.setdefault(case.model.graph.node[0].op_type, []).append(case)
    every = [*rare(*itertools.chain(*of.values()))]
    check(score(iter(every or [case for cases in of.values() for case in cases[::4]])), NODES if every else FEW)


def test_layers_of_pytorch_are_right_where_they_are_taken() -> None:
    check(score(of_pytorch()), PYTORCH)


@pytest.mark.parametrize("name", [name for name in NUM_PARAMS if name not in LARGE or rare(name)])
def test_a_known_network_says_what_it_should(name: str) -> None:
    path = str(LIGHT / f"light_{name}.onnx")
    model, proto = models.parse(path), onnx.load_model(path)
    graph, on = model.graph(1, training=False), machine.local(1)
    graph = replace(graph, outputs=[BEFORE_SOFTMAX.get(name, *graph.outputs)])
    assert sum(int(np.prod(t.shape)) for t in graph.params) == NUM_PARAMS[name]
    told = next(i for i in proto.graph.input if i.name not in {t.name for t in proto.graph.initializer})
    given = Runner.generate_dummy_data(told, seed=0, name=name, random=False)
    lowering = Lowering(graph, on, SGD, mode="forward")
    prepared = prepare(lowering, Strategy({n: Config() for n in graph.nodes}, num_procs=1), CostModel(on))
    execution = Execution(graph, prepared, LocalWorld(1).communicators[0], range(1), poison=True)
    execution.initialise(0, weights.load(path, model, graph))
    labels = {n: np.zeros(graph.tensors[n].shape, np.int32) for n in graph.inputs[1:]}
    execution.feed(feed_from({graph.inputs[0]: given, **labels}))
    execution.run()
    wanted = numpy_helper.to_array(onnx.load_tensor(path.replace(".onnx", "_output_0.pb")))
    found = execution.output(graph.outputs[0])
    if name in BEFORE_SOFTMAX:
        found = found / found.sum()
    np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-7)


def test_the_readme_says_how_many_operators_there_are() -> None:
    (told,) = re.findall(r"with any of (\d+) of its operators", (CHECKOUT / "README.md").read_text())
    assert int(told) == len(operators.available())
