"""Forms that call libraries through CuPy, found by their names.

Beside the forms there is cuBLAS, which they call (`blas`), and timing on a GPU (`measuring`). CuPy is imported when
something is bound, so that forms can be read on a machine without a GPU. Tests hold them to the manuals by a stand-in.
It knows no definition.
"""
