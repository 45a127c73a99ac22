"""The command ``python -m tvm_sched_check problem.json schedule.json evidence.json``.

Status 0: the latency is true and the certificate's bound proved; 1: less is proved, or there is no certificate; 2: a file
is wrong.
"""

import sys

from . import Refused, check

if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(print(__doc__, file=sys.stderr) or 2)
    try:
        verdict = check(*sys.argv[1:])
    except Refused as error:
        sys.exit(print(f"refused: {error}", file=sys.stderr) or 2)
    print(*verdict.lines, sep="\n")
    sys.exit(0 if verdict.all_proved else 1)
