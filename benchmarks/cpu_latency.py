"""Latency of networks on this machine's cores: ours, ONNX Runtime, OpenVINO, PyTorch eager and Inductor, batch 1.

Every method has the same number of threads and a process of its own; while one is measured the others are stopped. The
processes take turns in several rounds, so that other work on the machine meets all of them. A figure is the median of all
runs with the 10th and 90th percentile. First output is the time from the start of the process, with the interpreter and all
imports, to the first result: ours loads a compiled artifact, OpenVINO its own cache, ONNX Runtime the ONNX file, PyTorch an
exported program (Inductor with its cache of kernels). Memory is the most that the process had. Results are compared with
PyTorch's, or ONNX Runtime's for ONNX files.

Ours is compiled for ``cpu``: the better of one stream and parallel operators, as measured by the compiler; with
``--quick``, and besides, for one stream (``cpu1``), which does not depend on how busy the machine is meanwhile. Exported
models, artifacts and caches of the peers are kept (``--cache``), so that a second run only measures: make them ready with
``--prepare``. A file given to ``--resume`` keeps the rows; networks that stand in it with all methods are left out, but for
those that ``--again`` asks for.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import select
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from _common import parser
from _cpu_models import HALVES, SETS, Case, cases, sample
from _cpu_page import MINE, page, word
from _cpu_worker import KERNELS, METHODS

HERE = Path(__file__).parent
NEEDS = {"ONNX Runtime": "onnxruntime", "OpenVINO": "openvino", "eager": "torch", "Inductor": "torch"}
FILES = {"ONNX Runtime": "onnx", "OpenVINO": "onnx", "eager": "torch", "Inductor": "torch"}
TOPOLOGIES = {"ours": "cpu", "ours, one stream": "cpu1"}
CACHES = {"OpenVINO": "openvino", "Inductor": "inductor"}
"""Folders that peers keep what they compiled in."""
QUICK = ("ONNX Runtime", "OpenVINO", "eager", "ours, one stream")
TOLERANCE = 1e-3
DISTURBED = 1.5
"""90th over 10th percentile, of ours or of the fastest peer, from which on something else was running."""
Cell = dict[str, Any]
_SAMPLED = """{} of the selected networks are measured: alternately from each set and kind, in the order of a hash of their
names, none of more than 64 million parameters (`_cpu_models.sample`)."""
_AGAIN = """Networks of which ours or the fastest peer had a 90th percentile above {} times the 10th were measured again with
all methods, up to {} times; of all attempts the one with the least such spread stands, whatever it says. {} of {} were."""


def fingerprint() -> str:
    """Says which version of our sources and libraries compiled an artifact."""
    packages = [HERE.parent / "python" / name for name in ("tvm_sched", "tvm_sched_runtime")]
    digest = hashlib.sha256()
    for file in sorted(file for package in packages for end in ("py", "so") for file in package.rglob(f"*.{end}")):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


class Bench:
    """Prepares networks and measures them.

    Parameters
    ----------
    cache : Path
        Where exported models and artifacts are kept, a folder a network.
    threads : int
    seconds, rounds : float, int
        How long a method is measured in all, in how many turns.
    limit : float
        Seconds that a network's export, a compilation, or a method's first output may take.
    version : str
        Of our artifacts; ``""``: whatever version there is.
    """

    def __init__(self, cache: Path, threads: int, seconds: float, rounds: int, limit: float, version: str) -> None:
        self.cache, self.threads, self.limit, self.version = cache.resolve(), threads, limit, version
        self.seconds, self.rounds = seconds, rounds
        names = ("TVM_SCHED_NUM_THREADS", "TVM_NUM_THREADS", "OMP_NUM_THREADS")
        self.environment = {**os.environ, **dict.fromkeys(names, str(threads))}

    def folder(self, case: Case) -> Path:
        """Of a network's files."""
        return self.cache / case.name.replace("/", "_")

    def export(self, case: Case) -> dict[str, str]:
        """A network's notes: which file there is not, and why."""
        file = self.folder(case) / "notes.json"
        if not file.exists():
            failed = self.run_preparation(["export", case.name, str(file.parent)])
            if failed:
                return {"all": failed}
        return json.loads(file.read_text())

    def artifact(self, case: Case, method: str) -> tuple[Path, str]:
        """Our artifact of a network, and why there is none."""
        folder, topology = self.folder(case), TOPOLOGIES[method]
        if not self.version:
            found = sorted(folder.glob(f"{topology}-*.so"), key=lambda file: file.stat().st_mtime)
            return (found[-1], "") if found else (folder, "not compiled")
        file = folder / f"{topology}-{self.threads}-{self.version}.so"
        refused = file.with_suffix(".failed")
        if refused.exists():
            return file, refused.read_text()
        if not file.exists():
            for old in folder.glob(f"{topology}-{self.threads}-*"):
                old.unlink()
            failed = self.run_preparation(["compile", str(folder), topology, str(file)])
            if failed:
                refused.write_text(failed)
                return file, failed
        return file, ""

    def run_preparation(self, arguments: list[str]) -> str:
        """Run `_cpu_prepare`; its error."""
        command = [sys.executable, str(HERE / "_cpu_prepare.py"), *arguments]
        try:
            done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=self.limit)
        except subprocess.TimeoutExpired:
            return f"more than {self.limit:.0f} s to {arguments[0]}"
        if done.returncode == 0:
            return ""
        lines = done.stderr.strip().splitlines()
        errors = [line for line in lines if not line.startswith((" ", "["))]
        return (errors or [f"ended with status {done.returncode}"])[-1][:200]

    def prepare(self, case: Case, methods: list[str]) -> dict[str, Cell]:
        """The cells of methods that cannot be measured, with the reason, and the seconds that ours took to compile."""
        cells: dict[str, Cell] = {}
        notes = self.export(case)
        for method in methods:
            reason = notes.get("all") or notes.get(FILES.get(method, ""), "")
            needed = NEEDS.get(method)
            if needed and importlib.util.find_spec(needed) is None:
                reason = f"package {needed} is not installed"
            if not reason and method in MINE:
                file, reason = self.artifact(case, method)
                if not reason:
                    cells[method] = {"file": str(file), **json.loads(file.with_suffix(".json").read_text())}
            if not reason and method in CACHES and not (self.folder(case) / CACHES[method]).exists():
                process = Process(self, case, method, "")
                reason = process.first().get("failed", "")
                process.end()
            if reason:
                cells[method] = {"failed": reason}
        return cells

    def measure(self, case: Case, methods: list[str]) -> dict[str, Cell]:
        """The cells of a network by method."""
        cells = {method: {} for method in methods} | self.prepare(case, methods)
        running: list[Process] = []
        try:
            for method in methods:
                if "failed" in cells[method]:
                    continue
                process = Process(self, case, method, cells[method].pop("file", ""))
                cells[method] |= process.first()
                if "failed" not in cells[method]:
                    running.append(process)
            for _ in range(self.rounds):
                for process in [each for each in running if "failed" not in cells[each.method]]:
                    cells[process.method] |= process.turn(self.seconds / self.rounds)
            for process in running:
                if process.method in (*MINE, best_method(cells)) and "failed" not in cells[process.method]:
                    cells[process.method] |= process.kernels()
        finally:
            for process in running:
                process.end()
        return cells


