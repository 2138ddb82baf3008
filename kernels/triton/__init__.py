"""Forms for NVIDIA GPUs in Triton, found by their names; TRITON_INTERPRET=1 runs them on NumPy arrays, slowly.

Reading order: `views` (arrays as shapes and steps), `launch` (what a form says, and how that becomes a call), `driver`
(Triton on CuPy), `interpreter` (Triton on NumPy) and `chip` (compiled alone), `ahead` (what is compiled before it is
bound), `functions` and `lines` (arithmetic on each element as text), then
the forms. It knows no definition.
"""
