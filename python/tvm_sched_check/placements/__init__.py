"""Check placements on accelerators that meet in host memory, and their bounds, in exact arithmetic.

The cost model is that of ``docs/proofs/placement_path.md``. Read the modules in this order: `instance` reads the problem,
`placement` computes when each part ends, `bound` and `separators` have the two rules about all placements, `verdict` reads
the files. Of `tvm_sched_check` itself this folder uses only the functions that read files and run commands.
"""

from .verdict import Verdict, check

__all__ = ["Verdict", "check"]
