"""Check independently that a schedule takes the latency it claims and that no schedule is faster than its lower bound.

The checker reads the files of problem, schedule and evidence itself and shares no code with the package ``tvm_sched``. Read
its modules in this order:

- `document`: the problem;
- `replay`: the schedule, by the rules of ``docs/model.md``;
- `derivation`: the evidence, a list of lemmas, each proved from those before it;
- `placement_bound`: the one rule that needs a search;
- `verdict`: all three files together.

These are the core. Two kinds of problems need more: `together` has the formulas of operators that run together, and
`alternative_bound` and `groups` handle variants. `ranges` checks the schedules of a range of sizes. The proof of each rule
is under ``docs/proofs/``. The checker compares only integers and fractions. It rounds only the durations of transfers and
stages, as ``docs/model.md`` defines. The folders `pipelines`, `partitions`, `placements` and `clusters` hold checkers of
their own.
"""

from importlib import import_module

TYPE_CHECKING = False  # the command handles Ctrl-C before it imports more than this
if TYPE_CHECKING:
    from .document import Refused
    from .verdict import Verdict, check

__all__ = ["Refused", "Verdict", "check"]

_HOMES = {"Refused": "document", "Verdict": "verdict", "check": "verdict"}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
