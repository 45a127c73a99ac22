"""Measurements of kernels (alone, in parallel, in a model's run), of schedules, and of the load of other processes."""
