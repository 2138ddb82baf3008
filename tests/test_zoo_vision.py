"""Networks for images: published numbers of parameters and products, shapes of layers; small ones learn."""

from math import prod

import numpy as np
import pytest

from castile.launch import data, models
from castile.launch.__main__ import main
from castile.planner.families.updates import Updates
from castile.planner.graph import Graph
from castile.planner.ops.sgd import Sgd
from castile.planner.strategy import Strategy
from castile.runtime import machine
from tests.data_files import everything
from tests.strategies import regular
from tests.test_models import values
from tests.training import train

VISION = ("lenet", "alexnet", "vgg", "inception", "resnext", "wide_resnet", "vit")


def num_params(graph: Graph) -> int:
    return sum(prod(t.shape) for t in graph.params)


# The same numbers from the layers that the papers and torchvision state.


def dense(inputs: int, *features: int) -> int:
    """Dense layers with biases, one after another."""
    widths = (inputs, *features)
    return sum(i * o + o for i, o in zip(widths, features))


def conv(inputs: int, outputs: int, *kernel: int) -> int:
    """A convolution with bias."""
    return inputs * outputs * prod(kernel) + outputs


def normal(inputs: int, outputs: int, *kernel: int, groups: int = 1) -> int:
    """A convolution without bias and a normalisation: a scale and a shift for each channel."""
    return inputs // groups * outputs * prod(kernel) + 2 * outputs


def lenet() -> int:
    return conv(1, 6, 5, 5) + conv(6, 16, 5, 5) + dense(16 * 5 * 5, 120, 84, 10)


def alexnet() -> int:
    maps = conv(3, 64, 11, 11) + conv(64, 192, 5, 5) + conv(192, 384, 3, 3) + conv(384, 256, 3, 3)
    return maps + conv(256, 256, 3, 3) + dense(256 * 6 * 6, 4096, 4096, 1000)


def vgg(*stages: int) -> int:
    total, inputs = 0, 3
    for count, channels in zip(stages, (64, 128, 256, 512, 512), strict=True):
        total += conv(inputs, channels, 3, 3) + (count - 1) * conv(channels, channels, 3, 3)
        inputs = channels
    return total + dense(512 * 7 * 7, 4096, 4096, 1000)


def inception() -> int:
    stem = normal(3, 32, 3, 3) + normal(32, 32, 3, 3) + normal(32, 64, 3, 3) + normal(64, 80, 1) + normal(80, 192, 3, 3)
    large = sum(inception_large(i, pooled) for i, pooled in ((192, 32), (256, 64), (288, 64)))
    down = normal(288, 384, 3, 3) + normal(288, 64, 1) + normal(64, 96, 3, 3) + normal(96, 96, 3, 3)
    middle = sum(inception_middle(c) for c in (128, 160, 160, 192))
    down += 2 * normal(768, 192, 1) + normal(192, 320, 3, 3) + 2 * normal(192, 192, 7) + normal(192, 192, 3, 3)
    return stem + large + middle + down + inception_small(1280) + inception_small(2048) + dense(2048, 1000)


def inception_large(i: int, pooled: int) -> int:
    five = normal(i, 48, 1) + normal(48, 64, 5, 5)
    three = normal(i, 64, 1) + normal(64, 96, 3, 3) + normal(96, 96, 3, 3)
    return normal(i, 64, 1) + five + three + normal(i, pooled, 1)


def inception_middle(c: int) -> int:
    seven = normal(768, c, 1) + normal(c, c, 7) + normal(c, 192, 7)
    double = normal(768, c, 1) + 3 * normal(c, c, 7) + normal(c, 192, 7)
    return normal(768, 192, 1) + seven + double + normal(768, 192, 1)


def inception_small(i: int) -> int:
    three = normal(i, 384, 1) + 2 * normal(384, 384, 3)
    double = normal(i, 448, 1) + normal(448, 384, 3, 3) + 2 * normal(384, 384, 3)
    return normal(i, 320, 1) + three + double + normal(i, 192, 1)


def second_classifier() -> int:
    return normal(768, 128, 1) + normal(128, 768, 5, 5) + dense(768, 1000)


def bottlenecks(stages: tuple[int, ...], inner: int, groups: int = 1) -> int:
    total, i = normal(3, 64, 7, 7), 64
    for stage, count in enumerate(stages):
        c, o = inner * 2**stage, 256 * 2**stage
        beside = normal(c, c, 3, 3, groups=groups) + normal(c, o, 1)
        total += normal(i, o, 1) + normal(i, c, 1) + beside + (count - 1) * (normal(o, c, 1) + beside)
        i = o
    return total + dense(i, 1000)


