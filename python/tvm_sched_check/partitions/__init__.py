"""An independent check of partitions and their bounds, in exact arithmetic (``docs/formats/benchmark.md``, ``evidence.md``).

Read `cost`, what a stage costs; `graph`, and `bound`, the arguments about every partition; `semidefinite`, the longest of
them; `verdict`, which reads the files. None of the modules beside this folder is needed but for what reads files.
"""

from .verdict import Verdict, check

__all__ = ["Verdict", "check"]
