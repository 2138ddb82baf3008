"""Options that several commands take: how they are written on the command line and shown in its help.

It does not know commands, nor what is done with the values. An option that is not given is "" or None.
"""

from __future__ import annotations

from typing import Annotated

import tyro


def _arg(metavar: str) -> object:
    # The words of each option say its default where "" or None would tell nothing.
    return tyro.conf.arg(metavar=metavar, help_behavior_hint="")


Model = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
ModelOrPlan = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL|FILE")]
Machine = Annotated[str, tyro.conf.arg(metavar="MACHINE")]
Search = Annotated[str, tyro.conf.arg(metavar="NAME")]
Budget = Annotated[str, tyro.conf.arg(metavar="N|TIME")]
BudgetOrOwn = Annotated[str, _arg("N|TIME")]
Data = Annotated[str, _arg("DATA")]
Optimizer = Annotated[str, _arg("OPTIMIZER")]
Schedule = Annotated[str, _arg("SCHEDULE")]
Patterns = Annotated[str, _arg("PATTERNS")]
File = Annotated[str, _arg("FILE")]
Folder = Annotated[str, _arg("DIR")]
Count = Annotated[int | None, _arg("N")]
Rate = Annotated[float | None, _arg("RATE")]
Norm = Annotated[float | None, _arg("NORM")]
Dtype = Annotated[str, tyro.conf.arg(metavar="DTYPE")]
Number = Annotated[int, tyro.conf.arg(metavar="N")]