def vit(layers: int, width: int, patch: int) -> int:
    tokens = conv(3, width, patch, patch) + width + ((224 // patch) ** 2 + 1) * width
    # two normalisations; queries, keys, values and what is made of them; two dense layers
    block = 4 * width + 4 * dense(width, width) + dense(width, 4 * width, width)
    return tokens + layers * block + 2 * width + dense(width, 1000)


@pytest.mark.parametrize(
    ("text", "published", "by_hand"),
    [
        ("lenet", 61_706, lenet()),
        ("alexnet", 61_100_840, alexnet()),
        ("alexnet:size=229", 61_100_840, alexnet()),
        ("vgg:depth=11", 132_863_336, vgg(1, 1, 2, 2, 2)),
        ("vgg:depth=13", 133_047_848, vgg(2, 2, 2, 2, 2)),
        ("vgg", 138_357_544, vgg(2, 2, 3, 3, 3)),
        ("vgg:depth=19", 143_667_240, vgg(2, 2, 4, 4, 4)),
        ("inception", 23_834_568, inception()),
        ("inception:aux=true", 27_161_264, inception() + second_classifier()),
        ("resnext", 25_028_904, bottlenecks((3, 4, 6, 3), 128, 32)),
        ("resnext:depth=101,group_width=8", 88_791_336, bottlenecks((3, 4, 23, 3), 256, 32)),
        ("wide_resnet", 68_883_240, bottlenecks((3, 4, 6, 3), 128)),
        ("wide_resnet:depth=101", 126_886_696, bottlenecks((3, 4, 23, 3), 128)),
        ("vit", 86_567_656, vit(12, 768, 16)),
        ("vit:form=b32", 88_224_232, vit(12, 768, 32)),
        ("vit:form=l16", 304_326_632, vit(24, 1024, 16)),
        ("vit:form=l32", 306_535_400, vit(24, 1024, 32)),
        ("vit:form=h14", 632_045_800, vit(32, 1280, 14)),
    ],
)
def test_the_published_number_of_parameters(text: str, published: int, by_hand: int) -> None:
    assert num_params(models.parse(text).graph(2)) == published == by_hand


@pytest.mark.parametrize(
    ("text", "billions"),
    [
        ("alexnet", 0.714),
        ("vgg:depth=11", 7.609),
        ("vgg:depth=13", 11.308),
        ("vgg", 15.470),
        ("vgg:depth=19", 19.632),
        ("inception", 5.713),
        ("resnext", 4.230),
        ("resnext:depth=101,group_width=8", 16.414),
        ("wide_resnet", 11.398),
        ("wide_resnet:depth=101", 22.753),
        ("vit", 17.564),
        ("vit:form=b32", 4.409),
        ("vit:form=l16", 61.555),
        ("vit:form=l32", 15.378),
        ("vit:form=h14", 167.295),
    ],
)
def test_products_of_an_image_are_as_many_as_torchvisions(text: str, billions: float) -> None:
    """torchvision states them with its weights: multiplications of convolutions, dense layers and attention."""
    nodes = [n for n in models.parse(text).graph(1).nodes.values() if n.op.name in ("conv2d", "linear", "attention")]
    assert round(sum(n.op.flops("F", n.whole()) for n in nodes) / 2e9, 3) == billions


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("lenet", {"conv1": (6, 28, 28), "pool2": (16, 5, 5), "fc3": (10,)}),
        ("alexnet", {"features.0": (64, 55, 55), "features.12": (256, 6, 6), "classifier.6": (1000,)}),
        ("vgg", {"features.28": (512, 14, 14), "features.30": (512, 7, 7), "classifier.6": (1000,)}),
        (
            "inception",
            {
                "maxpool2": (192, 35, 35),
                "Mixed_5b": (256, 35, 35),
                "Mixed_5d": (288, 35, 35),
                "Mixed_6a": (768, 17, 17),
                "Mixed_6e": (768, 17, 17),
                "Mixed_7a": (1280, 8, 8),
                "Mixed_7c": (2048, 8, 8),
                "fc": (1000,),
            },
        ),
        ("resnext", {"maxpool": (64, 56, 56), "layer1.0.bn2": (128, 56, 56), "layer4.2.relu": (2048, 7, 7)}),
        ("wide_resnet", {"layer1.0.bn2": (128, 56, 56), "layer4.0.bn2": (1024, 7, 7), "layer4.2.relu": (2048, 7, 7)}),
        ("vit", {"conv_proj": (768, 14, 14), "encoder.embed": (197, 768), "heads.head": (1000,)}),
    ],
)
def test_shapes_of_layers(name: str, shapes: dict[str, tuple[int, ...]]) -> None:
    graph = models.parse(name).graph(2)
    assert {n: graph.tensors[n].shape[1:] for n in shapes} == shapes


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("alexnet", {"features.10.weight": (256, 256, 3, 3), "classifier.1.weight": (4096, 9216)}),
        ("vgg", {"features.28.bias": (512,), "classifier.0.weight": (4096, 25088), "classifier.3.bias": (4096,)}),
        (
            "inception:aux=true",
            {
                "Conv2d_2b_3x3.conv.weight": (64, 32, 3, 3),
                "Mixed_5c.branch5x5_2.conv.weight": (64, 48, 5, 5),
                "Mixed_6c.branch7x7_2.conv.weight": (160, 160, 1, 7),
                "Mixed_6c.branch7x7_3.conv.weight": (192, 160, 7, 1),
                "Mixed_6c.branch7x7dbl_2.conv.weight": (160, 160, 7, 1),
                "Mixed_7a.branch7x7x3_4.conv.weight": (192, 192, 3, 3),
                "Mixed_7b.branch3x3dbl_3b.conv.weight": (384, 384, 3, 1),
                "Mixed_7c.branch_pool.bn.bias": (192,),
                "AuxLogits.conv1.conv.weight": (768, 128, 5, 5),
            },
        ),
        ("resnext", {"layer1.0.conv2.weight": (128, 4, 3, 3), "layer2.0.downsample.0.weight": (512, 256, 1, 1)}),
        ("wide_resnet", {"layer1.0.conv2.weight": (128, 128, 3, 3), "layer4.2.bn3.weight": (2048,)}),
        ("vit", {"encoder.layers.encoder_layer_11.mlp.3.weight": (768, 3072), "encoder.pos_embedding": (197, 768)}),
    ],
)
def test_names_and_shapes_of_weights_are_torchvisions(name: str, params: dict[str, tuple[int, ...]]) -> None:
    found = {t.name: t.shape for t in models.parse(name).graph(2).params}
    assert {n: found[n] for n in params} == params


