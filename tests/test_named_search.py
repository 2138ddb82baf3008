"""A search that is one known plan looks at no other, but for data parallelism, with which all are compared."""

import json

import pytest

from castile.launch import models
from castile.launch.__main__ import main
from castile.planner.known.seeds import known_names
from castile.planner.lower import Lowering
from castile.runtime import machine as machines

MLP = "mlp:layers=2,width=64"
KNOWN = known_names(Lowering(models.parse(MLP).graph(), machines.local(2)))


@pytest.mark.parametrize("name", KNOWN)
def test_it_looks_at_that_plan_alone(name, capsys):
    assert main(["plan", MLP, "--machine", "local:procs=2", "--search", name, "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)["seeds"]) == {"data_parallel", name}


def test_others_are_looked_at_that_are_asked_for(capsys):
    words = ["plan", MLP, "--machine", "local:procs=2", "--search", "fsdp", "--seeds", "megatron", "--json"]
    assert main(words) == 0
    assert "megatron" in json.loads(capsys.readouterr().out)["seeds"]
