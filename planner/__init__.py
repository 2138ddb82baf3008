"""The planner thinks: it turns a model and a machine into a plan, and a plan into tasks with predicted times.

Reading order: axes, op, ops (what an operator is); graph, strategy (what is computed, how it is cut and placed);
lower (a plan becomes tasks); cost, simulate (how long they take); search, searches (a better plan); schedule, rewrite.
It knows no GPU, MPI or kernel.
"""