@pytest.mark.parametrize("name", VISION)
def test_a_classifier_takes_images_of_any_number_of_channels_and_classes(name: str) -> None:
    graph = models.parse(f"{name}:channels=2,classes=7").graph(3)
    assert graph.tensors["image"].shape[:2] == (3, 2) and graph.tensors[graph.outputs[0]].shape == (3, 7)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("lenet:size=11", "size of at least 12, got 11"),
        ("alexnet:size=62", "size of at least 63, got 62"),
        ("alexnet:dropout=1", "rate should be at least 0 and below 1"),
        ("vgg:depth=12", "depth should be one of 11, 13, 16, 19, got 12"),
        ("vgg:size=31", "size of at least 32, got 31"),
        ("inception:size=74", "size of at least 75, got 74"),
        ("inception:blocks=5", "blocks should be at most 4, got 5"),
        ("resnext:depth=18", "model resnext: depth should be one of 50, 101, got 18"),
        ("wide_resnet:depth=34", "model wide_resnet: depth should be one of 50, 101, got 34"),
        ("vit:form=b8", "form should be one of b16, b32, l16, l32, h14, got 'b8'"),
        ("vit:patch=15", "size 224 should be a multiple of patch, 15"),
        ("vit:heads=7", "width 768 should be a multiple of heads, 7"),
    ],
)
def test_settings_that_do_not_fit_are_refused(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        models.parse(text).graph(2)


@pytest.mark.parametrize("text", ["lenet:size=12", "alexnet:size=63", "vgg:size=32", "inception:size=75,aux=true"])
def test_the_smallest_image_leaves_something(text: str) -> None:
    assert models.parse(text).graph(2).tensors["loss"].shape == ()


@pytest.mark.parametrize("name", ["alexnet", "vgg", "inception"])
def test_dropout_is_of_training_alone_and_may_be_left_out(name: str) -> None:
    def count(settings: str, training: bool) -> int:
        graph = models.parse(f"{name}{settings}").graph(2, training=training)
        return sum(node.op.name == "dropout" for node in graph.nodes.values())

    assert count("", True) == (1 if name == "inception" else 2)
    assert count("", False) == count(":dropout=0", True) == 0


def test_the_second_classifier_weighs_less_and_stays_for_evaluation() -> None:
    model = models.parse("inception:size=75,width=2,blocks=1,classes=5,aux=true")
    training, evaluation = model.graph(4), model.graph(4, training=False)
    assert {t.name for t in training.params} == {t.name for t in evaluation.params}
    assert training.outputs == evaluation.outputs == ["fc"]
    assert training.nodes["AuxLogits.weighed"].op == evaluation.nodes["AuxLogits.weighed"].op
    assert dict(training.nodes["AuxLogits.weighed"].op.settings)["factor"] == 0.4


def test_convolutions_have_biases_where_they_are_not_normalised() -> None:
    normal, plain = (models.parse(f"inception:norm={word}").graph(2) for word in ("true", "false"))
    scales = [t for t in normal.params if t.name.endswith(".bn.weight")]
    assert len(scales) == 94 and num_params(plain) == num_params(normal) - sum(prod(t.shape) for t in scales)
    assert not plain.states and not any(n.op.name.startswith("batch_") for n in plain.nodes.values())


@pytest.mark.parametrize(("form", "heads"), {"b16": 12, "b32": 12, "l16": 16, "l32": 16, "h14": 16}.items())
def test_heads_of_transformers_are_torchvisions(form: str, heads: int) -> None:
    """Whatever these are, parameters are as many."""
    graph = models.parse(f"vit:form={form},layers=1").graph(1)
    assert graph.nodes["encoder.layers.encoder_layer_0.self_attention"].op.h == heads


def test_the_class_token_is_the_first_of_each_sample() -> None:
    graph = models.parse("vit:size=8,patch=4,layers=1,width=4,heads=2,hidden=8,classes=3").graph(2)
    tokens = graph.nodes["tokens"]
    assert tokens.inputs == ("class_token.added", "patches")
    assert graph.tensors["tokens"].shape == (2, 1 + 4, 4)


# Learning.


SMALL = {
    "lenet": ("lenet:size=12,classes=4", 0.05),
    "alexnet": ("alexnet:size=63,width=8,hidden=32,classes=4,dropout=0", 0.05),
    "vgg": ("vgg:depth=11,size=32,width=8,hidden=32,classes=4,dropout=0", 0.05),
    "inception": ("inception:size=75,width=4,blocks=1,classes=4,aux=true,dropout=0.1", 0.02),
    "resnext": ("resnext:size=32,width=8,groups=4,group_width=2,blocks=1,classes=4", 0.05),
    "wide_resnet": ("wide_resnet:size=32,width=4,blocks=1,classes=4", 0.05),
    "vit": ("vit:size=16,patch=4,layers=2,width=16,heads=4,hidden=32,classes=4", 0.1),
}


@pytest.mark.parametrize("name", VISION)
def test_a_small_one_learns_from_a_batch_cut_in_two(name: str) -> None:
    text, rate = SMALL[name]
    model, on = models.parse(text), machine.local(2)
    graph = model.graph(8)
    _, channels, size, _ = graph.tensors["image"].shape
    images = data.load(f"noise:channels={channels},size={size},classes=4,samples=400", 0)
    begin = values(graph)
    params = {t.name: begin[t.name] for t in graph.params}
    plan = Strategy({node.name: regular(node, "first", (0, 1)) for node in graph.nodes.values()})
    batches = [images.batch(0, 8)] * 12
    losses = train(graph, plan, on, batches, params, rate, updates=Updates(Sgd(momentum=0.9))).losses
    assert np.isfinite(losses).all() and losses[-2:].mean() < 0.9 * losses[0]


# Planning.


def test_a_network_of_full_size_is_planned_without_its_arrays(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "alexnet", "--machine", "dgx-h100:nodes=1", "--budget", "5"]) == 0
    assert "256 samples a step" in capsys.readouterr().out


