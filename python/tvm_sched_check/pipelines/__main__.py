"""The command ``python -m tvm_sched_check.pipelines problem.json plan.json evidence.json``.

Status 0: the costs are true and the certificate's bound is proved. 1: the evidence proves less, or there is no certificate.
2: a file is wrong.
"""

from ..command import run
from . import check

if __name__ == "__main__":
    run(__doc__, check, 3)
