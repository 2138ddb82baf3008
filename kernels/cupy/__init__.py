"""Calls of the libraries that CuPy has, where they do a kernel's work, found by their names.

Beside the forms there are cuBLAS as they call it, `blas`, and what it takes to measure on a GPU, `measuring`. CuPy is
imported when something is bound, so that a machine without a GPU can read the forms. A stand-in holds them to what the
manuals say. It knows no definition.
"""
