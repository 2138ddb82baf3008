"""Calls of the libraries that CuPy has, where they do a kernel's work, found by their names.

Beside the forms there is what it takes to measure on a GPU: `measuring`. CuPy is imported when something is bound, so
that a machine without a GPU can read the forms. None of it has run on a GPU: a stand-in holds it to what the manuals
say. It knows no definition.
"""