def best_method(cells: dict[str, Cell]) -> str:
    """The fastest peer, empty where none was measured."""
    found = {cell["ms"]: method for method, cell in cells.items() if method not in MINE and "ms" in cell}
    return found[min(found)] if found else ""


def spread(cells: dict[str, Cell]) -> float:
    """90th over 10th percentile, the greater of ours and of the fastest peer's."""
    names = (*MINE, best_method(cells))
    return max((c["p90"] / c["p10"] for m, c in cells.items() if m in names and "p90" in c), default=1.0)


class Process:
    """A method in a process of its own, which is stopped but in its turns."""

    def __init__(self, bench: Bench, case: Case, method: str, file: str) -> None:
        self.method, self.limit, self.times = method, bench.limit, []
        folder = bench.folder(case)
        environment = bench.environment | {"TORCHINDUCTOR_CACHE_DIR": str(folder / CACHES["Inductor"])}
        if method in MINE:
            environment |= {"TVM_USE_RUNTIME_LIB": "1"}
        command = [sys.executable, str(HERE / "_cpu_worker.py"), method, str(folder), str(bench.threads), file]
        self.begin = time.monotonic()
        with (folder / f"{method}.log").open("wb") as log:
            self.process = subprocess.Popen(
                command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
            )

    def first(self) -> Cell:
        """First output and whether it is right; then the process is stopped."""
        found = self._receive()
        if "failed" not in found and found["error"] > TOLERANCE:
            found = {"failed": f"wrong: differs by {found['error']:.2g} of the greatest value"}
        if "failed" in found:
            self.end()
            return found
        self._stop()
        return {"first_s": found["first"] - self.begin, "mib": found["mib"], "error": found["error"]}

    def turn(self, seconds: float) -> Cell:
        """Measure for a while."""
        found = self._ask(str(seconds))
        if "failed" in found:
            return found
        self.times += found["times"]
        tenths = statistics.quantiles(self.times, n=10)
        return {
            "ms": statistics.median(self.times) * 1e3,
            "min": min(self.times) * 1e3,
            "p10": tenths[0] * 1e3,
            "p90": tenths[-1] * 1e3,
            "runs": len(self.times),
            "mib": found["mib"],
        }

    def kernels(self) -> Cell:
        """The times of its kernels; a method that cannot tell has none."""
        return self._ask(KERNELS)

    def _ask(self, line: str) -> Cell:
        """Let the process go on until it has answered."""
        assert self.process.stdin is not None
        os.kill(self.process.pid, signal.SIGCONT)
        self.process.stdin.write(f"{line}\n".encode())
        self.process.stdin.flush()
        found = self._receive()
        if "failed" not in found:
            self._stop()
        return found

    def _stop(self) -> None:
        os.kill(self.process.pid, signal.SIGSTOP)

    def _receive(self) -> Cell:
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], self.limit)
        if not ready:
            return {"failed": f"more than {self.limit:.0f} s"}
        line = self.process.stdout.readline()
        return json.loads(line) if line else {"failed": f"its process ended with status {self.process.wait()}"}

    def end(self) -> None:
        """Let the process go."""
        self.process.kill()
        self.process.wait()


