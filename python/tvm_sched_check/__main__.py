"""The command ``python -m tvm_sched_check problem.json schedule.json evidence.json``.

Status 0: the latency is true and the certificate's bound proved; 1: less is proved, or there is no certificate; 2: a file
is wrong.
"""

from . import check
from .command import run

if __name__ == "__main__":
    run(__doc__, check, 3)
