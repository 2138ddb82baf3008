"""Data sheets of the chips for which kernels are compiled, by the kinds of processors that machine files name.

It does not know kernels, nor what share of these figures they attain.
"""

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Chip:
    """One chip; rates are the data sheet's, dense.

    capability   compute capability, times ten, for which kernels are compiled
    processors   its streaming multiprocessors, of so many hertz and bytes of shared memory each
    cache_bytes  of the cache that all of them share
    """

    capability: int
    processors: int
    hertz: float
    shared_bytes: int
    cache_bytes: float
    bytes_per_second: float
    bf16_flops_per_second: float
    tf32_flops_per_second: float
    fp32_flops_per_second: float


A100 = Chip(80, 108, 1.41e9, 166912, 4.0e7, 2.0e12, 3.12e14, 1.56e14, 1.95e13)
H200 = Chip(90, 132, 1.755e9, 232448, 6.0e7, 4.8e12, 9.89e14, 4.94e14, 6.7e13)
B200 = Chip(100, 148, 1.85e9, 232448, 1.26e8, 8.0e12, 2.25e15, 1.1e15, 7.5e13)
# One of each compute capability.
CHIPS = {chip.capability: chip for chip in (A100, H200, B200)}
# An H100 has the memory of the first of its kind.
KINDS = {"a100-sxm4-80gb": A100, "h100-sxm5-80gb": replace(H200, bytes_per_second=3.35e12), "h200-sxm-141gb": H200}
