"""What it is worth that a schedule sees inside kernels: cold starts of language models with variants and without.

"one device" is the fastest single one; "fused" is `anytime` on the kernels as TVM fuses them, "apart" on those and on the
same with their ends apart, "columns" on these and products in pieces too, "tensor" on all ways, also blocks in parts that
are added at their end. Each has the same time limit, or the same work. Bounds hold over all ways of their row's problem.
Latencies are the roofline's.
"""

from __future__ import annotations

import msgspec
from _checked import checked
from _common import Row, parser, report

from tvm_sched.cost_model import get_cost_model
from tvm_sched.problem import Group, Problem, load_topology, problem_of
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
    graph, groups = decoder_variants(PRESETS[model], batch, tokens, pieces=())
    apart = problem_of(graph, groups, topology, costs)
    graph, groups = decoder_variants(PRESETS[model], batch, tokens, pieces=pieces_for(topology))
    tensor = problem_of(graph, groups, topology, costs)
    columns = problem_of(graph, [without_tensor(group) for group in groups], topology, costs)
    return {"fused": apart.resolve({}), "apart": apart, "columns": columns, "tensor": tensor}


def without_tensor(group: Group) -> Group:
    kept = tuple(each for each in group.alternatives if not each.name.startswith("tensor/"))
    return msgspec.structs.replace(group, alternatives=kept)


def main() -> None:
    """Write the rows after each case, so that a run that is stopped leaves what is done."""
    arguments = parser(__doc__ or "", models=False)
    arguments.add_argument("--time-limit", type=float, default=20.0, help="seconds for each search")
    arguments.add_argument("--work", type=float, help="work for each search instead (seconds of an idle core)")
    arguments.add_argument("--ways", default="fused,apart,columns,tensor", metavar="A,B", help="only these columns")
    arguments.add_argument("--state", default="", metavar="TEXT", help="what ran beside it, which the page says")
    options = arguments.parse_args()
    limit = {"time_limit": options.time_limit} if options.work is None else {"work": options.work}
    rows = []
    for cell in QUICK if options.quick else CELLS:
        case, base = f"{cell[0]}, {cell[1]}x{cell[2]}, {cell[3]}", 0.0
        wanted = [name.strip() for name in options.ways.split(",")]
        for name, problem in problems(*cell).items():
            if not base:
                base = checked(problem, solve(problem, "single")).certificate.latency * 1e3
                rows.append(Row(case, "one device", base, "ms", base, "one device"))
            if name not in wanted:
                continue
            known = checked(problem, solve(problem, "anytime", limit)).certificate
            rows.append(Row(case, name, known.latency * 1e3, "ms", base, "one device", f"gap {known.gap:.1%}"))
        report(
            "Schedules that see inside kernels",
            rows,
            options.json,
            options.markdown,
            predicted=True,
            notes=options.state,
        )


if __name__ == "__main__":
    main()