# Images of noise.


def test_noise_has_as_many_of_each_class_and_no_image_twice() -> None:
    d = data.load("noise:size=5,channels=2,classes=7,samples=700", 3)
    train, held_out = everything(d.train), everything(d.held_out)
    images = np.concatenate([train["image"], held_out["image"]])
    labels = np.concatenate([train["label"], held_out["label"]])
    assert images.shape == (700, 2, 5, 5) and len(np.unique(images.reshape(700, -1), axis=0)) == 700
    assert np.bincount(labels).tolist() == [100] * 7
    assert abs(images.mean()) < 0.2 and abs(images.std() - 1) < 0.2


def test_noise_of_a_class_is_one_piece_that_moves() -> None:
    d = data.load("noise:size=4,channels=1,classes=2,samples=20", 0)
    line = np.full(16 + 20, np.nan, np.float32)
    samples = {
        **dict(zip(d.train.rows, everything(d.train)["image"])),
        **dict(zip(d.held_out.rows, everything(d.held_out)["image"])),
    }
    for place, image in samples.items():
        seen = line[place : place + 16]
        assert (np.isnan(seen) | (seen == image.ravel())).all()
        line[place : place + 16] = image.ravel()
    assert np.isfinite(line[:-1]).all()


def test_noise_follows_the_seed() -> None:
    one, same, other = (data.load("noise:size=3,classes=2,samples=9", seed).batch(0, 4)["image"] for seed in (0, 0, 1))
    assert np.array_equal(one, same) and not np.array_equal(one, other)


@pytest.mark.parametrize(
    "settings", ["size=0", "channels=0", "classes=0", "classes=5,samples=4", "samples=1,classes=1"]
)
def test_noise_that_is_nothing_is_refused(settings: str) -> None:
    with pytest.raises(ValueError, match=r"data set noise: .*should be at least"):
        data.load(f"noise:{settings}", 0)
