"""Processor time and peak memory of scheduling by `anytime`, against the numbers of operators and of devices.

Each figure is of a process of its own, which makes a random network and its machine, schedules it with the option ``work=0``
(list schedules, quick methods, the bound; no search) or more, and certifies the schedule. Times are processor time of one
thread, so they depend little on what else runs on the machine; memory is the largest resident set. That includes some 60 MiB
of the interpreter and its libraries, so exponents of memory are below those of the problem alone.
An exponent is the slope of a straight line through the logarithms of size and figure (least squares).

Networks have layers of 64 operators. Each operator reads a parameter of 1 to 16 MiB and one to three outputs of the layer
before, of 1 to 8 MiB each, and takes 20 to 400 us. Machines are servers of eight equal GPUs: NVSwitch (405 GB/s) within a
server, a PCIe bus (50 GB/s) for each GPU to its host and between servers.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from random import Random
from time import process_time
from typing import Any

import numpy as np
from _common import parser
from _grid import make_problem
from _result_page import Page, pyplot

from tvm_sched.bounds import lower_bound
from tvm_sched.schedulers import solve
from tvm_sched_runtime.problem import Bus, Costs, Device, Operator, OpGraph, Problem, Switch, Tensor, Topology

OPERATORS = (500, 1000, 2000, 5000, 10_000, 20_000)
DEVICES = (2, 4, 8, 16, 32, 64)
OF_SERIES = {"devices": (8, 64), "operators": (2000,)}
"""Numbers of devices for which operators vary, and of operators for which devices vary."""
LARGE = (10_000, 64)
LARGE_WORK = (0.0, 10.0)
MODELS = ("gpt2-large", "openllama-7b")
SERVERS = ("v100-server", "p4d")
SHAPE = (1, 1024)
MODEL_WORK = (1.0, 10.0)
SERVER_OF = 8
"""GPUs of a server."""
WIDTH = 64
"""Operators of a layer."""


def servers(devices: int) -> Topology:
    """Return equal GPUs in servers of eight."""
    names = [f"gpu{d}" for d in range(devices)]
    parts = [tuple(names[d : d + SERVER_OF]) for d in range(0, devices, SERVER_OF)]
    return Topology(
        f"{devices} GPUs",
        tuple(Device(name, 1 << 40, 4.8e12, {"float32": 67e12}, bus=f"pcie{d}") for d, name in enumerate(names)),
        tuple(Bus(f"pcie{d}", 50e9, 1e-5) for d in range(devices)),
        switches=tuple(Switch(f"nvswitch{n}", part, 405e9, 5e-6) for n, part in enumerate(parts) if len(part) > 1),
        peer_access=True,
    )


def layered(operators: int, devices: int, seed: int = 0) -> Problem:
    """Return a random network in layers on servers of eight GPUs."""
    random = Random(f"{seed} {operators}")
    tensors: list[Tensor] = []
    made: list[Operator] = []
    for o in range(operators):
        before = range(max(0, o // WIDTH - 1) * WIDTH, o // WIDTH * WIDTH)
        read = sorted(random.sample(before, random.randint(1, 3))) if before else []
        tensors.append(Tensor(f"w{o}", random.randint(1, 16) << 20, "parameter"))
        tensors.append(Tensor(f"a{o}", random.randint(1, 8) << 20))
        made.append(Operator(f"op{o}", "matmul", (f"w{o}", *(f"a{r}" for r in read)), (f"a{o}",)))
    times = np.array([random.randint(20_000, 400_000) for _ in range(operators)], dtype=np.int64)
    graph = OpGraph("layered", tuple(made), tuple(tensors))
    return Problem(graph, servers(devices), Costs(np.repeat(times[:, None], devices, axis=1), source="random"))


def peak_memory() -> float:
    """Return the largest resident set of this process in MiB; `getrusage` would also count the process that started it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def measured(problem: Problem, work: float) -> dict[str, float]:
    """Schedule a problem; return processor seconds of all and of the bound, peak memory in MiB, and the gap in per cent."""
    options = {"work": work, "time_limit": None, "seed": 0}
    begin = process_time()
    lower_bound(problem)
    bound = process_time() - begin
    certificate = solve(problem, None, "anytime", options).certificate
    assert certificate is not None
    return {
        "seconds": process_time() - begin,
        "bound": bound,
        "memory": peak_memory(),
        "latency": certificate.latency * 1e3,
        "gap": certificate.gap * 100,
    }


def run(case: dict[str, Any], known: dict[str, dict[str, float]], file: Path | None) -> dict[str, float]:
    """Return the figures of a case, measured in a process of its own if they are not known."""
    key = json.dumps(case, sort_keys=True)
    if key not in known:
        command = [sys.executable, __file__, "--case", key]
        answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        known[key] = json.loads(answer.splitlines()[-1])
        print(key, known[key], file=sys.stderr)
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(known, indent=1) + "\n")
    return known[key]


