"""PyTorch's samples read as operators: activation."""

from castile.planner.op import find
from castile.planner.ops.gelu import Gelu
from tests.opinfo_cases import Read, names, same, torch_name


@torch_name("nn.functional.relu")
def from_relu(x, inplace=False):
    return Read(find("relu")(), [(x, same, names(x.ndim))])


@torch_name("nn.functional.gelu")
def from_gelu(x, approximate="none"):
    return Read(Gelu(approximate), [(x, same, names(x.ndim))])
