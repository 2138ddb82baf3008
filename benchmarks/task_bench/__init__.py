"""Task Bench (Slaughter et al., SC 2020): patterns of tasks, run by castile's runtime and by other systems.

`python benchmarks/task_bench` measures them.
"""
