"""Fields that there are not: told is what may stand at their place, in any form of file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from castile.launch.checkpoints.manifest import Manifest
from castile.planner.costs.snapshot import Snapshot
from castile.planner.strategy import Strategy
from castile.runtime import machine, strict
from castile.runtime.strict import _fields, _structs, convert, hint


def places(info: Any, place: str = "") -> Iterator[tuple[str, set[str]]]:
    """All that has fields in a form, as messages name its place, and what its fields are."""
    for one in _structs(info):
        yield place, {field.encode_name for field in one.fields}
        for field in one.fields:
            yield from places(field.type, f"{place}.{field.encode_name}[0]".lstrip("."))


@pytest.mark.parametrize("form", [machine._File, machine.Machine, Strategy, Snapshot, Manifest])
def test_every_place_of_a_file_has_its_own_fields(form: type) -> None:
    found = list(places(msgspec.inspect.type_info(form)))
    assert len(found) > 1
    for place, fields in found:
        assert _fields(form, place) == fields, place
        assert _fields(form, place.replace("[0]", "[...]")) == _fields(form, place.replace("[0]", "")) == fields


def test_a_field_of_another_place_is_not_suggested_for_itself() -> None:
    with pytest.raises(ValueError, match=r"^m: unknown field 'name'; there are .*processor") as refused:
        convert({"name": "x", "processor": []}, machine._File, "m")
    assert "did you mean" not in str(refused.value)
    with pytest.raises(ValueError, match=r"^m: unknown field 'processor\[0\]\.kinds' \(did you mean 'kind'"):
        convert({"processor": [{"kinds": "x"}]}, machine._File, "m")


def test_where_no_name_is_near_the_first_are_told() -> None:
    assert hint("zz", ["one", "two"]) == "; there are one, two"
    assert hint("twoo", ["one", "two"]) == " (did you mean 'two'?)"
    assert hint("zz", [f"x{n}" for n in range(99)]).endswith("x6, x7, ...")


def test_a_mark_of_the_order_of_bytes_is_no_part_of_a_toml_file() -> None:
    """Some editors begin a file with one."""
    assert strict.from_toml(b"\xef\xbb\xbfnodes = 2\n", dict, "file") == {"nodes": 2}


def test_a_whole_number_of_a_toml_file_may_be_written_with_an_exponent() -> None:
    class Sizes(msgspec.Struct):
        nbytes: int
        rates: list[float]

    assert strict.from_toml(b"nbytes = 80e9\nrates = [1e12, 0.5]\n", Sizes, "file") == Sizes(80 * 10**9, [1e12, 0.5])
    for number in (b"0.5", b"nan", b"inf", b"1e300"):
        with pytest.raises(ValueError, match=r"^file: nbytes: expected a whole number, got a number$"):
            strict.from_toml(b"rates = []\nnbytes = " + number, Sizes, "file")


def test_what_is_missing_is_named_where_it_is_missing() -> None:
    with pytest.raises(ValueError, match=r"^m: the field 'processor\[0\]\.kind' is missing$"):
        convert({"processor": [{"flops_per_second": 1}]}, machine._File, "m")
    with pytest.raises(ValueError, match=r"^m: the field 'processor' is missing$"):
        convert({}, machine._File, "m")
