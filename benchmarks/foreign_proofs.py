"""Which bounds of the benchmark a checker that others wrote verifies, and what proofs of large problems cost.

For each instance with a best known solution: what decides its bound, the certificate of `benchmarks/vipr` if there is one,
and what viprchk says of it and of the same certificate with a claim that is 1 ns higher.
"""

from __future__ import annotations

import fnmatch
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from time import process_time
from typing import Any, NamedTuple

import vipr
from _common import parser
from _result_page import Page

from tvm_sched.bounds.schedule_evidence import evidence
from tvm_sched.schedulers import solve
from tvm_sched_bench import BestKnown, load_suite
from tvm_sched_bench.testing.hios_problems import random_layered
from tvm_sched_check import check

SUITE = Path(__file__).parent / "instances"
FOREIGN = "verified"
HEAD = (
    "instance",
    "decides",
    "bound",
    "our checker",
    "of it by viprchk",
    "left out",
    "MB",
    "s to write",
    "viprchk",
    "+ 1 ns",
)
WIDTHS = ((1_000, 8), (2_000, 16), (5_000, 32), (10_000, 64))
"""Operators and devices of the large problems."""

MEASURED = """
import resource, subprocess, sys
status = subprocess.run(sys.argv[1:], capture_output=True).returncode
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(status, used.ru_utime + used.ru_stime, used.ru_maxrss)
"""
"""Run a command in a small process, since a child's largest memory counts what its parent had."""


class Run(NamedTuple):
    """Exit status, processor seconds and MiB of a command."""

    status: int
    seconds: float
    mib: int