def answer(case: dict[str, Any]) -> dict[str, float]:
    """Measure a case in this process."""
    if "model" in case:
        return measured(make_problem(case["model"], *SHAPE, case["server"]), case["work"])
    return measured(layered(case["operators"], case["devices"]), case["work"])


def exponent(sizes: list[int], figures: list[float]) -> float:
    """Return the slope of the logarithms by least squares: the figure grows as size to this power."""
    return float(np.polyfit(np.log(sizes), np.log(figures), 1)[0])


def series(page: Page, what: str, fixed: int, points: list[tuple[int, dict[str, float]]], axes: Any) -> None:
    """Write a table with exponents and draw a series of cases in which the number of operators or of devices grows."""
    sizes = [size for size, _ in points]
    name = f"{fixed:,} {'devices' if what == 'operators' else 'operators'}"
    page.text(f"## Number of {what} with {name}")
    head = (what, "processor time, s", "of which bound, s", "peak memory, MiB", "latency, ms", "gap, %")
    rows = [
        (f"{size:,}", *(f"{found[key]:.4g}" for key in ("seconds", "bound", "memory", "latency", "gap")))
        for size, found in points
    ]
    grows = [exponent(sizes, [found[key] for _, found in points]) for key in ("seconds", "bound", "memory")]
    page.table(head, [*rows, ("exponent", *(f"{each:.2f}" for each in grows), "", "")])
    for ax, key, label in zip(axes, ("seconds", "memory"), ("processor time, s", "peak memory, MiB"), strict=True):
        ax.loglog(sizes, [found[key] for _, found in points], marker="o", label=name)
        ax.set_xticks(sizes, [f"{size:,}" for size in sizes])
        ax.set_xticks([], minor=True)
        ax.tick_params(axis="x", rotation=45)
        ax.set_xlabel(what)
        ax.set_ylabel(label)
        ax.legend()


def write(page: Page, known: dict[str, dict[str, float]], file: Path | None, quick: bool) -> None:
    """Run all cases and write their tables and pictures."""
    for what, sizes in (("operators", OPERATORS), ("devices", DEVICES)):
        other = "devices" if what == "operators" else "operators"
        figure, axes = pyplot().subplots(1, 2, figsize=(7, 2.8), layout="constrained")
        for fixed in OF_SERIES[other][: 1 if quick else None]:
            cases = [{what: size, other: fixed, "work": 0.0} for size in sizes[: 3 if quick else None]]
            series(page, what, fixed, [(case[what], run(case, known, file)) for case in cases], axes)  # type: ignore[misc]
        page.picture(what, f"Processor time and peak memory against the number of {what}", figure)
    if quick:
        return
    head = ("work, s", "processor time, s", "of which bound, s", "peak memory, MiB", "latency, ms", "gap, %")
    page.text("## 10,000 operators on 64 devices")
    rows = []
    for work in LARGE_WORK:
        found = run({"operators": LARGE[0], "devices": LARGE[1], "work": work}, known, file)
        rows.append((f"{work:g}", *(f"{found[key]:.4g}" for key in ("seconds", "bound", "memory", "latency", "gap"))))
    page.table(head, rows)
    page.text("## Language models: first schedule against the final one", "")
    page.text("Latency at two amounts of work; one run of 1 x 1024 tokens, cold, fused kernels.")
    rows = []
    for model in MODELS:
        for server in SERVERS:
            first, last = (run({"model": model, "server": server, "work": work}, known, file) for work in MODEL_WORK)
            rows.append(
                (
                    f"{model} on {server}",
                    *(f"{each['latency']:.4g} ms in {each['seconds']:.1f} s" for each in (first, last)),
                    f"{100 * (first['latency'] / last['latency'] - 1):.2f}",
                    f"{last['gap']:.3g}",
                )
            )
    head = ("model", *(f"work {work:g} s, processor time" for work in MODEL_WORK), "first above final, %", "gap, %")
    page.table(head, rows)


def main() -> None:
    """Run what is missing in the file of results, and write the page."""
    arguments = parser(__doc__)
    arguments.add_argument("--case", type=json.loads, help=argparse.SUPPRESS)
    options = arguments.parse_args()
    if options.case is not None:
        print(json.dumps(answer(options.case)))
        return
    known = json.loads(options.json.read_text()) if options.json and options.json.exists() else {}
    page = Page("Cost of scheduling", options.markdown)
    page.text(*(__doc__ or "").split("\n\n", 1)[1].strip().split("\n"))
    write(page, known, options.json, options.quick)
    page.write()


if __name__ == "__main__":
    main()
