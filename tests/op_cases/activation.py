"""Cases of operators: functions of one array."""

import numpy as np

from castile.planner.op import find
from castile.planner.ops.elu import Elu
from castile.planner.ops.gelu import Gelu
from castile.planner.ops.leaky_relu import LeakyRelu
from castile.planner.ops.scale import Scale
from castile.planner.ops.softplus import Softplus
from tests.op_cases import case, elementwise


def positive(op, rng):
    for shape, axes in (((5,), "b"), ((4, 7), "b d"), ((3, 1, 5, 2), "b c h w")):
        yield case(op, (rng.uniform(0.5, 2, shape), axes))


def cases_relu(rng):
    yield from elementwise(find("relu")(), rng)


def cases_gelu(rng):
    yield from elementwise(Gelu("tanh"), rng)
    yield from elementwise(Gelu("none"), rng)


def cases_leaky_relu(rng):
    yield from elementwise(LeakyRelu(0.2), rng)


def cases_elu(rng):
    yield from elementwise(Elu(1.5), rng)


def cases_scale(rng):
    yield from elementwise(Scale(-3), rng)


def cases_softplus(rng):
    yield from elementwise(Softplus(), rng)
    yield from elementwise(Softplus(2.0, 1.0), rng)


def cases_silu(rng):
    yield from elementwise(find("silu")(), rng)


def cases_sigmoid(rng):
    yield from elementwise(find("sigmoid")(), rng)


def cases_tanh(rng):
    yield from elementwise(find("tanh")(), rng)


def cases_exp(rng):
    yield from elementwise(find("exp")(), rng)


def cases_sin(rng):
    yield from elementwise(find("sin")(), rng)


def cases_cos(rng):
    yield from elementwise(find("cos")(), rng)


def cases_log(rng):
    yield from positive(find("log")(), rng)


def cases_sqrt(rng):
    yield from positive(find("sqrt")(), rng)


def cases_rsqrt(rng):
    yield from positive(find("rsqrt")(), rng)


def cases_square(rng):
    yield from elementwise(find("square")(), rng)


def cases_abs(rng):
    yield from elementwise(find("abs")(), rng)


def cases_neg(rng):
    yield from elementwise(find("neg")(), rng)


def cases_shift(rng):
    yield from elementwise(find("shift")(-0.75), rng)


def cases_reciprocal(rng):
    yield from positive(find("reciprocal")(), rng)


def cases_clamp(rng):
    yield from elementwise(find("clamp")(-0.5, 0.75), rng)
    yield from elementwise(find("clamp")(high=0.25), rng)


def cases_sign(rng):
    yield from elementwise(find("sign")(), rng)


def cases_whole(rng):
    yield from elementwise(find("whole")(), rng)


def cases_real(rng):
    for shape, axes in (((5,), "b"), ((4, 7), "b d"), ((3, 1, 5, 2), "b c h w")):
        yield case(find("real")("float64"), (rng.integers(-9, 9, shape).astype(np.int32), axes))
