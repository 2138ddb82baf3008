"""Names with settings as a user types them: values with commas, numbers that are none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from castile.launch import data
from castile.launch.__main__ import main
from castile.launch.typed import settings

KEYS = st.sampled_from(["file", "label", "width", "x2"])
# Whatever stands behind a comma without a = belongs to the value.
VALUES = st.lists(st.text("ab/. -", min_size=1), min_size=1, max_size=3).map(",".join)


@given(st.dictionaries(KEYS, VALUES, min_size=1))
def test_what_is_written_out_is_read_back(given: dict[str, str]) -> None:
    assert settings.split(settings.joined("csv", given)) == ("csv", given)


@pytest.mark.parametrize("text", ["mlp:", "mlp:width", "mlp:width,layers=2", "mlp:layers=2,", "mlp:,a=2", "mlp:=2"])
def test_what_is_no_setting_is_told(text: str) -> None:
    with pytest.raises(ValueError, match="settings are written name:key=value,key=value"):
        settings.split(text)


def test_a_file_s_name_may_have_a_comma(alone) -> None:
    (alone / "a,b.csv").write_text("x,y\n" + "1.5,0\n2.5,1\n" * 20)
    assert data.load("csv:file=a,b.csv,label=y", 0).num_samples > 0


@pytest.mark.parametrize("number", ["nan", "inf", "-inf", "1e999"])
@pytest.mark.parametrize("words", ["plan bert:dropout={}", "train mlp --data csv:file=a.csv,label=y,held_out={}"])
def test_a_number_that_is_none_is_told(words: str, number: str, alone, capsys) -> None:
    assert main(words.format(number).split()) == 2
    assert f"should be a finite number, got '{number}'" in capsys.readouterr().err


def test_a_setting_without_a_type_has_its_defaults() -> None:
    def build(batch=None, dtype="float32", width=32, share=0.5, is_wide=False, name="x", depth=None, heads: int = 2):
        return batch

    given = {"width": "3", "share": "1", "is_wide": "true", "name": "4", "depth": "5", "heads": "6"}
    found = settings.typed(build, given, "own", ("batch", "dtype"))
    assert found == {"width": 3, "share": 1.0, "is_wide": True, "name": "4", "depth": "5", "heads": 6}
    assert [type(value) for value in found.values()] == [int, float, bool, str, str, int]
    with pytest.raises(ValueError, match=r"^own: setting 'width' should be a whole number, got 'wide'$"):
        settings.typed(build, {"width": "wide"}, "own", ("batch", "dtype"))
