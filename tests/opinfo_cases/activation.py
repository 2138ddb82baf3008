"""PyTorch's samples read as operators: functions of one array."""

from castile.planner.op import find
from castile.planner.ops.elu import Elu
from castile.planner.ops.gelu import Gelu
from castile.planner.ops.leaky_relu import LeakyRelu
from castile.planner.ops.softplus import Softplus
from tests.opinfo_cases import Read, names, same, torch_name

WITHOUT = {
    "scale": "a product with a number",
    "shift": "a sum with a number",
    "clamp": "samples have arrays for bounds",
    "masked": "a mask of numbers, and zeros where it is none: tests/test_ops has its gradients",
    "compare": "numbers where a relation holds, which have no gradient",
    "real": "whole numbers, of which there are no gradients",
    "safe_softmax": "the softmax but for rows that are hidden whole",
    "whole": "floating-point numbers without what is behind the point",
    "sign": "samples ask for a gradient, which is none here",
}


def one(op, x):
    return Read(op, [(x, same, names(x.ndim))])


@torch_name("nn.functional.relu")
def from_relu(x, inplace=False):
    return one(find("relu")(), x)


@torch_name("nn.functional.gelu")
def from_gelu(x, approximate="none"):
    return one(Gelu(approximate), x)


@torch_name("nn.functional.leaky_relu")
def from_leaky_relu(x, negative_slope=0.01, inplace=False):
    return one(LeakyRelu(negative_slope), x)


@torch_name("nn.functional.elu")
def from_elu(x, alpha=1.0, inplace=False):
    return one(Elu(alpha), x)


@torch_name("nn.functional.softplus")
def from_softplus(x, beta=1, threshold=20):
    return one(Softplus(beta, threshold), x)


@torch_name("nn.functional.silu")
def from_silu(x, inplace=False):
    return one(find("silu")(), x)


@torch_name("sigmoid")
def from_sigmoid(x):
    return one(find("sigmoid")(), x)


@torch_name("tanh")
def from_tanh(x):
    return one(find("tanh")(), x)


@torch_name("sin")
def from_sin(x):
    return one(find("sin")(), x)


@torch_name("cos")
def from_cos(x):
    return one(find("cos")(), x)


@torch_name("reciprocal")
def from_reciprocal(x):
    return one(find("reciprocal")(), x)


@torch_name("exp")
def from_exp(x):
    return one(find("exp")(), x)


@torch_name("log")
def from_log(x):
    return one(find("log")(), x)


@torch_name("sqrt")
def from_sqrt(x):
    return one(find("sqrt")(), x)


@torch_name("rsqrt")
def from_rsqrt(x):
    return one(find("rsqrt")(), x)


@torch_name("square")
def from_square(x):
    return one(find("square")(), x)


@torch_name("abs")
def from_abs(x):
    return one(find("abs")(), x)


@torch_name("neg")
def from_neg(x):
    return one(find("neg")(), x)
