"""TensorBoard event files, written without TensorBoard or TensorFlow installed.

A file is a sequence of TFRecords (length, its checksum, bytes, their checksum), each a message `Event` of TensorFlow's
event.proto in protocol buffers. It does not know what is measured.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

import numpy as np

# Castagnoli's polynomial with its bits in reverse, as in RFC 3720.
_POLYNOMIAL = 0x82F63B78
VERSION = "brain.Event:2"


def _remainder(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (_POLYNOMIAL if byte & 1 else 0)
    return byte


_REMAINDERS = tuple(map(_remainder, range(256)))


def crc32c(data: bytes) -> int:
    """The checksum of bytes."""
    found = 0xFFFFFFFF
    for byte in data:
        found = found >> 8 ^ _REMAINDERS[(found ^ byte) & 0xFF]
    return found ^ 0xFFFFFFFF


def record(data: bytes) -> bytes:
    """A TFRecord of these bytes."""
    length = struct.pack("<Q", len(data))
    return length + _masked(length) + data + _masked(data)


def first(seconds: float) -> bytes:
    """The event that every file begins with: its version. seconds: since 1970."""
    return struct.pack("<Bd", 0x09, seconds) + _text(3, VERSION.encode())


def scalars(seconds: float, step: int, values: Iterable[tuple[str, float]]) -> bytes:
    """An event that adds a point to each of these curves."""
    with np.errstate(over="ignore"):
        rounded = [(tag, float(np.float32(value))) for tag, value in values]
    points = (_text(1, _text(1, tag.encode()) + struct.pack("<Bf", 0x15, value)) for tag, value in rounded)
    return struct.pack("<BdB", 0x09, seconds, 0x10) + _varint(step) + _text(5, b"".join(points))


def _masked(data: bytes) -> bytes:
    """The checksum as TFRecords hold it: rotated and offset, as checksums of checksums are weak."""
    found = crc32c(data)
    return struct.pack("<I", ((found >> 15 | found << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def _text(field: int, data: bytes) -> bytes:
    """A field of bytes, text or another message."""
    return bytes([field << 3 | 2]) + _varint(len(data)) + data


def _varint(number: int) -> bytes:
    """Seven bits a byte, the lowest first."""
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])
