"""The command ``python -m tvm_sched_check.clusters allocation.json evidence.json``.

Status 0: the allocation obeys every rule and the bound that is claimed is proved; 1: less is proved; 2: a file is
wrong.
"""

import sys

from . import Refused, check

if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(print(__doc__, file=sys.stderr) or 2)
    try:
        verdict = check(*sys.argv[1:])
    except Refused as error:
        sys.exit(print(f"refused: {error}", file=sys.stderr) or 2)
    print(*verdict.lines, sep="\n")
    sys.exit(0 if verdict.all_proved else 1)
