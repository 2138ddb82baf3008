"""The form of a checkpoint on disk: the manifest, its seal, and the header of each safetensors file.

It does not know who writes or reads files. A manifest is one JSON object that begins with its own hash (`seal`), taken
with the hash's digits as zeros; the header of a file follows from the manifest, so both must agree byte for byte.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import msgspec
import numpy as np
import xxhash

from castile import __version__
from castile.runtime import strict
from castile.runtime.region import Box, Region

SCHEMA = 1
NAME = "manifest.json"
MAX_BYTES = 256 * 2**20
MAX_DIMS = 32

_DIGITS = 32
_BEGIN = b'{"seal":"'
# https://huggingface.co/docs/safetensors: the names of element types, and a header that ends at a multiple of 8 bytes.
_TYPES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "int64": "I64", "int32": "I32",
    "int16": "I16", "int8": "I8", "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8", "bool": "BOOL",
}  # fmt: skip
_ALIGNMENT = 8
_FILE = re.compile(r"rank-\d{5,9}\.safetensors")


class Facts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a training is, so that it can go on: the same from its first step to its last.

    model, data   as the user wrote them. batch: samples a step. graph: the fingerprint. dtype: of the graph's numbers
    samples       how many there are and a hash of some, "" where an earlier castile did not tell
    options       what may be another from some step on, such as the rate; empty where an earlier castile did not tell
    """

    model: str
    data: str
    batch: int
    seed: int
    graph: str
    dtype: str
    samples: str = ""
    options: dict[str, str | int | float | None] = {}


