"""The command ``python -m tvm_sched_check.partitions instance.json partition.json``.

Status 0: no partition is cheaper; 1: the simple bound leaves that open; 2: a file is wrong.
"""

from ..command import run
from . import check

if __name__ == "__main__":
    run(__doc__, check, 2)
