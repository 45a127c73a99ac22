"""Training of the learned cost model (``tvm-sched learn``) on published latencies and on profiles of machines."""
