"""An independent check that a schedule's latency is true and that no schedule is faster than its lower bound.

It reads the three files itself and shares no code with the package ``tvm_sched``. Read in this order:

1. `document`: the problem: operators, tensors, devices, routes, times.
2. `replay`: the schedule by the rules of ``docs/model.md``, in integers, and its latency.
3. `derivation`: the evidence, a list of lemmas ``from the end of operator f to the end of operator l at least n ns pass``,
   each checked with the help of those before it; the last one is about the whole run, which is the bound.
4. `placement`: the one lemma that needs a search.

Everything that is compared is an integer. Durations of transfers are the only place of floating point: the model defines
them as a rounded-up result in double precision (`document.Route`).
"""

from .document import Refused
from .verdict import Verdict, check

__all__ = ["Refused", "Verdict", "check"]
