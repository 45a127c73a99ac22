"""Cases of `test_worker_pool.py` that other tests use, too."""

from tvm_sched.pipeline import partition
from tvm_sched.pipeline.integer_programs import bottleneck_guess_bound
from tvm_sched_bench.testing.regal import regal_like

SEARCH = {"evaluations": 100, "populations": 3, "seed": 3, "threads": 1}


def search():
    """A genetic search of several populations, and guesses of the bottleneck."""
    problem = regal_like(0)
    found = partition(problem, 4, "slicegraph", SEARCH)
    small = regal_like(1, nodes=12)
    bound = bottleneck_guess_bound(small, 3)
    assert bound.proved
    return found.stage_of.tolist(), found.cost, bound.bound