class Judged(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a training did on held-out samples until some step.

    last    after how many steps they were judged last, 0 for never
    loss    their lowest loss, after `step` steps; None before any that is finite
    since   how many evaluations came after that
    """

    last: int = 0
    loss: float | None = None
    step: int = 0
    since: int = 0

    def after(self, step: int, loss: float) -> Judged:
        """The same after one more evaluation; the best one ends with `since` at 0."""
        if math.isfinite(loss) and (self.loss is None or loss < self.loss):
            return Judged(step, loss, step, 0)
        return msgspec.structs.replace(self, last=step, since=self.since + 1)

    def is_out_of(self, patience: int | None) -> bool:
        """Whether as many evaluations in a row brought nothing better as there may be; None: however many."""
        return patience is not None and self.since >= patience


UNJUDGED = Judged()


class Piece(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A box of a region, as one tensor of a file; `hash` is XXH3 (128 bits) of its bytes."""

    region: str
    lo: tuple[int, ...]
    hi: tuple[int, ...]
    hash: str

    @property
    def box(self) -> Box:
        return Box(self.lo, self.hi)

    @property
    def name(self) -> str:
        """Its name in the file: `fc1.weight[0:4, 0:8]`."""
        return f"{self.region}{self.box}"


class Shape(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A whole region's extents and element type (a numpy name)."""

    shape: tuple[int, ...]
    dtype: str


class File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A safetensors file of the checkpoint: its length, and its tensors in the order in which they lie there."""

    name: str
    nbytes: int
    pieces: tuple[Piece, ...]


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All that a checkpoint holds. step: how many are done. samples: how many were consumed. plan: as in plan files.

    judged   how held-out samples were judged until then, as if never where an earlier castile did not tell
    """

    seal: str
    schema: int
    castile: str
    step: int
    samples: int
    facts: Facts
    plan: dict[str, Any]
    regions: dict[str, Shape]
    files: tuple[File, ...]
    judged: Judged = UNJUDGED


class _Versioned(msgspec.Struct):
    schema: int


def encode(
    step: int, samples: int, facts: Facts, plan: bytes, regions: Mapping[str, Region], files: Sequence[File],
    judged: Judged,
) -> bytes:  # fmt: skip
    """The sealed manifest."""
    shapes = {name: Shape(region.shape, region.dtype) for name, region in regions.items()}
    fields = json.loads(plan)
    made = Manifest("0" * _DIGITS, SCHEMA, __version__, step, samples, facts, fields, shapes, tuple(files), judged)
    data = msgspec.json.encode(made)
    return _BEGIN + digest(data).encode() + data[len(_BEGIN) + _DIGITS :]


class OtherSchema(ValueError):
    """A whole manifest, of a form that this castile does not read."""


def decode(data: bytes) -> Manifest:
    """The manifest of sealed JSON. Raises ValueError, in words that say what is wrong with it, where it is none.

    It is refused where a byte differs from what was written, the schema is another (OtherSchema), or fields are not as
    they must be.
    """
    end = len(_BEGIN) + _DIGITS
    blank = _BEGIN + b"0" * _DIGITS + data[end:]
    if data[:end] != _BEGIN + digest(blank).encode():
        raise ValueError("its bytes are not those that were written")
    try:
        schema = msgspec.json.decode(data, type=_Versioned).schema
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"it is no manifest: {error}") from error
    if schema != SCHEMA:
        raise OtherSchema(f"schema {schema}, this castile reads schema {SCHEMA}: use the castile that wrote it")
    found = strict.from_json(data, Manifest, "it")
    _check(found)
    return found


def _check(manifest: Manifest) -> None:
    """Raises ValueError where parts of the manifest contradict each other."""
    if manifest.step < 0 or manifest.samples < 0:
        raise ValueError(f"step {manifest.step} after {manifest.samples} samples; counts begin at 0")
    for name, region in manifest.regions.items():
        if region.dtype not in _TYPES or len(region.shape) > MAX_DIMS or any(n < 0 for n in region.shape):
            raise ValueError(f"region {name!r} has shape {region.shape} of {region.dtype!r}")
    names = [file.name for file in manifest.files]
    foreign = next((name for name in names if not _FILE.fullmatch(name) or names.count(name) > 1), None)
    if foreign is not None:
        raise ValueError(f"{foreign!r} is no name of a checkpoint's file, or there twice")
    for piece in (piece for file in manifest.files for piece in file.pieces):
        whole = manifest.regions.get(piece.region)
        if whole is None:
            raise ValueError(f"tensor {piece.name!r} is of no region")
        bounds = zip(piece.lo, piece.hi, whole.shape)
        if not len(piece.lo) == len(piece.hi) == len(whole.shape) or not all(0 <= l <= h <= n for l, h, n in bounds):
            raise ValueError(f"tensor {piece.region!r} from {piece.lo} to {piece.hi} is not in shape {whole.shape}")


def file_name(rank: int) -> str:
    """The file of that rank in every checkpoint."""
    return f"rank-{rank:05d}.safetensors"


def digest(data: bytes | memoryview) -> str:
    """XXH3 of the bytes, 128 bits in hexadecimal: it tells accidents, not attackers (Collet, github.com/Cyan4973)."""
    return xxhash.xxh3_128_hexdigest(data)


def num_bytes(box: Box, region: Region | Shape) -> int:
    """What a box of the region takes."""
    return box.volume * itemsize(region.dtype)


def itemsize(dtype: str) -> int:
    """Bytes of an element. Raises ValueError for a type that safetensors cannot hold."""
    if dtype not in _TYPES:
        raise ValueError(
            f"numbers of type {dtype} cannot be kept in a safetensors file; use one of {', '.join(_TYPES)}"
        )
    return np.dtype(dtype).itemsize


def header(tensors: Sequence[tuple[str, str, tuple[int, ...]]]) -> tuple[bytes, list[tuple[str, int]]]:
    """The head of a safetensors file of tensors (name, dtype, shape) that lie in this order without gaps.

    Returns its bytes, length in front and spaces behind, and for each tensor (name, where its entry ends).
    """
    entries, ends, offset, at = [], [], 0, 8
    for name, dtype, shape in tensors:
        nbytes = prod(shape) * itemsize(dtype)
        fields = {"dtype": _TYPES[dtype], "shape": list(shape), "data_offsets": [offset, offset + nbytes]}
        entry = f"{json.dumps(name)}:{json.dumps(fields, separators=(',', ':'))}"
        entries.append(entry)
        offset, at = offset + nbytes, at + 1 + len(entry)
        ends.append((name, at))
    text = ("{" + ",".join(entries) + "}").encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text, ends
