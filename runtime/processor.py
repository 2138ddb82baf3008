"""Processors: what one attains, and what it can hold.

It does not know what joins several of them, nor what kernels compute.
"""

from __future__ import annotations

import math
from collections.abc import Collection

import msgspec

NARROW = ("float16", "bfloat16")
DTYPES = ("float32", "float64", *NARROW)
# The fields that say how many operations are done in a second.
RATES = (
    "flops_per_second", "float16_flops_per_second", "bfloat16_flops_per_second", "float64_flops_per_second",
)  # fmt: skip
# The fields that say of kernels which share of a rate they attain; of some where what they touch lies so in memory.
TRAITS = ("unaligned", "planar")
SHARES = ("attained", *TRAITS)
# The fields that say what each takes of what is counted beside operations and bytes.
EACH = ("row_seconds", "look_seconds")


class Processor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One processor: attainable rates in per-second, sizes in bytes; reserved_bytes are for context and libraries.

    flops_per_second holds for float32, and for other types that are given no rate; bfloat16 without one has float16's.
    It is what large products attain; attained says of kernels by name what share of it they do, where that is less. Of
    numbers of 16 bits unaligned says what share of that they do where rows do not begin where vectors do, and planar
    where the channels of images lie apart (`CostKey.traits`).
    row_seconds is what a row of an image takes to be brought to where windows slide over it, beside the sums in these.
    look_seconds is what a number takes that is found by looking at a short row again and again, beside its operations.
    overlaps says whether kernels compute while they read and write, so that the longer of the two counts, and not both.
    peaks are what its data sheet promises, by dtype: steps are told to need a share of them, and nothing is priced.
    """

    kind: str
    flops_per_second: float
    bytes_per_second: float
    memory_bytes: int
    reserved_bytes: int = 0
    task_overhead_seconds: float = 0.0
    float16_flops_per_second: float | None = None
    float64_flops_per_second: float | None = None
    bfloat16_flops_per_second: float | None = None
    attained: tuple[tuple[str, float], ...] = ()
    unaligned: tuple[tuple[str, float], ...] = ()
    planar: tuple[tuple[str, float], ...] = ()
    peaks: tuple[tuple[str, float], ...] = ()
    row_seconds: float = 0.0
    look_seconds: float = 0.0
    overlaps: bool = True

    def flops_rate(self, dtype: str, kernel: str = "", traits: Collection[str] = ()) -> float:
        """Floating point operations per second on operands of a dtype (a numpy name, or "bfloat16"), of a kernel, or of
        products where none is named; traits: those of `TRAITS` that what it touches has.
        """
        rates = {
            "float16": self.float16_flops_per_second,
            "bfloat16": self.bfloat16_flops_per_second or self.float16_flops_per_second,
            "float64": self.float64_flops_per_second,
        }
        share = _share(self.attained, kernel)
        for trait in traits if dtype in NARROW else ():
            share *= _share(getattr(self, trait), kernel)
        return share * (rates.get(dtype) or self.flops_per_second)

    def peak_rate(self, dtype: str) -> float | None:
        """Operations a second that its data sheet promises on operands of a dtype; None where nothing is said of it."""
        return dict(self.peaks).get(dtype)

    @property
    def capacity_bytes(self) -> int:
        """What a plan may use of its memory."""
        return self.memory_bytes - self.reserved_bytes

    @property
    def has_traits(self) -> bool:
        """Whether it matters how what kernels touch lies in memory."""
        return any(getattr(self, trait) for trait in TRAITS)

    def check(self, who: str) -> None:
        """Raises ValueError, in a sentence that begins with `who`, where figures cannot be those of a processor."""
        for field in (*RATES, "bytes_per_second"):
            value = getattr(self, field)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise ValueError(f"{who}.{field} must be above 0 and finite, not {value}")
        for field in ("task_overhead_seconds", *EACH):
            value = getattr(self, field)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{who}.{field} must be at least 0 and finite, not {value}")
        if self.memory_bytes < 1:
            raise ValueError(f"{who}.memory_bytes must be at least 1, not {self.memory_bytes}")
        if not 0 <= self.reserved_bytes < self.memory_bytes:
            raise ValueError(f"{who}.reserved_bytes must be at least 0 and below memory_bytes "
                             f"{self.memory_bytes}, not {self.reserved_bytes}")  # fmt: skip
        for field in SHARES:
            for kernel, share in getattr(self, field):
                if not 0 < share <= 1:
                    raise ValueError(f"{who}.{field}: a share of {kernel!r} must be above 0 and at most 1, not {share}")
        for dtype, peak in self.peaks:
            if dtype not in DTYPES:
                raise ValueError(f"{who}.peaks: no dtype {dtype!r}; there are {', '.join(DTYPES)}")
            if not self.flops_rate(dtype) <= peak < math.inf:
                raise ValueError(
                    f"{who}.peaks: {dtype!r} must be finite and no less than the {self.flops_rate(dtype):g} that "
                    f"products attain, not {peak}"
                )


def _share(shares: tuple[tuple[str, float], ...], kernel: str) -> float:
    return next((share for name, share in shares if name == kernel), 1.0)
