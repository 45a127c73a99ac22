"""An independent check that a schedule's latency is true and that no schedule is faster than its lower bound.

It reads the three files itself and shares no code with the package ``tvm_sched``. Read in this order: `document`, the
problem; `ways`, which makes of a problem with variants that of a choice, and one that is no harder than any; `replay`, the
schedule by the rules of ``docs/model.md``; `derivation`, the evidence, a list of lemmas ``from the end of f to the end of l
at least n ns pass``, each checked with the help of those before it; `placement`, the one lemma that needs a search. All that
is compared are integers; only durations of transfers are rounded, as the model defines.
Pipelines, partitions and clusters have checkers of their own in the folders of these names.
"""

from .document import Refused
from .verdict import Verdict, check

__all__ = ["Refused", "Verdict", "check"]
