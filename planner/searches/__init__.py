"""Searches, a file each: `search(run)` proposes plans until its budget is spent, by default its `BUDGET`."""
