"""PyTorch's samples read as operators: loss."""

from castile.planner.op import find
from tests.opinfo_cases import Read, Skip, names, refuse, same, torch_name


@torch_name("nn.functional.cross_entropy")
def from_cross_entropy(logits, labels, **kwargs):
    refuse(kwargs, weight=None, label_smoothing=0.0, reduction="mean")
    if labels.is_floating_point():
        raise Skip("labels are probabilities")
    if (labels == kwargs.get("ignore_index", -100)).any():
        raise Skip("some labels are ignored")

    def last(t):
        return t.movedim(1, -1) if t.ndim > 1 else t

    leading = names(logits.ndim - 1)
    return Read(find("cross_entropy")(), [(logits, last, leading + " v"), (labels, same, leading)])


@torch_name("nn.functional.mse_loss")
def from_mse(x, target, reduction="mean"):
    refuse({"reduction": reduction}, reduction="mean")
    axes = names(x.ndim)
    return Read(find("mse")(), [(x, same, axes), (target, same, axes)])


@torch_name("nn.functional.binary_cross_entropy_with_logits")
def from_bce(logits, target, **kwargs):
    refuse(kwargs, weight=None, pos_weight=None, reduction="mean")
    if target.shape != logits.shape:
        raise Skip("targets broadcast")
    axes = names(logits.ndim)
    return Read(find("bce")(), [(logits, same, axes), (target, same, axes)])
