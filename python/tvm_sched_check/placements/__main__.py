"""The command ``python -m tvm_sched_check.placements instance.json placement.json evidence.json``.

Status 0: the bound of the evidence is proved. 2: a file is wrong.
"""

from ..command import run
from . import check

if __name__ == "__main__":
    run(__doc__, check, 3)
