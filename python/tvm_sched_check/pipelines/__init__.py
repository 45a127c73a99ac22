"""An independent check that a pipeline plan costs what it says and that no plan is cheaper than its lower bound.

Shares no code with the package ``tvm_sched``; problems are read by `tvm_sched_check.document`. Read in this order: `plan`,
the stages and their costs by the rules of ``docs/model.md``; `bound`, the graph whose partitions evidence is about, by the
arguments of `tvm_sched_check.partitions`; `verdict`, both together. All that is compared are integers.
"""

from ..document import Refused
from .verdict import Verdict, check

__all__ = ["Refused", "Verdict", "check"]
