"""Placement for latency on the workloads of Tarnawski et al. (NeurIPS 2020, EfficientMIP), in their cost model.

``--instances DIR`` names a folder of their files (inputs of the latency minimisation in msr-fiddle/dnn-partitioning).
`search` is ours: dynamic programming over linear orders and annealing. `integer program` is theirs, q = 1, on HiGHS.
The schedulers of `tvm_sched` take no part: copies, parameters and CPUs follow other rules there (see
``benchmarks/_placement.py``). Reference figures: the authors' code, and a port of their program to open solvers.
"""

from __future__ import annotations

from pathlib import Path

from _common import Row, parser, report
from _placement import read_workload, search
from rich.console import Console

REFERENCES = {
    "bert24_inference_layer": 100.219,
    "bert_l-3_inference_operator": 408.483,
    "gnmt_inference_layer": 232.124,
    "inceptionv3_inference_layer": 1851.142,
    "resnet50_inference_layer": 1443.793,
}
"""Least milliseconds of each workload among the greedy and the throughput split of the authors' code at commit b207b6a, and
their program on HiGHS and CP-SAT (300 s and 120 s, one thread)."""


def main() -> None:
    arguments = parser(__doc__ or "", models=False)
    arguments.add_argument("--instances", type=Path, metavar="DIR", help="folder of workloads (*.json)")
    arguments.add_argument("--time-limit", type=float, default=30.0, help="seconds of the search, a workload")
    arguments.add_argument(
        "--program-time-limit", type=float, default=60.0, help="seconds of the program; 0 leaves it out"
    )
    arguments.add_argument("--seed", type=int, default=0, help="of the search")
    options = arguments.parse_args()
    screen = Console(stderr=True)
    if options.instances is None or not options.instances.is_dir():
        screen.print(f"skipped: no folder of workloads ({options.instances or '--instances was not given'})")
        return
    seconds = (min(options.time_limit, 5.0), min(options.program_time_limit, 10.0)) if options.quick else (
        options.time_limit, options.program_time_limit,
    )  # fmt: skip
    rows = []
    for file in sorted(options.instances.glob("*.json")):
        workload = read_workload(file)
        screen.print(f"{workload.name}: {len(workload.cpu)} operators, {workload.accelerators} accelerators")
        best, _ = search(workload, seconds[0], options.seed)
        rows.append(Row(workload.name, "search", best, "ms", REFERENCES.get(workload.name), "best reference"))
        rows.append(Row(workload.name, "search", workload.critical_path(), "ms lower bound"))
        if seconds[1] > 0:
            from _placement_program import solve_program

            answer = solve_program(workload, seconds[1])
            if answer.latency is not None:
                rows.append(Row(workload.name, "integer program", answer.latency, "ms"))
            rows.append(Row(workload.name, "integer program", answer.bound, "ms lower bound"))
    report("Placement workloads of Tarnawski et al.", rows, options.json, options.markdown)


if __name__ == "__main__":
    main()
