"""The launcher composes: command line, ranks, models, data, training runs and reports.

Reading order: __main__ (commands are found by their file's name), ranks (which one we are, and how a job ends), launch,
doctor; then the commands, each in its own file, with models and data beside them. Nothing imports it.
"""
