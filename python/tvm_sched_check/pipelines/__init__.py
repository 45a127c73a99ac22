"""Check independently that a pipeline plan costs what it claims and that no plan is cheaper than its lower bound.

The checker shares no code with the package ``tvm_sched``; `tvm_sched_check.document` reads the problem. Read the modules in
this order: `plan` prices the stages by the rules of ``docs/model.md``; `bound` makes the graph whose partitions are no
dearer than plans, and proves its bound by the rules of `tvm_sched_check.partitions`; `verdict` does both. The checker
compares only integers.
"""

from ..document import Refused
from .verdict import Verdict, check

__all__ = ["Refused", "Verdict", "check"]
