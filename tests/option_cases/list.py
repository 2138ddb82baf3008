"""Cases of the options of `castile list`."""

from __future__ import annotations

from tests.option_cases import Case, Ran, becomes, json_of


def kinds(ran: Ran) -> list[str]:
    """Of what it tells."""
    return [*ran.facts]


CASES = {
    "kind": Case("list --json", "list schedules --json", kinds, becomes(["schedules"])),
    "name": Case("list models --json", "list models lenet --json", lambda ran: ran.facts.get("num_params"),
                 becomes(61_706)),
    "json": json_of("list"),
}  # fmt: skip
