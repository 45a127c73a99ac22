"""Inception-v3 and NASNet-A at several image sizes, planned on two A40 with NVLink, beside HIOS's Figures 12 and 13.

The paper measured on such a machine; here latencies are predicted by the cost model `occupancy`, with the parameters on
both GPUs from the start, as there. Operators are the fused kernels of this compiler.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from _common import Row, parser, report
from msgspec.structs import replace

from tvm_sched.cost_model import occupancy
from tvm_sched.problem import OpGraph, Problem, Topology, load_topology
from tvm_sched.schedulers import solve

SIZES = {
    "inception_v3": (299, 512, 1024, 2048),
    "nasnet_mobile": (224, 512, 1024, 2048),
    "nasnet_large": (331, 512, 1024, 2048),
}
METHODS = ("sequential", "ios", "hios-lp", "hios-mr", "hios-lp-inter", "hios-mr-inter", "heft", "anytime")

NOTES = """
## Beside Figures 12 and 13

Of the paper's figures there are the numbers in its text: HIOS-LP takes 6.1 to 19.7 % less than sequential execution for
Inception-v3 and up to 14.5 % less for NASNet, 3.3 to 16.5 % and up to 11.1 % less than IOS, 10.9 to 16.8 % and 8.8 to
16.2 % less than HIOS-MR; of what HIOS-LP gains over sequential execution, 81.6 % (small images) to 98.2 % (large ones) is
due to the two GPUs in Inception-v3, nearly all in NASNet. "% below sequential" is the same figure here.

- The paper's figures were measured, with cuDNN's kernels and MPI; these are predictions of a model in which kernels
  reach the data sheet's speed. So kernels are short here, and copies and launches weigh more.
- The paper's graphs have 119 and 374 operators; ours are of fused kernels. Which NASNet-A it had is not said; its 331
  pixels are those of the large one.
- `ios` looks at 10 operators together, in 2 groups of up to 3, as in the authors' simulation.
"""


def graph_of(name: str, size: int) -> OpGraph:
    """The graph of a network of `tvm_sched.testing.branched` for images of one size."""
    from tvm_sched.relax import make_problem
    from tvm_sched.testing import branched

    make: Callable[[], Any] = getattr(branched, name)
    return make_problem(branched.exported(make(), size), "cpu1", name=name).graph


def with_parameters_in_place() -> Topology:
    """Two A40 as in the preset, that have their parameters already: without the buses that would bring them."""
    preset = load_topology("a40x2")
    return replace(preset, devices=tuple(replace(device, bus="") for device in preset.devices), buses=())


def rows_of(name: str, size: int, seconds: float) -> Iterator[Row]:
    graph, topology = graph_of(name, size), with_parameters_in_place()
    problem = Problem(graph, topology, occupancy(graph, topology))
    case = f"{name}, {size} pixels, {len(graph.operators)} operators"
    sequential = 0.0
    for method in METHODS:
        options = {"anytime": {"time_limit": seconds}, "ios": {"groups": 2, "group_size": 3, "block": 10}}.get(
            method, {}
        )
        schedule = solve(problem, method, options)
        assert schedule.certificate is not None
        latency, bound = schedule.certificate.latency * 1e3, schedule.certificate.lower_bound * 1e3
        sequential = sequential or latency
        yield Row(case, method, latency, "ms")
        yield Row(case, method, 100 * (1 - latency / sequential), "% below sequential")
        yield Row(case, method, 100 * (latency / bound - 1), "% above the bound")
        yield Row(case, method, schedule.seconds, "s")


def main() -> None:
    arguments = parser(__doc__ or "", models=False)
    arguments.add_argument("--seconds", type=float, default=10.0, help="time limit of anytime for a network")
    given = arguments.parse_args()
    rows = []
    for name, sizes in SIZES.items():
        for size in sizes[: 1 if given.quick else None]:
            print(f"{name}, {size} pixels", flush=True)
            rows += rows_of(name, size, given.seconds)
    report("Inception-v3 and NASNet-A on two A40", rows, given.json, given.markdown, predicted=True)
    if given.markdown:
        given.markdown.write_text(given.markdown.read_text() + NOTES)


if __name__ == "__main__":
    main()
