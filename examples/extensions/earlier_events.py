"""An improver of `anytime` that moves an event to a random earlier place.

``python examples/extensions/earlier_events.py`` lets it share the work with annealing.
"""

import contextlib

import numpy as np

from tvm_sched.schedulers.anytime import register_improver
from tvm_sched_runtime.errors import ScheduleError


@register_improver("earlier-events")
class EarlierEvents:
    """Take the best sequence, and move one event of it forward."""

    name = "earlier-events"

    def __init__(self, options):
        self.random = np.random.default_rng(options.seed)

    def step(self, state, budget):
        start = state.starts()[0]
        if len(start.sequence) < 2:
            return False
        old = int(self.random.integers(1, len(start.sequence)))
        new = int(self.random.integers(old))
        moved = np.insert(np.delete(start.sequence, old, axis=0), new, start.sequence[old], axis=0)
        budget.spend(len(moved) / 1e6)
        with contextlib.suppress(ScheduleError):  # the order breaks a dependency
            state.offer_sequence(moved, start.memory_scale)
        return True


if __name__ == "__main__":
    from tvm_sched.schedulers import solve
    from tvm_sched_bench.testing import random_problem

    options = {"improvers": "earlier-events:0.3,annealing:0.7", "work": 0.01}
    schedule = solve(random_problem(5, operators=20, devices=3, memory="generous"), options=options)
    print(schedule.notes["tried"])
