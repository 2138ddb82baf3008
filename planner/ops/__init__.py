"""Operators, one a file, found by the file's name."""
