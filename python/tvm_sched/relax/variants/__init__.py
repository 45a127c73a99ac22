"""Alternatives for the kernels of a lowered module."""
