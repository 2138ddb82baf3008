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
