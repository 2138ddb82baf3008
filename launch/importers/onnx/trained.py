"""What an imported network is trained on: a loss of its first output, where a file does not bring one of its own.

It does not know how the network came about.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from castile.launch.importers.onnx import shaping, views
from castile.planner.graph import Graph
from castile.planner.op import Tensor
from castile.runtime.strict import suggestion

LABEL, TARGET = "label", "target"


def cross_entropy(g: Graph, output: Tensor, weights: Sequence[float] = ()) -> Tensor:
    """Of logits [b, classes], [b, s, classes], or of images [b, classes, h, w, ...], and `label` without the classes,
    whole numbers; dims of one at the end are none.

    weights   of each class, none where all count alike
    """
    shape = output.shape
    if len(shape) < 2:
        raise ValueError(f"its output {output.name!r} of shape {shape} has no classes: leave out loss=cross_entropy")
    while len(shape) > 2 and shape[-1] == 1:
        shape = shape[:-1]
    logits = shaping.reshaped(g, f"{output.name}.logits", output, shape)
    logits = classes_last(g, f"{output.name}.last", logits) if len(shape) > 3 else logits
    label = g.input(LABEL, logits.shape[:-1], " ".join(logits.axes[:-1]), "int32")
    if weights:
        return g.weighted_cross_entropy("loss", logits, label, weights)
    return g.cross_entropy("loss", logits, label)


def classes_last(g: Graph, name: str, logits: Tensor) -> Tensor:
    """Logits [b, classes, ...] as [b, ..., classes]."""
    return shaping.permuted(g, name, logits, (0, *range(2, len(logits.shape)), 1))


def judged_by(g: Graph, loss: Tensor) -> Tensor | None:
    """The logits that a file's own loss is the cross-entropy of; None for other losses."""
    node = g.nodes.get(loss.name)
    if node is None or node.op.name != "cross_entropy":
        return None
    return views.view(g, g.tensors[node.inputs[0]]).source


def mse(g: Graph, output: Tensor) -> Tensor:
    """Of numbers and `target`, of the same shape."""
    return g.mse("loss", output, g.input(TARGET, output.shape, " ".join(output.axes)))


def bce(g: Graph, output: Tensor) -> Tensor:
    """Of logits and `target`, numbers from 0 to 1 of the same shape."""
    return g.bce("loss", output, g.input(TARGET, output.shape, " ".join(output.axes)))


LOSSES: dict[str, Callable[[Graph, Tensor], Tensor]] = {"cross_entropy": cross_entropy, "mse": mse, "bce": bce}
# The last operator of a file that turns what a loss takes into what people read.
ENDS = {"cross_entropy": ("Softmax", "LogSoftmax"), "bce": ("Sigmoid",), "mse": ()}


def check(loss: str, who: str) -> None:
    """Raises ValueError for a loss that there is not."""
    if loss not in LOSSES:
        near = suggestion(loss, list(LOSSES))
        raise ValueError(f"{who}: there is no loss {loss!r}{near}; there are {', '.join(LOSSES)}")


def loss_of(g: Graph, loss: str, output: Tensor, weights: str, who: str) -> Tensor:
    """The loss of that name; `weights` are those of classes as the setting `class_weights` has them, "" for none.

    Raises ValueError for weights that are not of the classes, a loss without such, and an output that it cannot take.
    """
    if not weights:
        try:
            return LOSSES[loss](g, output)
        except ValueError as error:
            raise ValueError(f"{who}: {error}") from error
    if loss != "cross_entropy":
        raise ValueError(f"{who}: class_weights={weights} means nothing for loss={loss}, which knows no classes")
    try:
        return cross_entropy(g, output, [float(number) for number in weights.split("+")])
    except ValueError as error:
        raise ValueError(f"{who}: class_weights={weights}: give a number above 0 for each class: {error}") from error


def default(shape: tuple[int, ...]) -> str:
    """The loss of an output of that shape where the user names none: of classes, or else of numbers."""
    is_classes = len(shape) > 1 and shape[1] > 1 and prod(shape[2:]) == 1
    return "cross_entropy" if is_classes else "mse"


def pruned(g: Graph, outputs: list[str]) -> None:
    """Leave out what neither the outputs nor the loss need."""
    needed = {*outputs, g.loss}
    for node in reversed(g.nodes.values()):
        if needed.intersection(node.outputs):
            needed.update(node.inputs, node.outputs)
    needed.update(g.inputs[-1:])
    for update in g.updates.values():
        if needed.intersection(update.inputs[1:]):
            needed.update(update.inputs)
    g.nodes = {name: node for name, node in g.nodes.items() if needed.intersection(node.outputs)}
    g.updates = {name: node for name, node in g.updates.items() if name in needed}
    g.tensors = {name: tensor for name, tensor in g.tensors.items() if name in needed}
    g.inputs, g.scalars, g.states = ([n for n in names if n in needed] for names in (g.inputs, g.scalars, g.states))
    g.outputs = outputs
