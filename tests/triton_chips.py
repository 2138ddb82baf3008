"""What a compiled kernel may not do: leave out registers by default, or with other Tritons than the named one many; and
ask ptxas for what it gets wrong.
"""

import re

import triton

from castile.kernels.estimates.compiled import Compiled

# With the Triton that castile names no default leaves out any register. Of others these are bytes of stack that ptxas
# may leave where it buys another program with them.
NAMED = triton.__version__.startswith("3.6.")
_TRADED = 32


def trades(made: Compiled) -> bool:
    """Whether what is left out is so little that it is worth the program more that a processor holds for it."""
    return made.stack <= _TRADED and made.held(made.registers + made.stack // 4) < made.held(made.registers)


def spills(made: Compiled) -> bool:
    """Whether a default may not leave out what this does: anything, or with another Triton more than it trades."""
    return made.stack > 0 and (NAMED or not trades(made))


def adds_a_constant_to_pairs(ptx: str) -> bool:
    """Whether ptxas 12.8 may get it wrong: of additions of one constant to pairs of 16 bits all but the first add 0."""
    constants = set(re.findall(r"mov\.b32\s+(%r\d+), -?\d+;", ptx))
    added = re.findall(r"add\.s16x2\s+%r\d+, %r\d+, (%r\d+);", ptx)
    return any(added.count(one) > 1 for one in constants)
