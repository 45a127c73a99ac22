"""An independent check that a schedule's latency is true and that no schedule is faster than its lower bound.

It reads the three files itself and shares no code with the package ``tvm_sched``. Read in this order:

- `document`: the problem;
- `alternatives`: the problem of a choice, if there are variants, and the check of the relaxed problem;
- `replay`: the schedule, by the rules of ``docs/model.md``;
- `derivation`: the evidence, a list of lemmas, each proved from those before it;
- `placement`: the one rule that needs a search.

The proof of each rule is under ``docs/proofs/``. All that is compared are integers; only durations of transfers are rounded,
as the model defines. Pipelines, partitions and clusters have checkers of their own in the folders of these names.
"""

from .document import Refused
from .verdict import Verdict, check

__all__ = ["Refused", "Verdict", "check"]
