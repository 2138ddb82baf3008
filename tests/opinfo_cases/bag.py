"""PyTorch's samples read as operators: bags of embeddings."""

from castile.planner.op import find
from tests.opinfo_cases import Read, Skip, names, refuse, same, torch_name


@torch_name("nn.functional.embedding_bag")
def from_embedding_bag(table, ids, mode="mean", offsets=None, per_sample_weights=None, **kwargs):
    refuse(kwargs, padding_idx=None, max_norm=None, scale_grad_by_freq=False, sparse=False, include_last_offset=False)
    if offsets is not None or mode == "max":
        raise Skip("bags of different sizes, or the largest of a bag")
    operands = [(ids, same, names(ids.ndim)), (table, same, "*v d")]
    weights = [] if per_sample_weights is None else [(per_sample_weights, same, names(ids.ndim))]
    return Read(find("embedding_bag")(mode == "mean"), operands + weights)
