"""The GPU benchmark's own side on a host: the ways there are for each case, then small cases as if on a GPU.

Run by tests/test_gpu_benchmark.py in a process of its own, with tests/numpy_as_cupy for CuPy and TRITON_INTERPRET=1.
"""

import json
from unittest import mock

from benchmarks.gpu import cases, ours
from castile.kernels import tuning
from castile.kernels.choice import call_of
from castile.kernels.table import Table
from tests.effort import rare
from tests.triton_arrays import laid
from tests.triton_cases import plan

SMALL = {
    "products": [
        *(cases.Product(32, 16, 24, layout) for layout in ("tn", *rare("nt", "nn"))),
        cases.Product(32, 16, 24, "nt", line="s, b -> s + b"),
    ],
    "attentions": [cases.Attention(1, 2, 1, 32, 16, True, backward) for backward in (False, True)],
    "convolutions": [
        cases.Convolution(1, 4, 6, 5, 3, 1, which, innermost=innermost)
        for innermost, which in (
            (True, "forward"), (False, "input"), (True, "weight"),
            *rare((False, "forward"), (True, "input"), (False, "weight")),
        )
    ],
    "losses": [cases.Loss(6, 40, outermost) for outermost in (False, True)],
    "streams": [cases.Stream("gelu", ((4, 32),), (("approximate", "tanh"),)), cases.Stream("softmax", ((4, 32),))],
}


class Update(cases.Update):
    """Of few small parameters."""

    shapes = ((6, 5), (7,))


def ways() -> None:
    """Print how many ways there are to run each call of each case at its full size, and of those how many in Triton."""
    for kind in cases.KERNELS:
        for case in getattr(cases, kind)():
            for call in ours.calls(case):
                found = tuning.choices(Table("triton"), call.named)
                known = call_of(call.named)
                outs, args = (tuple(map(laid, xs)) for xs in (known.outs, known.args))
                made = plan(call.kernel, outs, (args, call.params))
                num = {"ways": len(found), "settings": len(made.settings) if made else 0}
                print(json.dumps({"call": f"{case.name}: {call.kernel}"} | num))


if __name__ == "__main__":
    ways()
    small = {kind: (lambda found=found: found) for kind, found in (SMALL | {"updates": [Update()]}).items()}
    with mock.patch.multiple(cases, **small):
        names = [case.name for kind in cases.KERNELS for case in cases.listed(kind)]
        for errand in ("default", "tuned"):
            print(json.dumps({"errand": errand}))
            ours.main(errand, "", names)
