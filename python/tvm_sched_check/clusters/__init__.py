"""An independent check that services on a cluster have what they need, and that no allocator places more of them.

Shares no code with the package ``tvm_sched``. Read in this order: `document`, cluster and services; `allocation`, which
GPU runs what, by the rules of ``docs/model.md``; `bound`, prices of what a cluster has; `verdict`, all together. All that is
compared are integers.
"""

from ..document import Refused
from .verdict import Verdict, check

__all__ = ["Refused", "Verdict", "check"]
