"""Operators against PyTorch's own samples of the same operators, forward and every gradient, in float64.

tests/opinfo_cases reads the samples; a new operator needs a reader there, or a reason why there is none.
"""

import warnings
from collections import Counter
from collections.abc import Callable
from math import prod

import numpy as np
import pytest

from castile.planner.op import available
from tests.effort import examples
from tests.op_cases import case
from tests.op_laws import passes, relative, targets, whole_pass

torch = pytest.importorskip("torch", reason="PyTorch is not installed: nothing to compare with")
pytest.importorskip("expecttest", reason="expecttest is not installed: PyTorch's samples need it")

from tests.opinfo_cases import Read, Skip, readers, without  # noqa: E402

MOST_SAMPLES = examples(60)
TOLERANCE = 1e-10
SMALLEST = 1e-3


def samples(name: str):
    from torch.testing._internal.common_methods_invocations import op_db

    info = next(info for info in op_db if info.name == readers()[name].torch_name)
    return info, list(info.sample_inputs("cpu", torch.float64, requires_grad=True))


def numpy(tensor, lay_out) -> np.ndarray:
    array = lay_out(tensor.detach()).contiguous().numpy()
    return array if array.dtype.kind == "f" else array.astype(np.int32)


def compare(read: Read, expected) -> None:
    """Forward's first result and all gradients of the operator against PyTorch's."""
    c = case(read.op, *((numpy(t, lay_out), axes) for t, lay_out, axes in read.operands))
    y = tuple(whole_pass(c, "F", c.arrays))
    assert agree(read.result(y[0]), expected.detach().numpy())
    pull = torch.randn_like(expected)
    inputs = [t for t, _, _ in read.operands if t.requires_grad]
    slopes = iter(torch.autograd.grad(expected, inputs, pull))
    wanted = {n: numpy(next(slopes), lay_out) for n, (t, lay_out, _) in enumerate(read.operands) if t.requires_grad}
    dy = _in_our_layout(read, pull.numpy(), y[0].shape)
    for which in set(passes(c)) - {"F"}:
        for n, gradient in zip(targets(c, which), whole_pass(c, which, c.arrays, dy, y), strict=True):
            if n in wanted:
                assert agree(gradient, wanted.pop(n)), f"operand {n}"
    assert not wanted, f"no gradient for operands {sorted(wanted)}"


def agree(a: np.ndarray, b: np.ndarray) -> bool:
    """To rounding; what should be zero (the gradient of a normalised single number) may be rounding itself."""
    largest = max(np.abs(b).max(initial=0), SMALLEST)
    return a.shape == b.shape and bool(np.abs(a - b).max(initial=0) <= TOLERANCE * largest)


def _in_our_layout(read: Read, pull: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The sample's layout undone: where each of our elements went, its gradient comes from."""
    places = read.result(np.arange(prod(shape)).reshape(shape))
    dy = np.empty(prod(shape))
    dy[places.ravel()] = pull.ravel()
    return dy.reshape(shape)


@pytest.mark.parametrize("name", sorted(readers()))
def test_the_operator_agrees_with_torch(name: str, tell: Callable[[str], None]):
    info, found = samples(name)
    cases, reasons = [], Counter()
    for sample in found:
        try:
            cases.append((sample, readers()[name](sample.input, *sample.args, **sample.kwargs)))
        except Skip as reason:
            reasons[str(reason)] += 1
    chosen = cases[:: -(-len(cases) // MOST_SAMPLES)]
    for sample, read in chosen:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected = info(sample.input, *sample.args, **sample.kwargs)
        compare(read, expected)
    if len(chosen) < len(cases):
        reasons[f"one in {len(cases) // len(chosen)} is enough"] = len(cases) - len(chosen)
    skipped = "".join(f"; {count} skipped: {reason}" for reason, count in reasons.most_common())
    tell(f"{name} against PyTorch: {len(chosen)} of {len(found)} samples used{skipped}")
    assert chosen and len(chosen) + reasons.total() == len(found)


def test_every_operator_that_torch_has_is_compared():
    """Or is said to have no counterpart among PyTorch's samples."""
    assert set(available()) == set(readers()) | set(without()) and not set(readers()) & set(without())


def test_sgd_is_torch_sgd():
    from castile.kernels import reference
    from castile.planner.ops.sgd import Sgd

    rng = np.random.default_rng(0)
    for momentum, decay, nesterov in ((0.0, 0.0, False), (0.9, 0.0, False), (0.8, 0.1, True)):
        w = rng.normal(size=(3, 4))
        m, weight = np.zeros_like(w), torch.tensor(w, requires_grad=True)
        theirs = torch.optim.SGD([weight], lr=0.1, momentum=momentum, weight_decay=decay, nesterov=nesterov)
        for _ in range(4):
            g = rng.normal(size=w.shape)
            weight.grad = torch.tensor(g)
            theirs.step()
            w, m = Sgd(momentum, decay, nesterov).forward(reference, w, g, m, np.array(0.1))
            assert relative(w, weight.detach().numpy()) <= 1e-14
