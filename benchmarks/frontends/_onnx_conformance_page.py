"""The page of conformance results: aims beside what was reached, a line an operator, refusals by reason."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from _common import circumstances
from _onnx_cases import OURS, PLAIN, Case

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
    """Write the page for those cases, of ``total``, of which there are results."""
    cases = {name: case for name, case in cases.items() if {PLAIN, OURS} <= results.get(name, {}).keys()}
    lines = [
        "# ONNX conformance", "", *circumstances(), "",
        "Every node case that the package onnx generates, and the models that it ships, through plain TVM (`llvm`) and "
        "through this package (`tvm_sched/cpu2`, scheduler `heft`, costs `roofline`), each in a process of its own. "
        "The comparison is that "
        "of ONNX's backend test (types, shapes, values within 1e-3); float16 may differ by two units in the last place, "
        "as the backend test allows bfloat16, and float32 by two of the largest value. `right` counts cases that run as "
        "they are, and, in brackets beside it, those among them that need inputs frozen (`--constant`), which is what the "
        "message of the refusal says to do: shapes and axes have to be known when a model is compiled.", "",
        f"{len(cases)} of {total} cases{'' if len(cases) == total else '; the others are not counted'}.", "",
        *_aims(cases, results), "", *_totals(cases, results), "", *_refusals(cases, results), "",
        *_operators(cases, results), "", *_details(cases, results),
    ]  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")


def _status(results: dict[str, Any], name: str, system: str) -> str:
    return results[name].get(system, {}).get("status", "not run")


def _aims(cases: dict[str, Case], results: dict[str, Any]) -> list[str]:
    fixed = [n for n, case in cases.items() if case.fixed and not case.training]
    right = sum(_status(results, n, OURS) == "right" for n in fixed)
    wrong = sum(_status(results, n, OURS) == "wrong" for n in cases)
    failed = sum(_status(results, n, OURS) == "failed" for n in cases)
    lost = [n for n in cases if _status(results, n, PLAIN) == "right" and _status(results, n, OURS) != "right"]
    share = right / max(1, len(fixed))
    return [
        "| aim | reached |",
        "|---|---|",
        f"| no case is wrong | {wrong} wrong |",
        f"| what plain TVM gets right is right | {len(lost)} are not: {', '.join(lost[:40]) or 'none'} |",
        f"| 80 % of the cases with fixed shapes, training left out | {right} of {len(fixed)}: {share:.0%} |",
        f"| every refusal is a message, never a traceback | {failed} end otherwise |",
    ]


def _totals(cases: dict[str, Case], results: dict[str, Any]) -> list[str]:
    lines = ["| cases | system | number | right | wrong | refused | failed |", "|---|---|---|---|---|---|---|"]
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
            lines.append(f"| {title} | {system} | {len(names)} | {_right(results, names, system)} | "
                         + " | ".join(str(count[s]) for s in STATUSES[1:]) + " |")  # fmt: skip
    return lines


def _right(results: dict[str, Any], names: list[str], system: str) -> str:
    right = [n for n in names if _status(results, n, system) == "right"]
    frozen = sum(bool(results[n][system].get("frozen")) for n in right)
    return f"{len(right)}" + (f" ({frozen})" if frozen else "")


def _refusals(cases: dict[str, Case], results: dict[str, Any]) -> list[str]:
    count: Counter[str] = Counter()
    operators: dict[str, Counter[str]] = defaultdict(Counter)
    for name, case in cases.items():
        answer = results[name].get(OURS, {})
        if answer.get("status") == "refused":
            reason = _class(answer["reason"])
            count[reason] += 1
            operators[reason][case.operator] += 1
    lines = ["## What is refused, and why", "", "| reason | cases | operators |", "|---|---|---|"]
    for reason, number in count.most_common():
        named = ", ".join(f"{operator} {n}" for operator, n in operators[reason].most_common())
        lines.append(f"| {reason} | {number} | {named} |")
    return lines


def _class(reason: str) -> str:
    return next((title for title, pattern in REASONS.items() if re.search(pattern, reason)), "other")


def _operators(cases: dict[str, Case], results: dict[str, Any]) -> list[str]:
    lines = [
        "## By operator", "",
        "A case of an operator's definition by others (`_expanded`) counts for the operator.", "",
        "| operator | cases | TVM right | wrong | refused | ours right | wrong | refused | refused by, and why |",
        "|---|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
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
        lines.append(f"| {operator} | {len(names)} | {' | '.join(cells)} | {told} |")
    return lines


def _short(reason: str) -> str:
    """The message without the names that differ from case to case."""
    by = "TVM: " if "TVM" in reason else "tvm_sched: "
    text = reason.strip().splitlines()[-1]
    text = re.sub(r"\(node '[^']*'\)|'[^']*'", "", text.replace("TVM's", "TVM").replace("ONNX's", "ONNX"))
    return by + re.sub(r"\s+", " ", text).replace("|", "/").strip()[:160]


def _details(cases: dict[str, Case], results: dict[str, Any]) -> list[str]:
    found = [(n, results[n][OURS]) for n in cases if _status(results, n, OURS) in ("wrong", "failed")]
    if not found:
        return []
    lines = ["## Wrong or failed", ""]
    return lines + [f"- `{name}`: {answer['status']}, {_short(answer['reason'])}" for name, answer in found]
