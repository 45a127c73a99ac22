"""Write the bound of a schedule as an integer program with a derivation, for a checker that others wrote.

python benchmarks/vipr problem.json evidence.json bound.vipr

Status 0: the file proves all that the evidence does. 1: it proves less, since some lemmas have no translation. 2: a file is
wrong. viprchk verifies what is written (docs/proofs/vipr.md).
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).parents[1])

from tvm_sched_check.command import run  # noqa: E402
from vipr import write  # noqa: E402

run(__doc__, write, 3)
