"""Run some of TVM's own Relax tests three times and compare: `make test-tvm TVM_SOURCE=/path/to/tvm`.

``plain``: without this package (its entry point is not called). ``installed``: with it, which must change nothing.
``rerouted``: what a test compiles for the CPU is compiled for ``tvm_sched/cpu2`` where that takes it; what it refuses with a
clear error is compiled as the test says, and counted. A test that passes plain and fails in another way is a difference,
and the status is 1. Nothing is fetched: the checkout has to be there, of the version of TVM that is installed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).parent
TESTS = (
    "test_backend_dispatch_sort_scan.py",
    "test_bind_params.py",
    "test_bind_symbolic_vars.py",
    "test_blockbuilder_core.py",
    "test_blockbuilder_emit_te.py",
    "test_e2e_op_dynamic.py",
    "test_frontend_nn_exporter.py",
    "test_op_nn.py",
    "test_pipeline.py",
    "test_relax_operators.py",
    "test_runtime_builtin.py",
    "test_transform.py",
    "test_transform_fuse_ops.py",
    "test_transform_legalize_ops.py",
    "test_vm_build.py",
    "test_vm_execbuilder.py",
    "test_vm_instrument.py",
)
"""Of ``tests/python/relax``: what builds, runs or transforms modules with no more than a CPU."""
WAYS = {
    "plain": {"TVM_DEVICE_BACKEND_AUTOLOAD": "0"},
    "installed": {},
    "rerouted": {"TVM_SCHED_COSTS": "roofline", "TVM_SCHED_NO_CACHE": "1"},
}
EXPECTED = {
    "test_vm_build::test_vm_compile_unlowered_operator_error": "expects an error for a transposed convolution in NHWC, "
    "which TVM cannot lower and this package can",
    "test_vm_instrument::": "looks at each kernel that the virtual machine calls; a schedule is one call for it",
}
"""Tests that may fail rerouted, by the beginning of their names, and why."""
Outcomes = dict[str, str]


def run(files: list[Path], way: str, folder: Path) -> Outcomes:
    """The outcome of each test, by its name: passed, skipped or failed."""
    report = folder / f"{way}.xml"
    plugin = ["-p", "reroute"] if way == "rerouted" else []
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *plugin]
    command += ["--continue-on-collection-errors", f"--junit-xml={report}", "--rootdir", str(files[0].parent)]
    environment = {**os.environ, **WAYS[way], "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path[1:]])}
    done = subprocess.run(
        [*command, *map(str, files)], env=environment, cwd=folder, capture_output=True, text=True, check=False
    )
    if not report.exists():
        sys.exit(
            f"{way}: pytest wrote no report (status {done.returncode})\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
        )
    said = [line for line in done.stdout.splitlines() if line.startswith("tvm_sched:")]
    print(f"{way}: {done.stdout.strip().splitlines()[-1]}", *said, sep="\n  ", flush=True)
    found: Outcomes = {}
    for case in ElementTree.parse(report).iter("testcase"):
        kinds = {child.tag for child in case}
        outcome = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
        found[f"{case.get('classname')}::{case.get('name')}"] = outcome
    return found


def differences(plain: Outcomes, other: Outcomes, expected: Iterable[str] = ()) -> list[str]:
    """Tests that passed plain and do not now, but for those whose names begin with an expected one."""
    found = [name for name, outcome in plain.items() if outcome == "passed" and other.get(name) != "passed"]
    return [name for name in found if not name.startswith(tuple(expected))]


def page(outcomes: dict[str, Outcomes], wrong: dict[str, list[str]], absent: list[str]) -> str:
    """The result for docs/results."""
    lines = [
        "# TVM's own tests", "",
        f"`make test-tvm TVM_SOURCE=...`, with apache-tvm {version('apache-tvm')}. Of `tests/python/relax`: "
        f"{', '.join(f'`{name}`' for name in TESTS if name not in absent)}.", "",
        "| | passed | skipped | failed | passed plain, and not here |", "|---|---|---|---|---|",
    ]  # fmt: skip
    for way, found in outcomes.items():
        counts = [sum(outcome == kind for outcome in found.values()) for kind in ("passed", "skipped", "failed")]
        lines.append(f"| {way} | {counts[0]} | {counts[1]} | {counts[2]} | {len(wrong.get(way, ()))} |")
    lines += ["", "Expected to fail rerouted, and not counted in the last column:", ""]
    lines += [f"- `{name}` {why}" for name, why in EXPECTED.items()]
    if absent:
        lines += ["", f"Not in this checkout: {', '.join(absent)}."]
    return "\n".join([*lines, ""])


def main() -> int:
    """Run all; returns the exit status."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--source", default=os.environ.get("TVM_SOURCE"), help="checkout of TVM (or TVM_SOURCE)")
    arguments.add_argument("--markdown", type=Path, metavar="FILE", help="write a page of results there")
    options = arguments.parse_args()
    folder = Path(options.source or "") / "tests" / "python" / "relax"
    if not options.source or not folder.is_dir():
        print(f"there is no {folder}: name a checkout of TVM by TVM_SOURCE or --source", file=sys.stderr)
        return 2
    absent = [name for name in TESTS if not (folder / name).is_file()]
    files = [(folder / name).resolve() for name in TESTS if name not in absent]
    if not files:
        print(f"{folder}: holds none of {', '.join(TESTS)}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as made:
        outcomes = {"plain": run(files, "plain", Path(made))}
        if "passed" not in outcomes["plain"].values():
            print(
                "no test passes plain, so nothing can be compared: is the checkout of TVM's version?", file=sys.stderr
            )
            return 2
        outcomes |= {way: run(files, way, Path(made)) for way in WAYS if way != "plain"}
    allowed = {"installed": (), "rerouted": tuple(EXPECTED)}
    wrong = {way: differences(outcomes["plain"], outcomes[way], names) for way, names in allowed.items()}
    for way, names in wrong.items():
        for name in names:
            print(f"{way}: {name} is {outcomes[way].get(name, 'not there')}, and passes plain")
    if options.markdown:
        options.markdown.write_text(page(outcomes, wrong, absent))
    return int(any(wrong.values()))


if __name__ == "__main__":
    sys.exit(main())
