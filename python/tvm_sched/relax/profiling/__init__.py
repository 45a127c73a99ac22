"""What measures: kernels alone, beside each other and in a model's run; schedules; the load of other processes."""
