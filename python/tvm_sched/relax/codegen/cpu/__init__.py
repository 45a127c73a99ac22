"""Kernels for CPUs: loop schedules, corrections of the generated code, object files."""
