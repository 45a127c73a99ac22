"""Loop schedules and machine code of kernels, for CPUs and for GPUs."""
