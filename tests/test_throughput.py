"""Throughput: what a network's step needs is held against PaLM's formula; shares of peaks, and tokens of sequences."""

import re

import msgspec
import pytest

from castile.launch import models
from castile.launch.__main__ import main
from castile.launch.jobs import offline
from castile.launch.reports import throughput
from castile.planner.lower import Lowering
from castile.runtime import machine as machines
from castile.runtime.machine import Machine
from tests.answers import answer
from tests.effort import rare

H100 = "dgx-h100:nodes=1"
TEXTS = "gpt:layers=1,width=16,heads=2,seq=8"


def lowering(model: str, batch: int = 8, mode: str = "train", machine: str = H100) -> Lowering:
    return Lowering(models.parse(model).graph(batch), machines.parse(machine), mode=mode)


@pytest.mark.parametrize(
    "model, layers, width, seq, vocab, hidden",
    [("gpt:layers=4,width=768,heads=12,seq=512,vocab=50257", 4, 768, 512, 50257, 8 * 768**2),
     ("llama:layers=3,width=512,heads=8,kv_heads=8,hidden=1024,seq=256,vocab=8192", 3, 512, 256, 8192, 3 * 512 * 1024)],
)  # fmt: skip
def test_a_transformer_needs_what_palm_says(model, layers, width, seq, vocab, hidden):
    """6 N + 12 L H Q T for each token, of which causal attention sees half; N without tables that are looked up in."""
    weights = layers * (4 * width**2 + hidden) + vocab * width
    seen = (seq + 1) / 2
    per_token = 6 * weights + 12 * layers * width * seen
    assert throughput.model_flops(lowering(model)) == pytest.approx(8 * seq * per_token, rel=0.02)


def test_products_count_two_operations_for_each_weight_and_sample():
    needed = throughput.model_flops(lowering("mlp:layers=1,width=4096", batch=64))
    assert needed == pytest.approx(3 * 2 * 64 * (64 * 4096 + 4096 * 10), rel=0.01)


def test_a_forward_pass_needs_a_third():
    """But for the loss, which only training asks for."""
    whole, ahead = (throughput.model_flops(lowering("mlp:width=1024", 64, mode)) for mode in ("train", "forward"))
    assert ahead == pytest.approx(whole / 3, rel=0.001) and ahead < whole / 3


def test_gradients_that_frozen_parameters_spare_are_not_needed():
    """Layers before are passed forward alone; the first that is trained, and frozen ones behind it, lack one of two."""
    first, second, third = 2 * 64 * 64 * 512, 2 * 64 * 512 * 512, 2 * 64 * 512 * 10
    for names, parts in (("fc1.*", first + second * 2 + third * 3), ("fc1.*+fc2.*", first + second + third * 2),
                         ("fc2.*", first * 3 + second * 2 + third * 3)):  # fmt: skip
        needed = throughput.model_flops(lowering(f"mlp:layers=2,width=512,frozen={names}", batch=64))
        assert needed == pytest.approx(parts, rel=0.01), names


PLANS = [
    "--search data_parallel", "--search megatron", "--search data_parallel --recompute full",
    "--search data_parallel --accumulate 4", "--search pipeline_2 --accumulate 4",
]  # fmt: skip


@pytest.mark.parametrize("words", PLANS)
def test_what_is_needed_is_the_networks_alone_however_it_is_planned(words, tmp_path, capsys):
    model, path = "gpt:layers=2,width=64,seq=32,vocab=64,heads=8", str(tmp_path / "plan.json")
    found = answer(capsys, "plan", model, "--machine", H100, "--batch", "64", *words.split(), "--out", path)
    told = answer(capsys, "simulate", path)
    needed = throughput.model_flops(lowering(model, 64))
    assert found["model_flops"] == told["model_flops"] == needed
    # on each element a gradient is one pass and not two
    assert needed < 1.01 * told["flops_per_second"] * told["step_seconds"] * 8
    for facts, seconds in ((found, found["found"]["step_seconds"]), (told, told["step_seconds"])):
        assert facts["model_flops_utilisation"] == pytest.approx(needed / seconds / (8 * 66.9e12))
        assert facts["tokens_per_second"] == pytest.approx(64 * 32 / seconds)
        assert facts["samples_per_second"] == pytest.approx(64 / seconds)


def test_narrow_numbers_have_peaks_of_their_own(capsys):
    words = ("plan", "mlp", "--machine", "p3.16xlarge", "--search", "data_parallel", "--dtype")
    shares = {dtype: answer(capsys, *words, dtype) for dtype in ("float32", "float16", "bfloat16")}
    for dtype, peak in (("float32", 15.7e12), ("float16", 125e12)):
        facts = shares[dtype]
        rate = facts["model_flops"] / facts["found"]["step_seconds"]
        assert facts["model_flops_utilisation"] == pytest.approx(rate / 8 / peak)
    assert shares["bfloat16"]["model_flops_utilisation"] is None


