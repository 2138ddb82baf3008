"""Weights in and out: files under own and standard names, what is refused and in which words, bits that stay."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from castile.launch import models
from castile.launch.arrays import weights
from castile.launch.arrays.standard_names import Piece, StandardNames
from castile.launch.arrays.weights import families

TINY = "gpt:layers=2,width=8,heads=2,seq=6,vocab=11"
LLAMA = "llama:layers=2,width=8,heads=2,kv_heads=1,hidden=12,seq=6,vocab=11"
MODERN = f"{TINY},norm=rms,rotary=true,kv_heads=1,mlp=silu,hidden=12,bias=false"


def drawn(model, dtype="float32") -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {t.name: rng.normal(size=t.shape).astype(dtype) for t in model.graph().params}


def equal(one, other) -> bool:
    assert set(one) == set(other)
    return all(one[name].dtype == a.dtype and np.array_equal(one[name], a) for name, a in other.items())


@pytest.mark.parametrize("standard", [False, True])
@pytest.mark.parametrize("text", [TINY, f"{TINY},tied=true", MODERN, f"{MODERN},tied=true", LLAMA])
def test_what_was_written_is_read_bit_for_bit(tmp_path, text, standard):
    model = models.parse(text)
    values = drawn(model)
    size = weights.save(tmp_path / "w.safetensors", values, model, standard)
    assert size == (tmp_path / "w.safetensors").stat().st_size
    assert equal(weights.load(tmp_path / "w.safetensors", model), values)


def test_an_optimizers_state_is_left_aside_and_that_of_nobody_refused(tmp_path):
    """As `castile checkpoint export --state` writes it, of any shape, beside parameters under their own names."""
    model = models.parse(TINY)
    values = drawn(model)
    kept = {"tok.weight/mean": values["tok.weight"], "tok.weight/rows": np.ones(11, np.float64)}
    save_file(values | kept, tmp_path / "w")
    assert equal(weights.load(tmp_path / "w", model), values)
    save_file(values | kept | {"other.weight/mean": np.ones(2)}, tmp_path / "w")
    with pytest.raises(ValueError, match=r"has no use for 'other\.weight/mean'"):
        weights.load(tmp_path / "w", model)


def test_standard_tensors_are_those_of_the_family(tmp_path):
    model = models.parse(TINY)
    values = drawn(model)
    weights.save(tmp_path / "w", values, model, standard=True)
    found = load_file(tmp_path / "w")
    joined = [values[f"block2.{part}.weight"].T for part in "qkv"]
    assert np.array_equal(found["h.1.attn.c_attn.weight"], np.concatenate(joined, axis=1))
    assert found["h.0.attn.c_attn.bias"].shape == (24,)
    assert np.array_equal(found["h.0.mlp.c_fc.weight"], values["block1.up.weight"].T)
    assert len(found) == 2 * 12 + 2 + 2 + 1


def test_a_file_may_have_a_prefix_a_copy_of_the_table_and_masks(tmp_path):
    model = models.parse(f"{TINY},tied=true")
    values = drawn(model)
    weights.save(tmp_path / "w", values, model, standard=True)
    found = {f"transformer.{name}": array for name, array in load_file(tmp_path / "w").items()}
    found["lm_head.weight"] = found["transformer.wte.weight"].copy()
    found["transformer.h.0.attn.bias"] = np.tril(np.ones((1, 1, 6, 6), np.float32))
    save_file(found, tmp_path / "other")
    assert equal(weights.load(tmp_path / "other", model), values)
    found["lm_head.weight"][0, 0] += 1
    save_file(found, tmp_path / "other")
    with pytest.raises(ValueError, match=r"'lm_head.weight' is not the same as 'transformer.wte.weight'"):
        weights.load(tmp_path / "other", model)


@pytest.mark.parametrize("standard", [False, True])
def test_missing_unexpected_and_misshapen_tensors_are_named(tmp_path, standard):
    model = models.parse(TINY)
    path = tmp_path / "w.safetensors"
    weights.save(path, drawn(model), model, standard)
    whole = load_file(path)
    name = "h.1.ln_2.weight" if standard else "block2.norm2.weight"
    for broken, words in (
        ({n: a for n, a in whole.items() if n != name}, f"no tensor '{name}'"),
        ({**whole, f"{name}s": np.ones(8)}, rf"no use for '{name}s' \(did you mean '{name}'"),
        ({**whole, name: np.ones(9, np.float32)}, rf"'{name}' has shape \(9,\), it should have \(8,\)"),
        ({**whole, name: np.ones(8, np.int32)}, f"'{name}' holds I32"),
    ):
        save_file(broken, path)
        with pytest.raises(ValueError, match=rf"weights .*w.safetensors: .*{words}"):
            weights.load(path, model)


def test_a_file_that_is_none_is_refused_in_one_sentence(tmp_path):
    model = models.parse(TINY)
    (tmp_path / "text").write_text("hello, this is no such file at all")
    for name in ("text", "nowhere"):
        with pytest.raises(ValueError, match=f"weights .*{name}: "):
            weights.load(tmp_path / name, model)


def test_a_model_without_standard_names_says_so(tmp_path):
    for text in ("mlp", f"{TINY},norm=rms"):
        model = models.parse(text)
        with pytest.raises(ValueError, match=r"model \w+: with these settings its parameters have no standard names"):
            weights.save(tmp_path / "w", drawn(model), model, standard=True)
        assert not (tmp_path / "w").exists()


def test_pytorchs_counters_beside_running_statistics_are_passed_over(tmp_path):
    """A state_dict has one for each batch normalisation."""
    model = models.parse("resnet")
    statistics = {t.name: np.ones(t.shape, np.float32) for t in map(model.graph().tensors.get, model.graph().states)}
    counters = {name.rpartition(".")[0] + ".num_batches_tracked": np.array(7) for name in statistics}
    values = drawn(model) | statistics
    save_file(values | counters, tmp_path / "w.safetensors")
    assert equal(weights.load(tmp_path / "w.safetensors", model), values)


def test_running_statistics_may_be_there_or_not(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "from castile.planner.graph import Graph\n"
        "from castile.planner.op import Init\n"
        "def build(batch=None, dtype='float32'):\n"
        "    g = Graph('mine', dtype)\n"
        "    x = g.input('image', (batch or 4, 5), 'b i')\n"
        "    g.state('mean', (5,), ('i',), Init('zeros'))\n"
        "    g.minimise(g.sum('loss', g.linear('fc', x, features=2)))\n"
        "    return g\n"
    )
    model = models.parse(str(path))
    values = drawn(model)
    for more in ({}, {"mean": np.arange(5, dtype=np.float32)}):
        weights.save(tmp_path / "w", values | more, model)
        assert equal(weights.load(tmp_path / "w", model), values | more)


@settings(max_examples=50, deadline=None)
@given(
    st.sampled_from(["{n}.w", "a{n}.b.w"]),
    st.integers(1, 4),
    st.integers(-2, 1),
    st.booleans(),
    st.tuples(st.integers(1, 4), st.integers(1, 4)),
)
def test_pieces_tile_their_tensor(pattern, of, dim, turned, shape):
    names = StandardNames(tuple(Piece(f"p{part}.{pattern}", "t.{n}", turned, part, of, dim) for part in range(of)))
    params = [f"p{part}.{pattern}".replace("{n}", "12") for part in range(of)]
    found = names.of(params)
    assert found is not None and {tensor for tensor, _ in found.values()} == {"t.11"}
    whole = np.zeros(found[params[0]][1].shape_of(shape), int)
    for _, piece in found.values():
        part = whole[piece.cut(whole.shape)]
        assert piece.oriented(part).shape == shape
        part += 1
    assert (whole == 1).all()


def test_every_parameter_of_gpt_has_one_standard_name():
    for text in (TINY, MODERN):
        model = models.parse(text)
        params = [t.name for t in model.graph().params]
        assert sum(names.of(params) is not None for names in families(model)) == 1


def test_a_folder_of_checkpoints_is_told_how_to_become_a_file(tmp_path):
    with pytest.raises(ValueError, match=f"a folder; `castile checkpoint export {tmp_path} --out FILE` makes a file"):
        weights.load(tmp_path, models.parse("mlp"))
