"""PyTorch's own database of operators through torch.export and this package: right, refused, wrong, failed.

Each operator and type runs in a process of its own, with a limit, over some of the samples that the database draws.
Results go to a JSON file as they come; a run that finds the file takes up where it ended. The database is a part of
torch's tests: ``pip install expecttest`` for it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # the parent forks: it must have one thread
os.environ.setdefault("TVM_SCHED_COSTS", "roofline")  # values are compared, not times: no kernel has to be measured

from _fork_server import run_forked, write_results

if TYPE_CHECKING:
    from _torch_cases import Case

DTYPES = ("float32", "float64", "float16", "int64", "int32", "uint8", "int8", "bool")


def main() -> int:
    arguments = _arguments()
    try:
        from _torch_cases import load_cases, run_case
    except ImportError as error:
        raise SystemExit(f"torch's own tests are needed here ({error}): pip install torch expecttest") from None
    every = [case for case in load_cases(tuple(arguments.dtype or DTYPES)) if _selected(case, arguments)]
    cases = {case.name: case for case in every[:: arguments.every]}
    if not cases:
        raise SystemExit("no case is selected; see --help")
    results: dict[str, Any] = json.loads(arguments.json.read_text()) if arguments.json.exists() else {}
    wanted = [name for name in cases if arguments.again or name not in results]
    _warm_up()
    noted = time.monotonic()
    work = run_forked(
        lambda name: run_case(cases[name], arguments.samples, arguments.target),
        wanted,
        seconds=arguments.limit,
        jobs=arguments.jobs,
    )
    for done, (name, result, failure, _) in enumerate(work, 1):
        results[name] = result if result is not None else {"failed": [str(failure)[-1500:]]}
        if time.monotonic() - noted > 5 or done == len(wanted):
            noted = time.monotonic()
            write_results(arguments.json, results)
            print(f"{done} of {len(wanted)}", flush=True)
    counts: Counter[str] = Counter()
    for name in cases:
        for verdict, reasons in results[name].items():
            counts[verdict] += len(reasons)
            if verdict in (arguments.show or ("wrong", "failed")):
                print(
                    f"{verdict}: {name} {reasons[0][:400]}" + (f" (and {len(reasons) - 1} more)" if reasons[1:] else "")
                )
    print(f"{len(cases)} operators and types: " + ", ".join(f"{n} {verdict}" for verdict, n in counts.most_common()))
    return 1 if counts["wrong"] or counts["failed"] else 0


def _selected(case: Case, arguments: argparse.Namespace) -> bool:
    return not arguments.operator or case.operator in arguments.operator


def _warm_up() -> None:
    """Import and compile once what every child needs."""
    import torch

    import tvm_sched.relax

    program = torch.export.export(torch.nn.ReLU(), (torch.zeros(3),))
    tvm_sched.relax.compile(program, "cpu1", "heft")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operator", action="append", help="this operator only; may stand several times")
    parser.add_argument("--dtype", action="append", choices=DTYPES, help="this type only; may stand several times")
    parser.add_argument("--samples", type=int, default=4, help="samples of each operator and type (default 4)")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="every Nth of them only (default 1: all)")
    parser.add_argument("--again", action="store_true", help="run what is selected although its results are there")
    parser.add_argument("--show", action="append", help="print the cases that are 'wrong', 'refused', 'failed' …")
    parser.add_argument("--jobs", type=int, default=2, help="operators at once (default 2)")
    parser.add_argument("--limit", type=float, default=120, help="seconds after which one is killed (default 120)")
    parser.add_argument("--json", type=Path, default=Path("torch_conformance.json"), help="results, kept between runs")
    parser.add_argument("-t", "--target", default="cpu1", help="machine to compile for (default cpu1)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
