"""What counts as done, as checks: every public function here takes a Place, runs something, and returns its figures.

A file for each matter; `benchmarks/accept.py` finds the functions by their names.
"""
