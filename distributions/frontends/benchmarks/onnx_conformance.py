"""ONNX's own conformance cases through plain TVM and through this package: right, refused, wrong, failed.

``--system open`` makes each size of an input a symbol before this package compiles the case.

Each case runs in a process of its own, with a limit. Results go to a JSON file as they come; a run that finds the file
takes up where it ended, or runs again what is selected by ``--again``.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # the parent forks: it must have one thread
os.environ.setdefault("OMP_NUM_THREADS", "2")
os.environ.setdefault("TVM_SCHED_COSTS", "roofline")  # values are compared, not times: no kernel has to be measured

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "benchmarks"))  # what all benchmarks share
from _fork_server import run_forked, write_results
from _onnx_cases import OPEN, OURS, PLAIN, Case, load_cases, run_case
from _result_page import Page

RESULTS = Path("onnx_conformance.json")
STATUSES = ("right", "wrong", "refused", "failed")
REASONS = {
    "text is no type of TVM": r"string|`object`|dtype object|StringNormalizer|StringConcat|StringSplit|RegexFullMatch|TfIdf",
    "no converter of the operator": r"does not know the operators",
    "a sequence or an optional value as an input of the model": r"of the kind (sequence|optional)",
    "a shape or size that depends on data": r"depends on data|known only when the model runs|cannot be scheduled|--constant",
    "types that the kernels do not compute in": r"types are |dtype|unknown type|zero_point|quantiz",
    "values that are random": r"random",
}
"""Classes of refusals, by what the message says; the first that fits counts."""


def write_page(path: Path, cases: dict[str, Case], results: dict[str, Any], total: int) -> None:
    """Write the page of the cases with results; ``total`` counts all cases."""
    cases = {name: case for name, case in cases.items() if {PLAIN, OURS} <= results.get(name, {}).keys()}
    page = Page("ONNX conformance", path)
    page.text(
        "Every node case that the package onnx generates, and the models that it ships, through plain TVM (`llvm`) and "
        "through this package (`tvm_sched/cpu2`, scheduler `heft`, costs `roofline`), each in a process of its own. "
        "The comparison is that "
        "of ONNX's backend test (types, shapes, values within 1e-3); float16 may differ by two units in the last place, "
        "as the backend test allows bfloat16, and float32 by two of the largest value. `right` counts cases that run as "
        "they are, and, in brackets beside it, those among them that need inputs frozen (`--constant`), which is what the "
        "message of the refusal says to do: shapes and axes have to be known when a model is compiled."
    )
    page.text(f"{len(cases)} of {total} cases{'' if len(cases) == total else '; the others are not counted'}.")
    page.table(("aim", "reached"), _aims(cases, results), left=2)
    page.table(("cases", "system", "number", *STATUSES), _totals(cases, results), left=2)
    page.text("## What is refused, and why")
    page.table(("reason", "cases", "operators"), _refusals(cases, results), left=3)
    page.text("## By operator")
    page.text("A case of an operator's definition by others (`_expanded`) counts for the operator.")
    head = (
        "operator",
        "cases",
        *(f"{who} {what}" for who in ("TVM", "ours") for what in STATUSES[:3]),
        "refused by, and why",
    )
    rows = list(_operators(cases, results))
    page.data(head, rows)
    page.text("Those of which some cases are not right:")
    page.table(head, [row for row in rows if row[-1]])
    if found := [(n, results[n][OURS]) for n in cases if _status(results, n, OURS) in ("wrong", "failed")]:
        page.text("## Wrong or failed")
        page.text(*(f"- `{name}`: {answer['status']}, {_short(answer['reason'])}" for name, answer in found))
    page.write()


def _status(results: dict[str, Any], name: str, system: str) -> str:
    return results[name].get(system, {}).get("status", "not run")


def _aims(cases: dict[str, Case], results: dict[str, Any]) -> Iterator[tuple[str, str]]:
    fixed = [n for n, case in cases.items() if case.fixed and not case.training]
    right = sum(_status(results, n, OURS) == "right" for n in fixed)
    wrong = sum(_status(results, n, OURS) == "wrong" for n in cases)
    failed = sum(_status(results, n, OURS) == "failed" for n in cases)
    lost = [n for n in cases if _status(results, n, PLAIN) == "right" and _status(results, n, OURS) != "right"]
    share = right / max(1, len(fixed))
    yield "no case is wrong", f"{wrong} wrong"
    yield "what plain TVM gets right is right", f"{len(lost)} are not: {', '.join(lost[:40]) or 'none'}"
    yield "80 % of the cases with fixed shapes, training left out", f"{right} of {len(fixed)}: {share:.0%}"
    yield "every refusal is a message, never a traceback", f"{failed} end otherwise"


def _totals(cases: dict[str, Case], results: dict[str, Any]) -> Iterator[tuple[object, ...]]:
    groups = {
        "all": list(cases),
        "fixed shapes, no training": [n for n, c in cases.items() if c.fixed and not c.training],
        "shapes that depend on data, text, sequences": [n for n, c in cases.items() if not c.fixed and not c.training],
        "training": [n for n, c in cases.items() if c.training],
        "held-out half by name": [n for n, c in cases.items() if c.half == "held-out"],
    }
    for title, names in groups.items():
        for system in (PLAIN, OURS):
            count = Counter(_status(results, n, system) for n in names)
            yield title, system, len(names), _right(results, names, system), *(count[s] for s in STATUSES[1:])


def _right(results: dict[str, Any], names: list[str], system: str) -> str:
    right = [n for n in names if _status(results, n, system) == "right"]
    frozen = sum(bool(results[n][system].get("frozen")) for n in right)
    return f"{len(right)}" + (f" ({frozen})" if frozen else "")


def _refusals(cases: dict[str, Case], results: dict[str, Any]) -> Iterator[tuple[str, int, str]]:
    count: Counter[str] = Counter()
    operators: dict[str, Counter[str]] = defaultdict(Counter)
    for name, case in cases.items():
        answer = results[name].get(OURS, {})
        if answer.get("status") == "refused":
            reason = _class(answer["reason"])
            count[reason] += 1
            operators[reason][case.operator] += 1
    for reason, number in count.most_common():
        yield reason, number, ", ".join(f"{operator} {n}" for operator, n in operators[reason].most_common())


def _class(reason: str) -> str:
    return next((title for title, pattern in REASONS.items() if re.search(pattern, reason)), "other")


def _operators(cases: dict[str, Case], results: dict[str, Any]) -> Iterator[tuple[object, ...]]:
    for operator in sorted({case.operator for case in cases.values()}):
        names = [name for name, case in cases.items() if case.operator == operator]
        cells = []
        for system in (PLAIN, OURS):
            count = Counter(_status(results, n, system) for n in names)
            cells += [_right(results, names, system), str(count["wrong"]), str(count["refused"] + count["failed"])]
        reasons = Counter(
            _short(results[n][OURS]["reason"]) for n in names if _status(results, n, OURS) in ("refused", "failed")
        )
        told = "; ".join(f"{text} ({n})" for text, n in reasons.most_common(2))
        yield operator, len(names), *cells, told


def _short(reason: str) -> str:
    """Return the message without the names that differ from case to case."""
    by = "TVM: " if "TVM" in reason else "tvm_sched: "
    text = reason.strip().splitlines()[-1]
    text = re.sub(r"\(node '[^']*'\)|'[^']*'", "", text.replace("TVM's", "TVM").replace("ONNX's", "ONNX"))
    return by + re.sub(r"\s+", " ", text).replace("|", "/").strip()[:160]


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
            write_results(arguments.json, results)
            print(f"{done} of {len(wanted)}", flush=True)
    if arguments.json:
        write_results(arguments.json, results)


def warm_up() -> None:
    """Import and compile once what every child needs."""
    import onnx.backend.test.runner
    import tvm
    from tvm.relax.frontend.onnx import from_onnx

    from tvm_sched.relax import compile

    names = [onnx.helper.make_tensor_value_info(name, 1, [3]) for name in "xy"]
    graph = onnx.helper.make_graph([onnx.helper.make_node("Exp", ["x"], ["y"])], "g", names[:1], names[1:])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 13)])
    tvm.compile(from_onnx(model), target="llvm")
    compile(model, "cpu2", "heft")


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
    parser.add_argument("--system", action="append", choices=(OURS, PLAIN, OPEN), help="through this one only")
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
