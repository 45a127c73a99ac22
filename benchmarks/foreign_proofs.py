"""How much of the bounds of schedules a checker that others wrote verifies.

For each instance of the suite whose bound has evidence: the certificate of `tvm-sched prove`, and what viprchk says of it.
"""

from __future__ import annotations

import fnmatch
import subprocess
import sys
import tempfile
from pathlib import Path
from time import process_time

from _common import parser
from _result_page import Page

from tvm_sched.bounds.schedule_evidence import evidence
from tvm_sched.problem import Problem
from tvm_sched_bench import load_suite
from tvm_sched_check import vipr

SUITE = Path(__file__).parent / "instances"


def row(name: str, problem: Problem, checker: str) -> tuple[object, ...]:
    """Return a line of the table: shares and sizes."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / each for each in ("problem.json", "evidence.json", "bound.vipr")]
        problem.save(paths[0])
        evidence(problem).save(paths[1])
        before = process_time()
        made = vipr.write(*paths)
        seconds, size = process_time() - before, paths[2].stat().st_size / 1e6
        verdict = subprocess.run([checker, paths[2]], capture_output=True, check=False).returncode
    said = "verified" if verdict == 0 else "REFUSED"
    share = made.proved_ns / made.evidence_ns
    return name, made.evidence_ns, f"{share:.2%}", made.left_out, f"{size:.2f}", f"{seconds:.2f}", said


def main() -> None:
    """Write the page."""
    arguments = parser(__doc__)
    arguments.add_argument("--viprchk", default="viprchk", metavar="FILE", help="the checker")
    arguments.add_argument("--note", default="", metavar="TEXT", help="what the page says of the checker")
    arguments.add_argument("--only", default="*", metavar="PATTERN", help="instances by name")
    options = arguments.parse_args()
    rows = []
    for case in load_suite(SUITE).cases:
        if case.kind.name != "latency" or not fnmatch.fnmatch(case.name, options.only):
            continue
        run = case.task
        if run.problem.costs.concurrency is None and not run.resident:
            rows.append(row(case.name, run.problem, options.viprchk))
            print(*rows[-1], file=sys.stderr)
    page = Page("Bounds that viprchk verifies", options.markdown)
    whole = sum(each[2] == "100.00%" for each in rows)
    page.text(
        f"[Certificates](../proofs/vipr.md) of {len(rows)} instances of [the benchmark](benchmark.md): one cold run, one",
        f"operator at a time on a device. {whole} prove all of the bound that the evidence proves,",
        f"the weakest {min((float(each[2][:-1]) for each in rows), default=100.0):.1f} % of it. {options.note}",
    )
    head = ("instance", "bound, ns", "of it by viprchk", "lemmas left out", "MB", "s to write (CPU)", "viprchk")
    page.table(head, rows)
    page.write()


if __name__ == "__main__":
    main()
