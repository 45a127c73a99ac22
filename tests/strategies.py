"""Hypothesis strategies for problems and schedules, on the generators of `tvm_sched_bench.testing`."""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from thorough import examples
from tvm_sched_bench.testing import random_problem, random_schedule

SEEDS = st.integers(0, 2**32 - 1)


def problems(
    max_operators=8, max_devices=4, min_operators=0, memory=("tight", "generous"), styles=("bus", "shared", "mixed")
):
    """Problems that have a feasible schedule; small ones first, which is what hypothesis shrinks to."""
    return st.builds(
        random_problem,
        SEEDS,
        operators=st.integers(min_operators, max_operators),
        devices=st.integers(1, max_devices),
        memory=st.sampled_from(memory),
        style=st.sampled_from(styles),
        all_joined=st.booleans(),
        longest_ns=st.sampled_from((1000, 5)),  # of a few nanoseconds one more or less often matters
    )


@st.composite
def scheduled_problems(draw, **limits):
    """A problem with a schedule that obeys all rules but perhaps that of memory."""
    problem = draw(problems(**{"styles": ("bus", "shared", "mixed", "storage", "disk"), **limits}))
    return problem, random_schedule(problem, draw(SEEDS))


def fuzzed(most: int) -> settings:
    """Settings of a test that compiles random models: equal ones each time, however long each takes."""
    return settings(
        max_examples=examples(most),
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