def measured(*command: str | Path) -> Run:
    """Run a command."""
    line = [sys.executable, "-S", "-c", MEASURED, *map(str, command)]
    status, seconds, kib = subprocess.run(line, capture_output=True, text=True, check=True).stdout.split()
    return Run(int(status), float(seconds), int(kib) // 1024)


def verdicts(checker: str, certificate: Path, bound: int) -> tuple[str, str]:
    """Return what the checker says of a certificate, and of one that claims 1 ns more."""
    said = []
    for claimed in (bound, bound + 1):
        raised = certificate.with_suffix(".claim")
        raised.write_text(certificate.read_text().replace(f"RTP range {bound} inf", f"RTP range {claimed} inf"))
        said.append(FOREIGN if measured(checker, raised).status == 0 else "refused")
    return said[0], said[1]


def row(case: Any, kept: BestKnown, checker: str, folder: Path) -> tuple[object, ...]:
    """Return a line of the table."""
    known = kept.of(case)
    assert known is not None
    ours = "cost alone" if known.checked.endswith("alone") else "proved" if known.checked else "not covered"
    start = case.name, known.bound_by, f"{known.bound:.12g}", ours
    if case.kind.name != "latency" or (document := kept.evidence(case)) is None:
        return *start, "none", "", "", "", "", ""
    problem, argument, certificate = (folder / name for name in ("problem.json", "evidence.json", "bound.vipr"))
    case.task.problem.save(problem)
    argument.write_bytes(document)
    before = process_time()
    made = vipr.write(problem, argument, certificate)
    seconds = process_time() - before
    share = f"{made.proved_ns / made.evidence_ns:.2%}"
    size = f"{certificate.stat().st_size / 1e6:.2f}"
    return *start, share, made.left_out, size, f"{seconds:.2f}", *verdicts(checker, certificate, made.proved_ns)


def large(operators: int, devices: int, checker: str, folder: Path) -> tuple[object, ...]:
    """Return a line on a large problem: what writing and checking its proofs takes."""
    problem = random_layered(0, operators=operators, layers=operators // 14, edges=2 * operators).problem(
        devices, concurrency=False
    )
    schedule = solve(problem, method="heft")
    files = [folder / name for name in ("problem.json", "schedule.json", "evidence.json", "bound.vipr")]
    problem.save(files[0])
    schedule.save(files[1])
    before = process_time()
    evidence(problem).save(files[2])
    found = process_time() - before
    assert check(*files[:3]).proved_ns
    module = [sys.executable, "-m", "tvm_sched_check"]
    ours, writing = measured(*module, *files[:3]), measured(sys.executable, vipr.__path__[0], files[0], *files[2:])
    theirs = measured(checker, files[3])
    sizes = f"{files[2].stat().st_size / 1e3:.1f}", f"{files[3].stat().st_size / 1e6:.2f}"
    figures = [f"{run.seconds:.1f} s, {run.mib} MiB" for run in (ours, writing, theirs)]
    said = FOREIGN if theirs.status == 0 else "REFUSED"
    return (
        f"{operators} on {devices}",
        f"{found:.1f}",
        sizes[0],
        figures[0],
        figures[1],
        sizes[1],
        f"{figures[2]}, {said}",
    )


def instances(checker: str, pattern: str, note: str, path: Path | None, kept_rows: Path | None) -> None:
    """Write the page on the instances of the benchmark. Rows that an interrupted run has kept are not made again."""
    suite, rows = load_suite(SUITE), list[Sequence[object]]()
    kept = BestKnown(suite)
    lines = kept_rows.read_text().splitlines() if kept_rows is not None and kept_rows.exists() else []
    known = {each[0]: each for each in map(json.loads, lines)}
    with tempfile.TemporaryDirectory() as folder:
        for case in suite.cases:
            if kept.of(case) is not None and fnmatch.fnmatch(case.name, pattern):
                rows.append(known.get(case.name) or row(case, kept, checker, Path(folder)))
                if kept_rows is not None and case.name not in known:
                    with kept_rows.open("a") as file:
                        print(json.dumps(rows[-1]), file=file)
                print(*rows[-1], file=sys.stderr)
    of = Counter(each[3] for each in rows)
    foreign = [each for each in rows if each[8] == FOREIGN]
    whole = sum(each[4] == "100.00%" for each in foreign)
    least = min((float(str(each[4])[:-1]) for each in foreign), default=100.0)
    proved, alone, higher = of["proved"], of["cost alone"], sum(each[9] == "refused" for each in foreign)
    page = Page("Bounds that viprchk verifies", path)
    page.text(
        f"Of the {len(rows)} instances of [the benchmark](benchmark.md) with a best known solution, our checker proves the",
        f"bounds of {proved}; of {alone} it verifies the solution's cost alone. {len(foreign)} are bounds of schedules with",
        "a [certificate for viprchk](../proofs/vipr.md), which viprchk verifies. It refuses",
        f"{higher} of {len(foreign)} with a claim that is 1 ns higher. {whole} prove all of the bound,",
        f"the weakest {least:.1f} % of it. Seconds are of processor time. {note}",
    )
    page.table(HEAD, rows)
    page.write()


def large_problems(checker: str, note: str, path: Path | None) -> None:
    """Write the page on large problems."""
    with tempfile.TemporaryDirectory() as folder:
        rows = [large(operators, devices, checker, Path(folder)) for operators, devices in WIDTHS]
    page = Page("Proofs of large problems", path)
    page.text(
        "Random layered graphs as HIOS makes them, without concurrency. The columns say what finding the evidence takes,",
        "and the processor seconds and largest memory of our checker, of `benchmarks/vipr` and of viprchk, each in a",
        f"process of its own. {note}",
    )
    head = ("operators on devices", "s to find", "evidence, kB", "our checker", "writes VIPR", "VIPR, MB", "viprchk")
    page.table(head, rows)
    page.write()


def main() -> None:
    """Write a page."""
    arguments = parser(__doc__)
    arguments.add_argument("--viprchk", default="viprchk", metavar="FILE", help="the checker")
    arguments.add_argument("--note", default="", metavar="TEXT", help="what the page says of the checker")
    arguments.add_argument("--only", default="*", metavar="PATTERN", help="instances by name")
    arguments.add_argument("--large", action="store_true", help="the page on large problems")
    arguments.add_argument(
        "--rows", type=Path, metavar="FILE", help="keep rows there; a run that is started again goes on"
    )
    options = arguments.parse_args()
    if options.large:
        large_problems(options.viprchk, options.note, options.markdown)
    else:
        instances(options.viprchk, options.only, options.note, options.markdown, options.rows)


if __name__ == "__main__":
    main()