def test_peaks_of_unlike_processors_are_added_up():
    fast, slow = machines.parse(H100).processors[0], machines.parse("dgx-a100:nodes=1").processors[0]
    level = machines.parse(H100).levels[0]
    both = Machine("both", (fast, slow), (msgspec.structs.replace(level, group=2),))
    assert throughput.peak_rate(both, "float16") == pytest.approx(989.4e12 + 312e12)
    unknown = Machine("both", (fast, msgspec.structs.replace(slow, peaks=())), both.levels)
    assert throughput.peak_rate(unknown, "float16") is None
    # who hides the share is named where others have peaks, and nobody is where it could not be told at all
    neither = Machine("both", (unknown.processors[1],) * 2, both.levels)
    assert [throughput.without_peak(one, "float16") for one in (both, unknown, neither)] == [[], [slow.kind], []]
    assert throughput.without_peak(unknown, "float8") == []


UNLIKE = """
[[processor]]
count = 1
kind = "known"
flops_per_second = 1e13
bytes_per_second = 1e11
memory_bytes = 20_000_000_000
peaks = [["float32", 2e13]]
[[processor]]
count = 1
kind = "unknown"
flops_per_second = 1e13
bytes_per_second = 1e11
memory_bytes = 20_000_000_000
[[level]]
name = "link"
latency_seconds = 1e-6
bytes_per_second = 1e10
"""


@pytest.mark.parametrize("others", [[], ["--machine", "p3.16xlarge"]])
def test_a_share_of_peaks_that_only_some_have_is_not_left_out_without_a_word(others, tmp_path, capsys):
    path, plan = tmp_path / "unlike.toml", str(tmp_path / "plan.json")
    path.write_text(UNLIKE)
    words = ["plan", "mlp", "--machine", str(path), *others, "--search", "data_parallel", "--out", plan]
    facts = answer(capsys, *words)
    for row in facts.get("machines", [facts]):
        is_unlike = row["machine"] == str(path)
        assert (row["model_flops_utilisation"] is None) == is_unlike
        assert row["kinds_without_peak"] == ["unknown"] * is_unlike
    assert main(words) == 0
    assert capsys.readouterr().out.count("no MFU, as no peak of unknown is known") == 1
    if not others:
        assert main(["simulate", plan]) == 0
        assert capsys.readouterr().out.count("no MFU, as no peak of unknown is known") == 1


@pytest.mark.parametrize(
    "model, tokens",
    [("mlp", None), ("dlrm", None), ("vit:size=32,patch=8,layers=1,width=64,heads=1,hidden=64", None),
     ("gpt:seq=32", 32), ("bert:layers=1,width=64,heads=1,seq=16,vocab=99", 16), ("seq2seq:seq=12", 12),
     ("lstm:seq=8", 8)],
)  # fmt: skip
def test_only_sequences_have_tokens(model, tokens):
    assert throughput.tokens_of(models.parse(model).graph(4)) == (tokens and 4 * tokens)


def test_people_are_told_what_is_known():
    known = {"samples_per_second": 5.0, "tokens_per_second": 5e6, "model_flops_utilisation": 0.4125}
    known |= {"kinds_without_peak": []}
    assert throughput.words(known) == "5 samples/s, 5.00M tokens/s, MFU 41.2 %"
    assert throughput.words({**known, "tokens_per_second": None, "model_flops_utilisation": None}) == "5 samples/s"


def test_a_desk_tells_it_too():
    """As who plans from a program asks for it."""
    desk = offline.desk("mlp", machines.parse(H100), 64)
    facts = throughput.facts(desk.evaluator.lowering, 2.0)
    assert facts["samples_per_second"] == 32 and facts["tokens_per_second"] is None


@pytest.mark.parametrize(
    "model, tokens, pieces",
    [("mlp", None, 1), (TEXTS, 64 * 8, 2), *rare(("mlp", None, 2), (TEXTS, 64 * 8, 1))],
)
def test_a_training_tells_what_its_median_step_did(model, tokens, pieces, alone, capsys):
    words = ("train", model, "--steps", "4", "--batch", "64", "--accumulate", str(pieces), "--search", "data_parallel")
    facts = answer(capsys, *words)
    seconds = facts["step_seconds"]
    assert facts["samples_per_second"] == 64 / seconds and facts["tokens_per_second"] == (tokens and tokens / seconds)
    assert facts["model_flops"] == throughput.model_flops(lowering(model, 64))
    assert main(words) == 0
    assert re.search(r"\na step took [\d.]+ ms, the median: [\d.]+[kM]? samples/s", capsys.readouterr().out)


def test_a_run_without_steps_tells_none(alone, capsys):
    words = ("train", "mlp", "--steps", "2", "--checkpoint", "run", "--search", "data_parallel")
    assert "samples_per_second" in answer(capsys, *words)
    assert "samples_per_second" not in answer(capsys, *words, "--resume")
