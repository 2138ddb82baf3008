"""Backends: what turns a task into something that can be called; found by file name.

Read base, then null or numpy. No room here knows in which order tasks run.
"""
