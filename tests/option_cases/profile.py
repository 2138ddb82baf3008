"""Cases of the options of `castile profile`."""

from __future__ import annotations

from tests.option_cases import MLP, Case, Ran, becomes, fact, json_of

HERE = f"profile {MLP} --profile new.db"
KNOWN = f"profile {MLP} --profile known.db --json"
TWO = "profile tiny.py --machine two.toml --profile new.db --json"


def shapes(ran: Ran) -> set[str]:
    """What is measured."""
    return {key["shapes"] for key in ran.facts["keys"]}


def dtypes(ran: Ran) -> set[str]:
    """What the measured kernels compute with."""
    return {key["dtype"] for key in ran.facts["keys"]}


def transfers(ran: Ran) -> set[tuple[str, int]]:
    """The forms of transfer that are measured, with their bytes."""
    return {(key["op"], key["size_bytes"]) for key in ran.facts["keys"] if key["link"]}


CASES = {
    "model": Case(f"{HERE} --json", "profile mlp:layers=1,width=24 --profile new.db --json", shapes),
    "machine": Case(f"{HERE} --json", f"{HERE} --json --machine one.toml", fact("machine"), becomes("one.toml")),
    "plan": Case(f"{HERE} --json", f"{HERE} --json --plan one.json", fact("plans"), becomes(["one.json"])),
    "batch": Case(f"{HERE} --json", f"{HERE} --json --batch 24", shapes),
    "dtype": Case(f"{HERE} --json", f"{HERE} --json --dtype float64", dtypes, lambda one, other: "float64" in other),
    "profile": Case(f"profile {MLP} --json", f"{HERE} --json", lambda ran: "new.db" in ran.files, becomes(True)),
    "all": Case(TWO, f"{TWO} --all", shapes, lambda one, other: one < other, ranks=2),
    "op": Case(f"{HERE} --json", f"{HERE} --json --op fc*", shapes, lambda one, other: set() < other < one),
    "links": Case(TWO, f"{TWO} --links", transfers, lambda one, other: one < other, ranks=2),
    "picture": Case(HERE, f"{HERE} --picture roof.svg", lambda ran: "roof.svg" in ran.files, becomes(True)),
    "again": Case(KNOWN, f"{KNOWN} --again", lambda ran: ran.facts["num_new_keys"] > 0, becomes(True)),
    "json": json_of(HERE),
}
