"""The command ``tvm-sched-check``, also ``python -m tvm_sched_check``.

tvm-sched-check problem.json schedule.json evidence.json
tvm-sched-check pipelines problem.json plan.json evidence.json
tvm-sched-check partitions instance.json partition.json [evidence.json]
tvm-sched-check clusters allocation.json evidence.json

Status 0: what the files say is true and the bound that is claimed is proved; 1: less is proved, or no bound is claimed; 2: a
file is wrong. ``python -m tvm_sched_check.pipelines`` and so on are the same.
"""

import sys
from collections.abc import Callable
from typing import Any, NoReturn

from . import check, clusters, partitions, pipelines
from .command import run

_CHECKS: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "pipelines": (pipelines.check, (3,)),
    "partitions": (partitions.check, (2, 3)),
    "clusters": (clusters.check, (2,)),
}
"""Function and numbers of files of each check, but for that of a schedule, by its first word."""


def main() -> NoReturn:
    """Check what the first word of the command line names; without such a word, a schedule."""
    if sys.argv[1:2] in (["-h"], ["--help"]):
        sys.exit(print(__doc__))
    function, files = _CHECKS.get(sys.argv[1] if len(sys.argv) > 1 else "", (check, (3,)))
    if function is not check:
        del sys.argv[1]
    run(__doc__, function, *files)


if __name__ == "__main__":
    main()
