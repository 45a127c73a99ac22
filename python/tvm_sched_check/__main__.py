"""The command ``tvm-sched-check``, also ``python -m tvm_sched_check``.

tvm-sched-check problem.json schedule.json evidence.json
tvm-sched-check ranges range.json
tvm-sched-check pipelines problem.json plan.json evidence.json
tvm-sched-check partitions instance.json partition.json [evidence.json]
tvm-sched-check placements instance.json placement.json evidence.json
tvm-sched-check clusters allocation.json evidence.json
tvm-sched-check plans plans.json

Status 0: what the files claim is true, and the claimed bound is proved. 1: the evidence proves less, or no bound is claimed.
2: a file is wrong.
"""

import os
import signal
import sys
from importlib import import_module

_CHECKS = {
    "": ("verdict.check", (3,)),
    "ranges": ("ranges.check", (1,)),
    "pipelines": ("pipelines.check", (3,)),
    "partitions": ("partitions.check", (2, 3)),
    "placements": ("placements.check", (3,)),
    "clusters": ("clusters.check", (2,)),
    "plans": ("plans.check", (1,)),
}
"""Function and allowed numbers of files of each check, by the first word of its command; schedules have no such word."""


def main() -> None:
    """Run the check that the first word of the command line names; without such a word, that of a schedule."""
    handled = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # scripts' jobs ignore the signal
    if handled:
        signal.signal(signal.SIGINT, _end)
    from .command import end, run

    if sys.argv[1:2] in (["-h"], ["--help"]):
        end(__doc__, 0)
    what = sys.argv.pop(1) if len(sys.argv) > 1 and sys.argv[1] in _CHECKS else ""
    (place, name), files = _CHECKS[what][0].split("."), _CHECKS[what][1]
    function = getattr(import_module(f"{__package__}.{place}"), name)
    if handled:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # `run` handles it
    run(__doc__, function, *files)


def _end(*_: object) -> None:
    """End at once, without a traceback of what is being imported."""
    os.write(2, b"interrupted\n")
    os._exit(130)


if __name__ == "__main__":
    main()