def measured(
    bench: Bench, case: Case, methods: list[str], old: dict[str, Any], again: int
) -> tuple[dict[str, Cell], int]:
    """The cells of a network, and how often it was measured for them; what an earlier run found is the first attempt."""
    cells, attempts = old["methods"], old.get("attempts", 1)
    if set(methods) - cells.keys():
        cells, attempts = bench.measure(case, methods), 1

    def trouble(found: dict[str, Cell]) -> tuple[int, float]:
        return sum("failed" in cell for cell in found.values()), spread(found)

    while attempts <= again and spread(cells) > DISTURBED:
        cells, attempts = min(cells, bench.measure(case, methods), key=trouble), attempts + 1
    return cells, attempts


def network_parser(description: str | None) -> argparse.ArgumentParser:
    """Make a parser with the arguments that choose networks, threads and the folder of artifacts."""
    made = parser((description or "").partition("\n")[0])
    made.add_argument("--set", action="append", choices=SETS, help="only these sets")
    made.add_argument("--half", choices=HALVES, help="only this half of the networks")
    made.add_argument("--case", action="append", default=[], metavar="NAME", help="only these networks")
    made.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="of every method")
    made.add_argument("--limit", type=float, default=600, metavar="SECONDS", help="for one preparation or first output")
    made.add_argument("--cache", type=Path, default=HERE.parent / "out/bench/cache", help="of models and artifacts")
    made.add_argument("--any-version", action="store_true", help="take artifacts of whatever version of the sources")
    made.add_argument(
        "--sample",
        type=int,
        metavar="N",
        help="only N of them, by a fixed rule (`_cpu_models.sample`); 0: all; without it 16, with --quick 8, and all of "
        "those that --case names",
    )
    return made


def chosen_cases(args: Any) -> list[Case]:
    """The networks that the arguments ask for; one that cannot be made is said and left out."""
    known = cases()
    if unknown := set(args.case) - known.keys():
        raise SystemExit(f"no network {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    found = []
    for case in known.values():
        wanted = case.name in args.case if args.case else case.group in (args.set or SETS)
        if not wanted or (args.half and case.half != args.half):
            continue
        if case.missing:
            print(f"{case.name}: left out, {case.missing}", flush=True)
        else:
            found.append(case)
    args.sample = 0 if args.case else (8 if args.quick else 16) if args.sample is None else args.sample
    return sample(found, args.sample) if args.sample else found


def load_rows(file: Path | None) -> dict[str, Any]:
    """Rows of an earlier run by network."""
    if file is None or not file.exists():
        return {}
    return {row["model"]: row for row in json.loads(file.read_text())}


def save_rows(rows: dict[str, Any], *files: Path | None) -> None:
    for file in files:
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(list(rows.values()), indent=1) + "\n")


def arguments() -> Any:
    made = network_parser(__doc__)
    made.add_argument("--method", action="append", choices=list(METHODS), help="only these methods")
    made.add_argument("--seconds", type=float, help="measured a method and network; default 6, with --quick 1.5")
    made.add_argument("--resume", type=Path, metavar="FILE", help="keep rows there, and do not measure them again")
    made.add_argument("--again", type=int, default=0, metavar="N", help="measure disturbed networks up to N times more")
    made.add_argument("--prepare", action="store_true", help="export and compile only")
    return made.parse_args()


def main() -> None:
    args = arguments()
    methods = args.method or list(QUICK if args.quick else METHODS)
    seconds = args.seconds or (1.5 if args.quick else 6.0)
    bench = Bench(
        args.cache, args.threads, seconds, 3 if args.quick else 4, args.limit, "" if args.any_version else fingerprint()
    )
    rows = load_rows(args.resume)
    for case in chosen_cases(args):
        old = rows.get(case.name, {"methods": {}})
        if args.prepare:
            failed = {m: c["failed"] for m, c in bench.prepare(case, methods).items() if "failed" in c}
            print(f"{case.name}: {failed or 'ready'}", flush=True)
            continue
        cells, attempts = measured(bench, case, methods, old, args.again)
        rows[case.name] = {
            "model": case.name, "set": case.group, "half": case.half, "kind": case.kind,
            "threads": args.threads, "attempts": attempts, "methods": cells,
        }  # fmt: skip
        save_rows(rows, args.resume)
        print(f"{case.name}: " + "; ".join(f"{m} {word(c)}" for m, c in cells.items()), flush=True)
    if not args.prepare:
        save_rows(rows, args.json)
        notes = [_SAMPLED.format(args.sample)] if args.sample else []
        if args.again:
            repeated = sum(row.get("attempts", 1) > 1 for row in rows.values())
            notes.append(_AGAIN.format(DISTURBED, args.again, repeated, len(rows)))
        page(list(rows.values()), args.threads, args.markdown, "\n".join(notes)).write()


if __name__ == "__main__":
    main()
