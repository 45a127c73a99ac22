"""What it is worth that a schedule sees inside kernels: cold starts of language models with variants and without.

"one device" is the fastest single one; "fused" is `anytime` on the kernels as TVM fuses them, "apart" on those and on the
same with their ends apart, "columns" on all ways, products in pieces too. Each has the same time limit. Bounds hold over all
ways of their row's problem. Latencies are the roofline's.
"""

from __future__ import annotations

from _common import Row, parser, report

from tvm_sched.cost_model import get_cost_model
from tvm_sched.problem import Problem, load_topology, problem_of
from tvm_sched.problem.decoder_config import PRESETS
from tvm_sched.relax.decoders import decoder_variants
from tvm_sched.relax.variants import pieces_for
from tvm_sched.schedulers import solve

CELLS = (
    ("openllama-7b", 32, 64, "p4d"),
    ("openllama-7b", 32, 64, "v100-server"),
    ("openllama-3b", 1, 1024, "p4d"),
    ("openllama-3b", 4, 128, "v100-server"),
    ("gpt2-xl", 1, 32, "v100-hetero"),
    ("gpt2-large", 1, 32, "a6000-server"),
)
QUICK = CELLS[2:3]


def problems(model: str, batch: int, tokens: int, server: str) -> dict[str, Problem]:
    """The problem by what a schedule may choose among."""
    topology, costs = load_topology(server), get_cost_model("roofline")
    pieces = {"apart": (), "columns": pieces_for(topology)}
    found = {name: decoder_variants(PRESETS[model], batch, tokens, pieces=of) for name, of in pieces.items()}
    made = {name: problem_of(graph, groups, topology, costs) for name, (graph, groups) in found.items()}
    return {"fused": made["apart"].resolve({}), **made}


def main() -> None:
    arguments = parser(__doc__ or "", models=False)
    arguments.add_argument("--time-limit", type=float, default=20.0, help="seconds for each search")
    options = arguments.parse_args()
    rows = []
    for cell in QUICK if options.quick else CELLS:
        case, base = f"{cell[0]}, {cell[1]}x{cell[2]}, {cell[3]}", 0.0
        for name, problem in problems(*cell).items():
            if not base:
                base = solve(problem, "single").certificate.latency * 1e3
                rows.append(Row(case, "one device", base, "ms", base, "one device"))
            known = solve(problem, "anytime", {"time_limit": options.time_limit}).certificate
            rows.append(Row(case, name, known.latency * 1e3, "ms", base, "one device", f"gap {known.gap:.1%}"))
    report("Schedules that see inside kernels", rows, options.json, options.markdown, predicted=True)


if __name__ == "__main__":
    main()
