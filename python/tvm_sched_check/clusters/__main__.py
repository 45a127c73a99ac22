"""The command ``python -m tvm_sched_check.clusters allocation.json evidence.json``.

Status 0: the allocation obeys every rule and the claimed bound is proved. 1: the evidence proves less. 2: a file is wrong.
"""

from ..command import run
from . import check

if __name__ == "__main__":
    run(__doc__, check, 2)
