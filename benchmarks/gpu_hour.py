"""Measure all that needs a GPU within minutes on a bare machine: ``prepare`` here, ``run`` there, ``page`` anywhere.

``prepare`` compiles artifacts (needs TVM and nvcc, no GPU) and packs them, without weights, with the runtime's libraries and
wheels into a folder. ``run``, on the machine with the GPU, needs Python with NumPy, and PyTorch for its figures; TVM is not
needed. Each step is a process of its own with a limit, and appends to one record, so that a step that fails or hangs costs
only itself, and a later run continues. All runs together end after 25 minutes (``--total``), and each before the ten minutes
that a command on a lent machine has. Each leaves the pages of what is known so far.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from gpu_steps.record import (  # noqa: E402
    ARCHIVE,
    CURRENT,
    HUNG,
    TOO_LONG,
    UNPACKED,
    NotAvailable,
    Step,
    append,
    rows,
    working_folder,
)

STEPS = {
    "environment": ("gpu_steps.machine", "environment", 60, 15),
    "values": ("gpu_steps.running", "values", 60, 10),
    "direct": ("gpu_steps.running", "direct", 40, 8),
    "contention": ("gpu_steps.concurrency", "contention", 40, 8),
    "copies": ("gpu_steps.machine", "copies", 45, 8),
    "kernels": ("gpu_steps.running", "kernels", 150, 30),
    "text": ("gpu_steps.text", "text", 150, 40),
    "cold_start": ("gpu_steps.cold_start", "cold_start", 150, 40),
    "streams": ("gpu_steps.concurrency", "streams", 150, 10),
    "issuing": ("gpu_steps.concurrency", "issuing", 40, 0),
    "others": ("gpu_steps.running", "others", 120, 0),
    "profile": ("gpu_steps.machine", "profile", 40, 0),
    "networks": ("gpu_steps.running", "networks", 200, 0),
    "peers": ("gpu_steps.several", "peers", 60, 0),
    "states": ("gpu_steps.several", "states", 25, 0),
    "pairs": ("gpu_steps.concurrency", "pairs", 60, 0),
    "sanitizer": ("gpu_steps.machine", "sanitizer", 60, 0),
    "compiled": ("gpu_steps.running", "compiled", 120, 0),
    "efficiency": ("gpu_steps.concurrency", "efficiency", 120, 0),
}
"""Steps, the most valuable first: module, function, seconds at most, and seconds that steps before it leave."""
CUDA_LIBRARIES = (("TVM_SCHED_CUDNN", "libcudnn.so.9"), ("TVM_SCHED_CUBLASLT", "libcublasLt.so.1?"))


def site(folder: Path) -> Path:
    """Install the carried wheels below the folder, each by itself so that one that fails costs only itself."""
    place = working_folder() / "site"
    wheels = sorted((folder / "wheels").glob("*.whl"))
    if not place.exists() and wheels:
        for wheel in wheels:
            command = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--no-compile"]
            done = subprocess.run(
                [*command, "--target", str(place), str(wheel)], capture_output=True, text=True, check=False
            )
            if done.returncode:
                print(f"{wheel.name}: {done.stderr.strip()[-200:]}", flush=True)
    return place


def environment_of_steps(folder: Path) -> dict[str, str]:
    """Return the variables of the steps' processes."""
    found = {**os.environ, "PYTHONWARNINGS": "ignore"}
    carried = folder / "python"
    paths = [str(carried.resolve() if carried.exists() else HERE.parent / "python")]
    if importlib.util.find_spec("tvm_ffi") is None:
        paths.append(str(site(folder)))
    elif (folder / "wheels").exists():
        site(folder)
    found["PYTHONPATH"] = os.pathsep.join([*paths, *filter(None, [os.environ.get("PYTHONPATH")])])
    library = folder / "lib" / "libtvm_sched.so"
    if library.exists():
        found.setdefault("TVM_SCHED_LIBRARY", str(library.resolve()))
    wheels = importlib.util.find_spec("nvidia")
    for place in wheels.submodule_search_locations or () if wheels else ():
        # Those of PyTorch, so that both have the same.
        for variable, pattern in CUDA_LIBRARIES:
            for file in sorted(Path(place).glob(f"*/lib/{pattern}")):
                found.setdefault(variable, str(file))
    return found


