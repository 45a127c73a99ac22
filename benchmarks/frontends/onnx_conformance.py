"""ONNX's own conformance cases through plain TVM and through this package: right, refused, wrong, failed.

Each case runs in a process of its own, with a limit. Results go to a JSON file as they come; a run that finds the file
takes up where it ended, or runs again what is selected by ``--again``.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # the parent forks: it must have one thread
os.environ.setdefault("OMP_NUM_THREADS", "2")
os.environ.setdefault("TVM_SCHED_COSTS", "roofline")  # values are compared, not times: no kernel has to be measured

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # what all benchmarks share
from _fork_server import run_forked
from _onnx_cases import OURS, PLAIN, Case, load_cases, run_case
from _onnx_conformance_page import write_page

RESULTS = Path("onnx_conformance.json")


def main() -> None:
    arguments = _arguments()
    cases = {name: case for name, case in load_cases().items() if _selected(case, arguments)}
    if not cases:
        raise SystemExit("no case is selected; see --help")
    results = {} if arguments.again or not arguments.json.exists() else json.loads(arguments.json.read_text())
    if arguments.again and arguments.json.exists():
        results = json.loads(arguments.json.read_text())
        for name in cases:
            for system in arguments.system:
                results.get(name, {}).pop(system, None)
    wanted = [(name, s) for name in cases for s in arguments.system if s not in results.get(name, {})]
    if wanted:
        run_cases(cases, wanted, results, arguments)
    for system in arguments.system:
        statuses = Counter(results[name][system]["status"] for name in cases)
        print(f"{system}: {len(cases)} cases, " + ", ".join(f"{n} {status}" for status, n in statuses.most_common()))
    if arguments.show:
        for name, case in cases.items():
            for system in arguments.system:
                answer = results[name][system]
                if answer["status"] in arguments.show:
                    print(f"{case.operator} {name} {system} {answer['status']}: {answer.get('reason', '')}")
    if arguments.markdown:
        write_page(arguments.markdown, cases, results, len(load_cases()))


def run_cases(
    cases: dict[str, Case], wanted: list[tuple[str, str]], results: dict[str, Any], arguments: argparse.Namespace
) -> None:
    """Run pairs of case and system, and note what comes out after each few."""
    warm_up()
    noted = time.monotonic()
    work = run_forked(lambda key: run_case(cases[key[0]], key[1]), wanted, seconds=arguments.limit, jobs=arguments.jobs)
    for done, ((name, system), result, failure, seconds) in enumerate(work, 1):
        answer = result or {"status": "refused" if system == PLAIN else "failed", "reason": str(failure)[-1500:]}
        fixed = cases[name].fixed and not cases[name].training
        results.setdefault(name, {})[system] = {**answer, "fixed": fixed, "seconds": round(seconds, 3)}
        if arguments.json and time.monotonic() - noted > 5:
            noted = time.monotonic()
            _write(arguments.json, results)
            print(f"{done} of {len(wanted)}", flush=True)
    if arguments.json:
        _write(arguments.json, results)


def warm_up() -> None:
    """Import and compile once what the children need, so that they do not each."""
    import onnx.backend.test.runner
    import tvm
    from tvm.relax.frontend.onnx import from_onnx

    from tvm_sched.relax import compile

    names = [onnx.helper.make_tensor_value_info(name, 1, [3]) for name in "xy"]
    graph = onnx.helper.make_graph([onnx.helper.make_node("Exp", ["x"], ["y"])], "g", names[:1], names[1:])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 13)])
    tvm.compile(from_onnx(model), target="llvm")
    compile(model, "cpu2", "heft")


def _write(path: Path, results: dict[str, Any]) -> None:
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
    temporary.replace(path)


def _selected(case: Case, arguments: argparse.Namespace) -> bool:
    return (
        (not arguments.operator or case.operator in arguments.operator)
        and (not arguments.case or case.name in arguments.case)
        and arguments.half in (None, case.half)
        and (case.sampled or not arguments.sample)
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operator", action="append", help="cases of this operator only; may stand several times")
    parser.add_argument("--case", action="append", help="this case only; may stand several times")
    parser.add_argument("--half", choices=("looked-at", "held-out"), help="the half of the cases by a hash of the name")
    parser.add_argument(
        "--sample", "--quick", action="store_true", help="every twentieth case by a hash of the name, as the test does"
    )
    parser.add_argument("--system", action="append", choices=(OURS, PLAIN), help="through this one only")
    parser.add_argument("--again", action="store_true", help="run what is selected although its results are there")
    parser.add_argument(
        "--show", action="append", help="print the cases that are 'wrong', 'refused', 'failed', 'right'"
    )
    parser.add_argument("--jobs", type=int, default=2, help="cases at once (default 2)")
    parser.add_argument("--limit", type=float, default=30, help="seconds after which a case is killed (default 30)")
    parser.add_argument("--json", type=Path, default=RESULTS, help=f"results, kept between runs (default {RESULTS})")
    parser.add_argument("--markdown", type=Path, help="write the page of results there")
    arguments = parser.parse_args()
    arguments.system = arguments.system or [PLAIN, OURS]
    return arguments


if __name__ == "__main__":
    main()
