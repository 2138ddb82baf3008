"""Every Triton form on a GPU against its definition, under the same law as in the interpreter."""

from collections.abc import Callable
from contextlib import suppress

import numpy as np
import pytest

pytest.importorskip("triton")

from castile.kernels.form import Refused
from castile.kernels.table import Table, definitions
from tests.kernel_cases import Case, Draw, cases
from tests.test_kernels import dense, laid_out, outermost, scratch_of, several, sliced, stepped, unwritten
from tests.triton_cases import NAMES, OF_LOGITS, cast, error, plain
from tests.triton_cases_images import is_image, turned
from tests.triton_cases_long import LONG

pytestmark = pytest.mark.gpu
DTYPES = ("float32", "float16", "bfloat16")
Place = Callable[[np.ndarray], np.ndarray]


def spread(got: np.ndarray, want: np.ndarray) -> float:
    """The root of the mean square of the difference; infinities that are the same are none."""
    one, other = got.astype(np.float64), want.astype(np.float64)
    apart = np.subtract(one, other, where=one != other, out=np.zeros_like(one))
    return float(np.sqrt(np.mean(apart**2))) if apart.size else 0.0


def apart(case: Case) -> Place:
    """Every other element of larger arrays, which begins anywhere."""
    return stepped


def together(case: Case) -> Place:
    """Whole arrays."""
    return dense


def innermost(case: Case) -> Place:
    """Images with their channels innermost, and the rest as boxes of larger arrays, which begin anywhere."""
    lay = turned(case, lambda x, order: laid_out(x, order, 0))
    return lambda x: lay(x) if is_image(x, case) else sliced(x)


def classes_first(case: Case) -> Place:
    """All with the last dim outermost in memory, as classes of logits may be."""
    return outermost


class There:
    """An array of the host and its copy on a GPU, which lies as it does: in a larger one if it is part of that."""

    def __init__(self, x: np.ndarray) -> None:
        import cupy

        self.host = x
        self.root = x if x.base is None else x.base
        assert isinstance(self.root, np.ndarray) and self.root.flags.c_contiguous
        self.whole = cupy.asarray(self.root)
        offset = x.__array_interface__["data"][0] - self.root.__array_interface__["data"][0]
        self.array = cupy.ndarray(x.shape, x.dtype, self.whole.data + offset, x.strides)

    def keeps_the_rest(self) -> bool:
        """Whether nothing beside the array has changed there."""
        now = self.whole.get()
        there = np.lib.stride_tricks.as_strided(now.reshape(-1)[self._first :], self.host.shape, self.host.strides)
        there[...] = self.host
        return bool(now.tobytes() == self.root.tobytes())

    @property
    def _first(self) -> int:
        apart = self.host.__array_interface__["data"][0] - self.root.__array_interface__["data"][0]
        return int(apart // self.host.itemsize)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_form_equals_definition_on_a_gpu(name: str, dtype: str) -> None:
    """Each case lies in each way in one of the dtypes; some are added to what is there."""
    ways = (together, apart, classes_first if name in OF_LOGITS else innermost)
    for number, case in enumerate([*cases(name, "float32"), *LONG.get(name, [])]):
        low = cast(name, case, dtype)
        args, params = cast(name, low, "float64")
        with np.errstate(all="ignore"):
            exact = several(definitions()[name](*args, **params))
        rounded = plain(name, low, dtype)
        place = ways[(number + DTYPES.index(dtype)) % 3](low)
        # Nobody adds to numbers of things.
        adds = number % 4 == 1 and all(x.dtype.kind not in "iu" for x in rounded)
        begun = [Draw(x.dtype.name, 1)(*x.shape) if adds else unwritten(x) for x in rounded]
        if adds:
            exact = tuple(x + one.astype(x.dtype) for x, one in zip(exact, begun, strict=True))
            rounded = [(x.astype("float64") + one).astype(x.dtype) for x, one in zip(rounded, begun, strict=True)]
        outs = [There(place(x)) for x in begun]
        given = [There(place(x)) if isinstance(x, np.ndarray) else x for x in low[0]]
        scratch = scratch_of(name, low[0], low[1], adds)
        room = None if scratch is None else There(scratch.copy()).array
        taken = tuple(x.array if isinstance(x, There) else x for x in given)
        Table("triton").bind(name, taken, tuple(x.array for x in outs), low[1], room, adds)()
        for out, near, want in zip(outs, rounded, exact, strict=True):
            words = f"{name} {low[1]} {place.__name__} {'added' * adds}"
            scale = max(1.0, float(np.abs(want).max(initial=0)))
            got = out.array.get()
            assert spread(got, want) <= 2 * spread(near, want) + 4e-6 * scale, words
            # Which of few elements is off by most is luck: over six seeds it was up to 3.5 times as far off.
            assert error(got, want) <= 4 * error(near, want) + 4e-6 * scale, words
            assert not out.root.size or out.keeps_the_rest(), f"{words} wrote beside its result"


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    "spec", ["ik,jk->ij", "ik,kj->ji", "ki,jk->ij", "ki,kj->ij", "bki,jbk->bij", "bisk,bksj->sbij"]
)
def test_every_way_to_a_product_comes_to_the_same_on_a_gpu(spec: str, dtype: str) -> None:
    """Tiles, walks and the library's own, of shapes that tiles do not divide."""
    import cupy

    draw, size = Draw("float32"), {"i": 1000, "j": 776, "k": 1544, "b": 2, "s": 3}
    terms = spec.split("->")[0].split(",")
    low, _ = cast("contract", ((spec, *(draw(*(size[label] for label in term)) for term in terms)), {}), dtype)
    exact = np.einsum(spec, *(x.astype("float32") for x in low[1:]), optimize=True)
    args = (spec, *map(cupy.asarray, low[1:]))
    most = {"float16": 2.0**-10, "bfloat16": 2.0**-7}[dtype] * float(np.abs(exact).max())
    ways = Table("triton").choices("contract", args, (cupy.empty(exact.shape, dtype),), {}, False)
    for way in ways:
        out = cupy.asarray(unwritten(exact.astype(dtype)))
        with suppress(Refused):
            Table("triton").bind("contract", args, (out,), {}, None, False, way)()
            assert error(out.get(), exact) <= most, f"{spec} {way}"
    assert len(ways) > 7
