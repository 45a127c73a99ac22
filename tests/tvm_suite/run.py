"""Run TVM's own Relax tests three times and compare: `make test-tvm TVM_SOURCE=/path/to/tvm`.

``plain``: without this package (its entry point is not called). ``rerouted``: what a test compiles for the CPU is compiled
for ``tvm_sched/cpu2`` where that takes it; what it refuses with a clear error is compiled as the test says, and counted.
``installed``: with this package, which must change nothing. A test that passes plain and comes to another end in another way
is a difference, and one that has not run in the other way is not compared: the status is 1 in both cases. Files of which no
test compiles for the CPU are not run rerouted: nothing would differ. Small files come first. Each runs plain and rerouted
before the next, so that an interrupted run can be compared. What has run stands in the record, and a second run goes on;
with a higher limit it also takes the tests that were behind the limit. Nothing is fetched: the checkout has to be there, of
the version of TVM that is installed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
WAYS = {
    "plain": {},
    "rerouted": {"TVM_SCHED_COSTS": "roofline", "TVM_SCHED_NO_CACHE": "1"},
    "installed": {},
}
PASSES = (("plain", "rerouted"), ("installed",))
"""The ways between which all files alternate, in the order of these passes over the files."""
_IMPURE = (
    "calls a function that writes into its argument as if it were pure; nothing reads its result, so it is not called"
)
EXPECTED = {
    "test_vm_build.py::test_vm_compile_simple": _IMPURE,
    "test_vm_build.py::test_vm_compile_without_target_arg": _IMPURE,
    "test_vm_callback_function.py::test_pass_tensor_to_function": _IMPURE,
    "test_vm_build.py::test_vm_compile_unlowered_operator_error": "expects an error for a transposed convolution in NHWC, "
    "which TVM cannot lower and this package can",
    "test_vm_execbuilder.py::test_vm_stack_restore_after_failure": "expects a RuntimeError for an input of another size, as "
    "TVM raises; it raises a ValueError for other wrong inputs, and this package does so for all",
    "test_vm_instrument.py::": "looks at each kernel that the virtual machine calls; a schedule is one call for it",
}
"""Tests that may fail rerouted, by the beginning of their names, and why."""
BATCH = 12
"""Files of one process: its imports take seconds."""
Outcomes = Mapping[str, Mapping[str, Any]]


def run(files: Sequence[Path], root: Path, way: str, record: Path, limit: float) -> None:
    """Run the tests of some files that the record lacks; a test that ends the process costs only itself."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "reroute"]
    command += ["-p", "no:faulthandler", "--continue-on-collection-errors", "--rootdir", str(root)]
    environment = {**os.environ, **WAYS[way], "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path[1:]])}
    environment |= {"TVM_SUITE_WAY": way, "TVM_SUITE_RECORD": str(record), "TVM_SUITE_LIMIT": str(limit)}
    left, output, last = list(files), subprocess.DEVNULL, None
    while left:
        subprocess.run(
            [*command, *map(str, left)], env=environment, cwd=record.parent, stdout=output, stderr=output, check=False
        )
        ended = next(reversed(read(record)[0][way].values()), None)
        if ended is None or ended["outcome"] != "unfinished" or ended == last:  # pytest came to its end, or no further
            break
        last = ended
        left = left[left.index(root / ended["test"].split("::")[0]) :]
    with record.open("a") as lines:
        for file in files:
            lines.write(json.dumps({"way": way, "file": str(file.relative_to(root)), "limit": limit}) + "\n")


def read(record: Path) -> tuple[dict[str, dict[str, dict[str, Any]]], dict[str, dict[str, dict[str, Any]]]]:
    """Return by way what the record says of tests and of files; of a test the last line counts."""
    tests: dict[str, dict[str, dict[str, Any]]] = defaultdict(dict)
    files: dict[str, dict[str, dict[str, Any]]] = defaultdict(dict)
    for each in map(json.loads, record.open() if record.exists() else ()):
        if "test" in each:
            tests[each["way"]][each["test"]] = each
        else:
            files[each["way"]].setdefault(each["file"], {}).update(each)
    return tests, files


def compiling(tests: Mapping[str, Outcomes]) -> set[str]:
    """Return the files of which a test compiles for the CPU."""
    return {name.split("::")[0] for name, each in tests["plain"].items() if "for the CPU" in each.get("calls", ())}


def compare(tests: Mapping[str, Outcomes], files: Mapping[str, Outcomes], way: str) -> dict[str, list[str]]:
    """Sort the tests that pass plain by how they end in another way.

    Returns
    -------
    dict
        Names of tests: ``same`` passed here too; ``expected`` ended differently, as `EXPECTED` says, rerouted; ``different``
        did so without a reason; ``not run`` were not reached; ``nothing`` are in files that compile nothing for the CPU.
    """
    found: dict[str, list[str]] = {kind: [] for kind in ("same", "expected", "different", "not run", "nothing")}
    compiled = compiling(tests)
    for name, each in tests["plain"].items():
        if each["outcome"] == "passed":
            here = tests[way].get(name, {}).get("outcome", "not run")
            if way == "rerouted" and name.split("::")[0] not in compiled:
                kind = "nothing"
            elif here == "not run" and "limit" in files[way].get(name.split("::")[0], ()) and name not in tests[way]:
                kind = "different"  # the file ended without this test
            elif here in ("passed", "not run"):
                kind = "same" if here == "passed" else here
            else:
                kind = "expected" if way == "rerouted" and name.startswith(tuple(EXPECTED)) else "different"
            found[kind].append(name)
    return found


def reason(message: str) -> str:
    """Return the class of a refusal: its message without names, numbers and advice."""
    text = re.sub(r"^(model|binding|main|function) '[^']*': ", "", message.split("; ")[0])
    text = re.sub(r"'[^']*'|\"[^\"]*\"|\(R\.[A-Za-z]*\(?.*\)", "…", text)
    return re.sub(r"\b\w*\d\w*\b", "…", text)[:160]


def page(
    tests: Mapping[str, Outcomes], files: Mapping[str, Outcomes], compared: Mapping[str, Mapping[str, list[str]]],
    chosen: int, of: str,
) -> str:  # fmt: skip
    """Return the result for docs/results."""
    kinds = ("passed", "skipped", "failed", "unfinished", "not run")

    def counts(way: str, within: str = "") -> str:
        found = Counter(each["outcome"] for name, each in tests[way].items() if name.startswith(within))
        return " / ".join(str(found[kind]) for kind in kinds)

    def ran(way: str) -> int:
        return len({name.split("::")[0] for name in tests[way]} | files[way].keys())

    limits = sorted({each["limit"] for way in WAYS for each in files[way].values() if "limit" in each})
    compiled = compiling(tests)
    begun = {
        way: {name.split("::")[0] for name, each in tests[way].items() if each["outcome"] != "not run"} for way in WAYS
    }
    refused: dict[str, list[str]] = defaultdict(list)
    rerouted = 0
    for name, each in tests["rerouted"].items():
        rerouted += each.get("calls", {}).get("rerouted", 0)
        for message in each.get("calls", {}).get("refused", ()):
            refused[reason(message)].append(name)
    lines = [
        "# TVM's own tests", "",
        f"`make test-tvm TVM_SOURCE=...`, with apache-tvm {version('apache-tvm')}; the files are the {chosen} under "
        f"tests/python/relax of {of}. Not in the repository: TVM_SOURCE, a checkout of Apache TVM. Numbers are tests passed "
        "/ skipped / failed / unfinished / not run. An unfinished test ended its process or took twice the time limit of a "
        f"file, which was {_either(limits)} s of processor time. Tests behind the limit, and "
        "those behind a second unfinished test of their file, are not run.", "",
        f"Plain, {ran('plain')} of the {chosen} files have run, and a test compiles for the CPU in {len(compiled)} of them; "
        f"{len(compiled & begun['rerouted'])} of these have run rerouted.", "",
        "| way | files | tests |", "|---|---|---|",
        *(f"| {way} | {ran(way)} | {counts(way)} |" for way in WAYS), "",
        "Of the tests that pass plain:", "",
        "| way | pass here, too | expected to differ | differ | not run here | in files that compile nothing |",
        "|---|---|---|---|---|---|",
        *(f"| {way} | {' | '.join(str(len(names)) for names in found.values())} |" for way, found in compared.items()), "",
        *(f"- {way}: `{name}`" for way, found in compared.items() for name in found["different"]), "",
        "Expected to end differently rerouted:", "",
        *(f"- `{name}` {why}" for name, why in EXPECTED.items()), "",
        "## Refused", "",
        f"Rerouted, {rerouted} modules were compiled by us and {sum(map(len, refused.values()))} were refused, which the "
        "tests then compiled with TVM.", "",
        "| modules | reason | a test |", "|---|---|---|",
        *(f"| {len(names)} | {why.replace('|', chr(92) + '|')} | `{names[0]}` |"
          for why, names in sorted(refused.items(), key=lambda item: (-len(item[1]), item[0]))), "",
        "## Files", "",
        "— stands where no test of a file ran.", "",
        "| file | plain | installed | rerouted |", "|---|---|---|---|",
        *(f"| {name} | {counts('plain', name)}{_told(files['plain'][name])} | "
          f"{' | '.join(counts(way, name) if name in begun[way] else '—' for way in [*WAYS][1:])} |"
          for name in sorted(files["plain"])),
    ]  # fmt: skip
    return "\n".join([*lines, ""])


def _left(batch: Sequence[Path], root: Path, way: str, record: Path, limit: float) -> list[Path]:
    """Return the files of a batch that have not run, or not with this limit and not wholly."""
    tests, files = read(record)
    behind = {name.split("::")[0] for name, each in tests[way].items() if each["outcome"] == "not run"}
    compiled = compiling(tests)
    names = {file: str(file.relative_to(root)) for file in batch}
    return [
        file
        for file, name in names.items()
        if (way != "rerouted" or name in compiled)
        and files[way].get(name, {}).get("limit", 0) < (limit if name in behind else 1e-9)
    ]


def _either(limits: Sequence[float]) -> str:
    """Return limits as words: `30, 60 or 300`."""
    *others, last = (f"{limit:g}" for limit in limits)
    return f"{', '.join(others)} or {last}" if others else last


def _told(entry: Mapping[str, Any]) -> str:
    """Return why a file could not be imported; nothing where its tests ran."""
    said = re.sub(r"^E +| \(/.*", "", entry.get("said") or "")  # without paths of the machine
    return f" ({said[:80].replace('|', ' ')})" if said else ""


def main() -> int:
    """Run all; returns the exit status."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--source", default=os.environ.get("TVM_SOURCE"), help="checkout of TVM (or TVM_SOURCE)")
    arguments.add_argument("--files", default="test_*.py", help="pattern of the files' names (default: %(default)s)")
    arguments.add_argument(
        "--limit", type=float, default=120, help="processor time in seconds for a file (default: %(default)s)"
    )
    arguments.add_argument("--record", type=Path, default=Path("build/tvm_tests.jsonl"), metavar="FILE",
                           help="what ran, lines of JSON (default: %(default)s); remove it to begin anew")  # fmt: skip
    arguments.add_argument("--markdown", type=Path, metavar="FILE", help="write a page of results there")
    arguments.add_argument("--page-only", action="store_true", help="run nothing: compare what the record has")
    options = arguments.parse_args()
    root = (Path(options.source or "") / "tests" / "python" / "relax").resolve()
    if not options.source or not root.is_dir():
        print(f"there is no {root}: name a checkout of TVM by TVM_SOURCE or --source", file=sys.stderr)
        return 2
    record = options.record.resolve()
    record.parent.mkdir(parents=True, exist_ok=True)
    lines = record.read_text().splitlines(keepends=True) if record.exists() else []
    if lines and json.loads(lines[-1]).get("outcome") == "unfinished":  # this was interrupted, not ended by its test
        record.write_text("".join(lines[:-1]))
    chosen = sorted(
        root.rglob(options.files), key=lambda file: ("torch" in file.read_text(), file.stat().st_size, file)
    )
    for ways in () if options.page_only else PASSES:
        for first in range(0, len(chosen), BATCH):
            for way in ways:
                left = _left(chosen[first : first + BATCH], root, way, record, options.limit)
                if left:
                    run(left, root, way, record, options.limit)
    tests, files = read(record)
    if "passed" not in {each["outcome"] for each in tests["plain"].values()}:
        print("no test passes plain, so nothing can be compared: is the checkout of TVM's version?", file=sys.stderr)
        return 2
    for way in WAYS:
        found = Counter(each["outcome"] for each in tests[way].values())
        print(f"{way}: {', '.join(f'{count} {kind}' for kind, count in sorted(found.items()))}", flush=True)
    compared = {way: compare(tests, files, way) for way in WAYS if way != "plain"}
    for way, found in compared.items():
        for name in found["different"]:
            print(f"{way}: {name} is {tests[way].get(name, {}).get('outcome', 'not there')}, and passes plain")
        if missing := found["not run"]:
            count = len({name.split("::")[0] for name in missing})
            print(f"{way}: {len(missing)} tests of {count} files pass plain and were not run: go on, or raise --limit")
    if options.markdown:
        head = subprocess.run(
            ["git", "-C", root, "log", "-1", "--format=%h of %cs"], capture_output=True, text=True, check=False
        )
        options.markdown.write_text(
            page(tests, files, compared, len(chosen), f"commit {head.stdout.strip()}" if head.stdout else "a checkout")
        )
    return int(any(found["different"] or found["not run"] for found in compared.values()))


if __name__ == "__main__":
    sys.exit(main())
