"""`castile completion` has no options."""

from __future__ import annotations

from tests.option_cases import Case

CASES: dict[str, Case] = {}
