"""Further ways to compute the kernels of a lowered module."""
