"""Definition of dropout in plain NumPy."""

import numpy as np

_MASK = np.uint64(0xFFFFFFFF)
_FACTORS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_STEPS = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)


def dropout(
    x: np.ndarray, noise: np.ndarray, *, rate: float, salt: int, offset: tuple[int, ...], whole: tuple[int, ...]
) -> np.ndarray:
    """Dropout (Srivastava et al. 2014): an element of x becomes 0 with probability `rate`, or x / (1 - rate).

    x is the box that starts at `offset` of an array of shape `whole`; which element is dropped depends on noise [], the
    salt and its row-major index e in the whole: its random bits are word e % 4 of Philox 4x32-10 (Salmon et al. 2011)
    with the key noise and the counter (e // 4, salt), both of two words, the lower one first.
    """
    places = np.ravel_multi_index(np.ix_(*(o + np.arange(n) for o, n in zip(offset, x.shape, strict=True))), whole)
    index = np.asarray(places if x.ndim else 0, np.uint64)
    words = _philox(index // np.uint64(4), np.asarray(salt, np.uint64), noise.astype(np.uint64))
    word = np.choose((index % np.uint64(4)).astype(np.int64), words)
    keep = np.where(word < np.uint64(round(rate * 2**32)), 0, 1 / (1 - rate))
    return np.array(x * keep.astype(x.dtype))


def _philox(low: np.ndarray, high: np.ndarray, key: np.ndarray) -> tuple[np.ndarray, ...]:
    """The four words of the counter (low, high) under a key, each below 2^32."""
    a, b, c, d = low & _MASK, low >> np.uint64(32), high & _MASK, high >> np.uint64(32)
    k, m = key & _MASK, key >> np.uint64(32)
    for _ in range(10):
        p, q = _FACTORS[0] * a, _FACTORS[1] * c
        a, b, c, d = (q >> np.uint64(32)) ^ b ^ k, q & _MASK, (p >> np.uint64(32)) ^ d ^ m, p & _MASK
        k, m = (k + _STEPS[0]) & _MASK, (m + _STEPS[1]) & _MASK
    return a, b, c, d
