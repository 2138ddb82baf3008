"""PyTorch's samples read as operators: embedding."""

from castile.planner.op import find
from tests.opinfo_cases import Read, names, refuse, same, torch_name


@torch_name("nn.functional.embedding")
def from_embedding(table, ids, **kwargs):
    harmless = {"padding_idx": None, "max_norm": None, "scale_grad_by_freq": False, "sparse": False}
    refuse(kwargs, **harmless)
    return Read(find("embedding")(), [(ids, same, names(ids.ndim)), (table, same, "*v d")])
