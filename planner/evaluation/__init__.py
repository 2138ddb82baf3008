"""Evaluation: what a plan is worth in time and memory, by one processor of each role, and how long one may look."""
