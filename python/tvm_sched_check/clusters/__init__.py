"""Check independently that an allocation of services obeys every rule and that no allocator places more services.

The checker shares no code with the package ``tvm_sched``. Read the modules in this order: `document` reads cluster and
services; `allocation` checks which GPU runs what, by the rules of ``docs/model.md``; `bound` proves the bound by prices of
GPUs and fibres; `verdict` does both. The checker compares only integers.
"""

from ..document import Refused
from .verdict import Verdict, check

__all__ = ["Refused", "Verdict", "check"]
