"""Placement for latency on the workloads of Tarnawski et al. (NeurIPS 2020, EfficientMIP), in their cost model.

Their files are inputs of the latency minimisation in msr-fiddle/dnn-partitioning; ``--instances DIR`` names others.
`heuristic` and `annealed` are the start placements of scheduler `efficient-mip`, without and with simulated annealing;
`integer program` is the published one, q = 1, from the best of them. Schedulers of a `Problem`, such as `anytime`, take no
part: copies, parameters and CPUs follow other rules there. Reference figures: the authors' code, and a port of their program
to open solvers.
"""

from __future__ import annotations

from pathlib import Path

from _common import parser
from _result_page import Row, report
from rich.console import Console

from tvm_sched.schedulers.common.milp import Effort
from tvm_sched.schedulers.efficient_mip import place, read_workload
from tvm_sched.schedulers.efficient_mip.separator_bound import LOOKS

REFERENCES = {
    "bert24_inference_layer": 100.219,
    "bert_l-3_inference_operator": 408.483,
    "gnmt_inference_layer": 232.124,
    "inceptionv3_inference_layer": 1851.142,
    "resnet50_inference_layer": 1443.793,
}
"""Least milliseconds of each workload among the greedy and the throughput split of the authors' code at commit b207b6a, and
their program on HiGHS and CP-SAT (300 s and 120 s, one thread)."""

INSTANCES = Path(__file__).parent / "instances" / "tarnawski" / "latency"
ANNEALING = 220_000
"""Placements that simulated annealing looks at by default."""


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument(
        "--instances", type=Path, default=INSTANCES, metavar="DIR", help="folder of workloads (*.json, *.json.gz)"
    )
    arguments.add_argument("--annealing", type=int, default=ANNEALING, help="placements that annealing looks at")
    arguments.add_argument(
        "--program-time-limit", type=float, default=60.0, help="seconds of the program; 0 leaves it out"
    )
    arguments.add_argument("--seed", type=int, default=0, help="of the search")
    options = arguments.parse_args()
    screen = Console(stderr=True)
    files = sorted(options.instances.glob("*.json*"))
    if not files:
        raise SystemExit(f"{options.instances} holds no workloads (*.json, *.json.gz)")
    annealing, seconds = options.annealing, options.program_time_limit
    if options.quick:
        annealing, seconds = min(annealing, 3000), min(seconds, 10.0)
    rows = []
    for file in files:
        instance, name = read_workload(file), file.name.partition(".")[0]
        screen.print(f"{name}: {len(instance.cpu)} operators, {len(instance.capacity)} accelerators")
        reference = REFERENCES.get(name)
        efforts = [("heuristic", 0, None), ("annealed", annealing, None)]
        if seconds > 0:
            efforts.append(("integer program", annealing, Effort("highs", seconds, 0, options.seed)))
        for method, evaluations, effort in efforts:
            found = place(instance, effort, seed=options.seed, annealing=evaluations, looks=LOOKS)
            rows.append(Row(name, method, found.latency, "ms", reference, "best reference"))
            rows.append(Row(name, method, found.bound, "ms lower bound"))
    report("Placement workloads of Tarnawski et al.", rows, options.json, options.markdown)


if __name__ == "__main__":
    main()
