"""Reports of searches: what was looked at, what was found and how good it is, for people.

It does not know how plans are found.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from castile.launch import report


def tell(facts: Mapping[str, Any], lines: Sequence[str]) -> None:
    """All that is known of a search; `lines` are the plan in words."""
    out = report.console()
    what = report.what(facts["objective"] == "latency")
    out.print(
        f"{facts['model']}, {report.counted(facts['batch_samples'], 'sample')} a {what}, on {facts['machine']} "
        f"({report.counted(facts['num_procs'], 'processor')}); "
        f"{facts['num_tasks']} tasks{report.bucket_words(facts['buckets'])}, "
        f"prices: {report.prices_words(facts['prices'])}\n",
        markup=False, soft_wrap=True,
    )  # fmt: skip
    if facts["microbatches"] > 1:
        why = ": no known plan of a whole batch fits" if facts["is_cut_to_fit"] else ""
        out.print(
            f"a step in {facts['microbatches']} microbatches, one after another{why}\n", markup=False, soft_wrap=True
        )
    if facts["pinned"]:
        out.print(f"pinned: {'; '.join(facts['pinned'])}\n", markup=False, soft_wrap=True)
    out.print(report.plan_table({**facts["seeds"], f"found by {facts['search']}": facts["found"]}, what))
    if facts["bound_seconds"] is not None:
        out.print(f"\n{_bound_words(facts)}", markup=False, soft_wrap=True)
    if facts.get("front"):
        out.print("\nplans that none other beats in both time and memory:")
        out.print(report.plan_table({row.get("file", f"{n}"): row for n, row in enumerate(facts["front"], 1)}, what))
    looked = f"after {report.counted(facts['num_proposals'], 'proposal')} in {facts['elapsed_seconds']:.1f} s"
    same = f"; it equals {facts['equals']}" if facts["equals"] else ""
    out.print(f"\nthe plan, {looked}{same}:", markup=False)
    for line in lines:
        out.print(f"  {line}", markup=False, soft_wrap=True)
    for name, path in facts["files"].items():
        out.print(f"{name} written to {path}", markup=False, soft_wrap=True)


def _bound_words(facts: Mapping[str, Any]) -> str:
    by_work = facts["work_bound_seconds"] >= facts["chain_bound_seconds"]
    why = "all processors' work" if by_work else "the longest chain of passes"
    least, gap = report.milliseconds(facts["bound_seconds"]), report.percent(facts["gap_share"])
    return f"no plan takes less than {least} ({why}); the plan found takes {gap} more"
