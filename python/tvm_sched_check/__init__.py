"""Check independently that a schedule takes the latency it claims and that no schedule is faster than its lower bound.

The checker reads the files of problem, schedule and evidence itself and shares no code with the package ``tvm_sched``. Read
its modules in this order:

- `document`: the problem;
- `alternatives`: the problem of a choice, if there are variants, and the check of the relaxed problem;
- `replay`: the schedule, by the rules of ``docs/model.md``;
- `derivation`: the evidence, a list of lemmas, each proved from those before it;
- `placement`: the one rule that needs a search.

The proof of each rule is under ``docs/proofs/``. The checker compares only integers. It rounds only the durations of
transfers, as ``docs/model.md`` defines. The folders `pipelines`, `partitions` and `clusters` hold checkers of their own.
"""

from .document import Refused
from .verdict import Verdict, check

__all__ = ["Refused", "Verdict", "check"]
