"""Prefill and decode as one plan: the time to the first token and of each further one, with the decode here and elsewhere.

Each cell is a prefill and two decode steps from a cold start. "one device" computes all of it on the fastest one; "together"
is `anytime`, which may put each operator of both phases anywhere; "apart" keeps the prefill to the first half of the devices
and the decode to the others (Splitwise), to which the cache is copied. Each search has the same work, each bound is of
its row's problem. Latencies are the roofline's. Kernels' tails may be apart.
"""

from __future__ import annotations

from _checked import checked
from _common import parser
from _result_page import Row, report

from tvm_sched.cost_model import get_cost_model
from tvm_sched.relax.decoders import decoder_variants
from tvm_sched.schedulers import solve
from tvm_sched_runtime.problem import Problem, generation_problem, load_topology, problem_of
from tvm_sched_runtime.problem.decoder_config import PRESETS
from tvm_sched_runtime.schedule import model_latencies

CELLS = (
    ("openllama-3b", 1, 1024, "v100-server"),
    ("openllama-3b", 1, 1024, "p4d"),
    ("gpt2-large", 1, 512, "v100-server"),
)
STEPS = 2


def phases(model: str, batch: int, tokens: int, server: str) -> list[Problem]:
    """Prefill and decode."""
    topology, costs = load_topology(server), get_cost_model("roofline")
    made = [decoder_variants(PRESETS[model], batch, tokens, phase=phase) for phase in ("prefill", "decode")]
    return [problem_of(graph, groups, topology, costs) for graph, groups in made]


def rows_of(case: str, method: str, problem: Problem, name: str, options: dict[str, float]) -> list[Row]:
    """The figures of a method."""
    schedule = checked(problem, solve(problem, method=name, options=options))
    assert schedule.certificate is not None
    ends = [part.latency_ns for part in model_latencies(problem, schedule)]
    sizes = {tensor.name: tensor.size for tensor in problem.graph.tensors if tensor.name.startswith("prefill/")}
    copied = sum(sizes.get(t.tensor, 0) for t in schedule.transfers if t.kind == "copy")
    return [
        Row(case, method, ends[-1] / 1e6, "ms", note=f"gap {schedule.certificate.gap:.1%}"),
        Row(case, method, ends[0] / 1e6, "ms to the first token"),
        Row(case, method, (ends[-1] - ends[-2]) / 1e6, "ms for the last token"),
        Row(case, method, copied / 1e6, "MB of the prefill's tensors copied"),
    ]


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--work", type=float, default=5.0, help="work of each search, in seconds of an idle core")
    options = arguments.parse_args()
    rows = []
    for cell in CELLS[2:] if options.quick else CELLS:
        case = f"{cell[0]}, {cell[1]}x{cell[2]}, {cell[3]}"
        prefill, decode = phases(*cell)
        together = generation_problem(prefill, decode, STEPS)
        names = [device.name for device in together.topology.devices]
        half = len(names) // 2
        apart = generation_problem(prefill, decode, STEPS, prefill_devices=names[:half], decode_devices=names[half:])
        search = {"work": options.work}
        rows += rows_of(case, "one device", together, "single", {})
        rows += rows_of(case, "together", together, "anytime", search)
        rows += rows_of(case, "apart", apart, "anytime", search)
    notes = (
        f"`anytime`, work {options.work:g} a search. Every schedule that keeps the phases apart is one of the other problem,"
        ' too: where "apart" is faster, the search of "together" has stopped short of it.'
    )
    report("Prefill and decode", rows, options.json, options.markdown, predicted=True, notes=notes)


if __name__ == "__main__":
    main()