def unpack(folder: Path) -> None:
    """Unpack the artifacts, unless those of this archive are unpacked."""
    archive, unpacked = folder / ARCHIVE, folder / UNPACKED
    if not archive.exists():
        return
    made = hashlib.sha1(archive.read_bytes()).hexdigest()
    if not unpacked.exists() or unpacked.read_text() != made:
        for name in ("artifacts", "python"):
            shutil.rmtree(folder / name, ignore_errors=True)
        with tarfile.open(archive) as opened:
            # Python 3.11.3 and earlier have no filters; the archive is our own.
            opened.extractall(folder, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
        unpacked.write_text(made)


def run_all(options: argparse.Namespace) -> int:
    """Run steps one after another; return 1 if one failed."""
    began = time.monotonic()
    unpack(options.folder)
    environment = environment_of_steps(options.folder)
    records = [*options.before, options.record]
    spent = sum(row.get("seconds", 0) for file in records for row in rows(file) if row.get("case") == "step")
    budget = min(options.budget, options.total - spent)
    print(
        f"{spent:.0f} s of {options.total:.0f} s were spent; this run takes at most {max(budget, 0):.0f} s", flush=True
    )
    names = [name for name in STEPS if (not options.step or name in options.step) and name not in options.skip]
    append(options.record, {"step": "run", "case": "begin", "at": time.time(), "steps": names, "budget": budget})
    end = began + budget - 4
    for position, name in enumerate(names):
        kept = sum(STEPS[other][3] for other in names[position + 1 :])
        while True:
            least = STEPS[name][3]
            limit = min(STEPS[name][2] * options.scale, max(end - time.monotonic() - kept, least))
            limit = min(limit, end - time.monotonic())
            if limit < 6:
                append(options.record, {"step": name, "case": "step", "status": "no time left"})
                print(f"{name}: no time left", flush=True)
                break
            again = run_process(options, name, limit, environment)
            hand_back(options.record)
            if not again:
                break
    to = Path(os.environ.get("OUT", options.record.parent)) / "pages"
    command = [sys.executable, __file__, "page", "--record", *records, "--to", to]
    subprocess.run(command, env=environment, check=False)  # a machine may lack what pages need; the record is there
    fine = (None, "done", "not available", "no time left")
    failed = [row for row in rows(options.record) if row.get("status") not in fine]
    for row in failed:
        print(f"failed: {row['step']}: {row['case']}: {row.get('error', row['status'])}")
    return int(bool(failed))


def hand_back(record: Path) -> None:
    """Copy the record to where a lent machine's files come back from."""
    if back := os.environ.get("OUT"):
        shutil.copyfile(record, Path(back) / record.name)


def run_process(options: argparse.Namespace, name: str, limit: float, environment: dict[str, str]) -> bool:
    """Run a step's process; return whether it has to be started again, without a case that took too long."""
    command = [sys.executable, __file__, "step", name, "--folder", str(options.folder), "--record", str(options.record)]
    command += ["--seconds", f"{limit - 2:.1f}", *(["--quick"] if options.quick else [])]
    command += [f"--before={file}" for file in options.before]
    running = working_folder() / CURRENT
    running.unlink(missing_ok=True)
    started = time.monotonic()
    process = subprocess.Popen(command, env=environment, start_new_session=True)
    try:
        status = process.wait(timeout=limit + 2)
        told = "done" if status == 0 else f"ended with status {status}"
    except subprocess.TimeoutExpired:
        told = "ran past its limit and was ended"
    with contextlib.suppress(ProcessLookupError):  # also what it started
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    seconds = round(time.monotonic() - started, 2)
    again = False
    if running.exists():
        case = json.loads(running.read_text())
        trace = (running.parent / HUNG).read_text()
        case |= {"status": "failed", "made": TOO_LONG, "traceback": trace[-3000:]}
        append(options.record, {**case, "error": f"the process ended ({told}) in this case, after {seconds} s"})
        again = limit - seconds > 10
    row = {"step": name, "case": "step", "status": told, "seconds": seconds, "limit": limit}
    append(options.record, row)
    print(f"== {name}: {told} after {seconds} s", flush=True)
    return again


def run_step(options: argparse.Namespace) -> None:
    """Be the process of one step."""
    module, function, *_ = STEPS[options.name]
    known = {
        (row["case"], row.get("made"))
        for file in (options.record, *options.before)
        for row in rows(file)
        if row["step"] == options.name
        and (row.get("status") == "done" or (row.get("made") == TOO_LONG and file == options.record))
    }
    step = Step(options.name, options.folder, options.record, time.monotonic() + options.seconds, options.quick, known)
    try:
        getattr(importlib.import_module(module), function)(step)
    except NotAvailable as reason:
        step.write("all", status="not available", reason=str(reason))


def parsed() -> argparse.Namespace:
    """Return the command line's arguments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    folder = argparse.ArgumentParser(add_help=False)
    folder.add_argument("--folder", type=Path, default=HERE.parent / ".gpu_hour", help="default: .gpu_hour")
    prepare = commands.add_parser("prepare", parents=[folder], help="compile artifacts and pack them")
    prepare.add_argument(
        "--only", nargs="+", default=[], metavar="WORD", help="artifacts whose kind and name have a word"
    )
    prepare.add_argument("--again", action="store_true", help="also those that are there")
    prepare.add_argument("--rehearsal", action="store_true", help="a few tiny artifacts, for an emulated GPU")
    prepare.add_argument("--limit", type=float, default=3600, metavar="SECONDS", help="begin no artifact after these")
    run = commands.add_parser("run", parents=[folder], help="measure on the machine with the GPU")
    run.add_argument("--step", nargs="+", choices=STEPS, help="default: all")
    run.add_argument("--skip", nargs="+", choices=STEPS, default=[])
    run.add_argument(
        "--record", type=Path, metavar="FILE",
        help="JSON lines, to which rows are appended; default: record.jsonl of the folder, copied to $OUT after each step",
    )  # fmt: skip
    run.add_argument(
        "--before", type=Path, nargs="+", default=[], metavar="FILE", help="records of cases not to repeat"
    )
    run.add_argument("--budget", type=float, default=560, metavar="SECONDS", help="of this run")
    run.add_argument("--total", type=float, default=1500, metavar="SECONDS", help="of all runs that the records hold")
    run.add_argument("--scale", type=float, default=1.0, metavar="FACTOR", help="of the limits of the steps")
    run.add_argument("--quick", action="store_true", help="a rehearsal: times mean nothing")
    page = commands.add_parser("page", help="write the result pages of one or several records")
    page.add_argument(
        "--record", type=Path, nargs="+", required=True, metavar="FILE", help="the last figure of a case counts"
    )
    page.add_argument("--to", type=Path, default=HERE.parent / "docs" / "results", metavar="FOLDER")
    step = commands.add_parser("step", parents=[folder])
    step.add_argument("name", choices=STEPS)
    step.add_argument("--record", type=Path, required=True)
    step.add_argument("--before", type=Path, action="append", default=[])
    step.add_argument("--seconds", type=float, required=True)
    step.add_argument("--quick", action="store_true")
    once = commands.add_parser("once", parents=[folder])
    once.add_argument("artifact", type=Path)
    return parser.parse_args()


def main() -> None:
    """Do what the command line says."""
    options = parsed()
    if options.command == "prepare":
        from gpu_steps.preparation import prepare

        prepare(options.folder, options.only, options.again, options.rehearsal, options.limit)
    elif options.command == "run":
        options.record = options.record or options.folder / "record.jsonl"
        options.record.parent.mkdir(parents=True, exist_ok=True)
        sys.exit(run_all(options))
    elif options.command == "page":
        from gpu_steps.pages import pages

        pages(options.record, options.to)
    elif options.command == "step":
        run_step(options)
    else:
        from gpu_steps.machine import once

        once(Step("once", options.folder, Path(os.devnull), time.monotonic() + 600, True), options.artifact)


if __name__ == "__main__":
    main()
