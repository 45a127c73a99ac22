"""Check partitions and their bounds independently, in exact arithmetic (``docs/formats/benchmark.md``, ``evidence.md``).

Read the modules in this order: `cost` prices a stage; `graph` holds the graph in integers; `bound` has the rules about all
partitions, `semidefinite` and `prices` the longest of them; `verdict` reads the files. Of `tvm_sched_check` itself
this folder uses only the functions that read files and run commands.
"""

from .verdict import Verdict, check

__all__ = ["Verdict", "check"]
