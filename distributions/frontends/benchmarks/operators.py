"""The list of ONNX's operators by backend: which have kernels for CPUs and for GPUs, and what is refused.

For each operator the first of ONNX's own node cases that can be lowered to kernels counts; each is lowered in a process of
its own. Values are another question: `onnx_conformance.py` compares those of CPUs, the tests on emulated GPUs those of GPUs.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import warnings
from collections import defaultdict
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # the parent forks: it must have one thread
os.environ.setdefault("OMP_NUM_THREADS", "1")

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "benchmarks"))  # what all benchmarks share
from _fork_server import run_forked
from _onnx_cases import Case, freeze, load_cases
from _result_page import Page

PAGE = Path(__file__).resolve().parents[3] / "docs" / "operators.md"
AT_ONCE = 12
"""Operators after which the answers are written."""
CASES = 3
"""Cases of an operator that are tried until one can be imported."""


def look_at(case: Case) -> dict[str, Any]:
    """What the backends say of a case: ``cpu`` and ``cuda``, each empty or a reason, and ``slow``."""
    from tvm_sched.relax import load_model
    from tvm_sched.relax.api import model_with_name
    from tvm_sched.relax.gpu_support import check_for_gpus
    from tvm_sched.relax.lower.lower_to_kernels import LowerToKernels
    from tvm_sched_runtime.errors import TvmSchedError

    given, frozen = _given(case), list[str]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        while True:
            try:
                imported = load_model(freeze(case.model, {name: given[name] for name in frozen}))
                LowerToKernels()(model_with_name(imported))
                break
            except TvmSchedError as error:
                asked = [
                    n for n in re.findall(r"--constant '?([^\s=']+)", str(error)) if n in given and n not in frozen
                ]
                if not asked:
                    return {"cpu": _short(str(error)), "cuda": _short(str(error)), "slow": False}
                frozen += asked
        support = check_for_gpus(model_with_name(imported))
    reasons = [f"`{kernel}`: {reason}" if kernel else reason for kernel, reason in support.refused.items()]
    return {"cpu": "", "cuda": _short("; ".join(reasons)), "slow": bool(support.one_thread)}


def _given(case: Case) -> dict[str, Any]:
    initial = {tensor.name for tensor in case.model.graph.initializer}
    fed = [item.name for item in case.model.graph.input if item.name not in initial]
    return dict(zip(fed, case.data()[0], strict=False))


def _short(reason: str) -> str:
    line = " ".join(reason.removeprefix("model: ").split())
    return line if len(line) <= 300 else line[:297] + "..."


def by_operator() -> dict[str, list[str]]:
    """The node cases of each operator, those first whose shapes are fixed."""
    found: dict[str, list[Case]] = defaultdict(list)
    for case in load_cases().values():
        if case.kind == "node" and not case.training and not case.operator.startswith("("):
            found[case.operator].append(case)
    order = {
        name: sorted(cases, key=lambda c: ("expanded" in c.name, not c.fixed, c.name)) for name, cases in found.items()
    }
    return {name: [case.name for case in cases[:CASES]] for name, cases in sorted(order.items())}


def write_page(path: Path, found: dict[str, dict[str, Any]]) -> None:
    """Write the page of all operators."""
    page = Page("Operators by backend", path)
    counts = {
        "kernels for CPUs": sum(not answer["cpu"] for answer in found.values()),
        "kernels for GPUs": sum(not answer["cuda"] for answer in found.values()),
        "of these on one thread of a GPU": sum(not answer["cuda"] and answer["slow"] for answer in found.values()),
    }
    page.text(
        f"All {len(found)} operators for which ONNX's package has node cases, lowered to kernels for the backend `cpu` "
        f"and for the backend `cuda`: of an operator up to {CASES} cases, until one can be lowered. *One thread*: TVM has "
        "no loops for GPUs, and one thread of the GPU runs the kernel, which is right but slow. A reason in place of "
        "*kernels* is what `tvm-sched inspect MODEL --backend cuda` says of such a model. Values: [conformance on the "
        "CPU](results/onnx_conformance.md), [networks on emulated GPUs](results/emulated_gpu.md). Models of PyTorch become "
        "the same kernels."
    )
    page.table(("of the operators", "number"), list(counts.items()), left=1)
    page.table(("operator", "cpu", "cuda"), [_row(name, answer) for name, answer in found.items()], left=3)
    page.write()


def _row(name: str, answer: dict[str, Any]) -> tuple[str, str, str]:
    on_gpus = answer["cuda"] or ("one thread" if answer["slow"] else "kernels")
    return f"`{name}`", answer["cpu"] or "kernels", "as on the CPU" if answer["cpu"] else on_gpus


def main() -> None:
    """Look at all operators, or at those that are named, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("operators", nargs="*", help="only these; prints them, writes no page")
    parser.add_argument("--page", type=Path, default=PAGE)
    parser.add_argument("--json", type=Path, help="answers: new ones are added, known ones are kept")
    parser.add_argument("--jobs", type=int, default=2)
    asked = parser.parse_args()
    cases, wanted = load_cases(), by_operator()
    if asked.operators:
        wanted = {name: names for name, names in wanted.items() if name in asked.operators}
    import tvm_sched.relax.api
    import tvm_sched.relax.gpu_support  # noqa: F401  # what every child needs

    found: dict[str, dict[str, Any]] = {}
    if asked.json and asked.json.exists() and not asked.operators:
        found = {name: answer for name, answer in json.loads(asked.json.read_text()).items() if name in wanted}
    names = [name for name in wanted if name not in found]
    for begin in range(0, len(names), AT_ONCE):
        part = {name: wanted[name] for name in names[begin : begin + AT_ONCE]}
        found |= answers_of(part, cases, asked.jobs)
        if asked.operators:
            for name in part:
                print(name, found[name], flush=True)
        if asked.json:
            asked.json.write_text(json.dumps(found, indent=1))
    if not asked.operators:
        write_page(asked.page, dict(sorted(found.items())))


def _look_at_named(cases: dict[str, Case], names: dict[str, str], name: str) -> dict[str, Any]:
    return look_at(cases[names[name]])


def answers_of(wanted: dict[str, list[str]], cases: dict[str, Case], jobs: int) -> dict[str, dict[str, Any]]:
    """What the backends say of some operators: of each the first case that can be lowered."""
    found: dict[str, dict[str, Any]] = {}
    left = dict(wanted)
    for turn in range(CASES):
        names = {name: tried[turn] for name, tried in left.items() if turn < len(tried)}
        answers = run_forked(partial(_look_at_named, cases, names), list(names), seconds=300, jobs=jobs)
        for name, answer, failure, _ in answers:
            why = _short((failure or "failed").strip().splitlines()[-1])
            answer = answer or {"cpu": why, "cuda": why, "slow": False}
            former = found.get(name)
            if former is None or (former["cpu"] and not answer["cpu"]):
                found[name] = answer
        left = {name: tried for name, tried in left.items() if found[name]["cpu"] or found[name]["cuda"]}
    return found


if __name__ == "__main__":
    main()
