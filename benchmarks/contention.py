"""HIOS's Figures 1 and 2 as the cost model ``contention`` predicts them: concurrent convolutions, and their transfers.

Figure 1: two equal 5x5 convolutions of 48 channels on one A40, both at once over one after another. Figure 2: the transfer
of a convolution's input between two GPUs over its computation. The paper prints curves, no numbers; what it says of them in
words stands beside.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import msgspec
from _result_page import Page
from concurrent_kernels import beside_full_kernels

from tvm_sched.cost_model import costs
from tvm_sched_bench.testing.hios_problems import convolutions
from tvm_sched_runtime.problem import Problem, Topology, load_topology
from tvm_sched_runtime.schedule import Placement, Schedule, simulate

SIZES = tuple(2**n for n in range(3, 11))
TOPOLOGIES = ("a40x2", "v100-server")
SHORTER_UP_TO = 64
"""The constant that the paper's words set (Section II-A): images up to this size gain at once, larger ones lose."""


def together(size: int, model: str) -> float:
    """Both in one stage over both one after another, on an A40 that has what they read."""
    graph, a40 = convolutions(size), msgspec.structs.replace(load_topology("a40x2").devices[0], bus="")
    topology = Topology("one A40", (a40,))
    problem = Problem(graph, topology, costs(graph, topology, model))
    placements = tuple(Placement(o.name, a40.name, stream=n, stage=1) for n, o in enumerate(graph.operators))
    latency = simulate(problem, Schedule(problem.digest, placements)).latency_ns
    return latency / float(problem.costs.operator_ns.sum())


def transfer(topology: Topology, size: int, link: bool) -> float:
    """The transfer of the input between the first two GPUs over the convolution there."""
    graph = convolutions(size, 1)
    if not link:
        topology = msgspec.structs.replace(topology, links=(), switches=())
    route = topology.route(0, 1)
    assert route is not None
    return route.nanoseconds(graph.tensors[0].size) / float(costs(graph, topology, "contention").operator_ns[0, 0])


def figure_1() -> Iterator[tuple[str, ...]]:
    """A line a size: both at once over one after another by two models, and what the paper says."""
    for size in SIZES:
        ratios = (f"{together(size, model):.3f}" for model in ("contention", "occupancy"))
        yield f"{size} x {size}", *ratios, "below 1" if size <= SHORTER_UP_TO else "above 1"


def border() -> str:
    """Where the prediction has the border between faster and slower at once, beside the paper's."""
    found = max((size for size in SIZES if together(size, "contention") < 1), default=0)
    agrees = "as in the paper" if found == SHORTER_UP_TO else f"in the paper {SHORTER_UP_TO} x {SHORTER_UP_TO}"
    return f"By prediction images up to {found} x {found} take less at once, {agrees}."


def figure_2() -> Iterator[tuple[str, ...]]:
    """A line a size: the transfer over the computation on both topologies."""
    for size in SIZES:
        found = (transfer(load_topology(name), size, name != "v100-server") for name in TOPOLOGIES)
        yield f"{size} x {size}", *(f"{ratio:.2f}" for ratio in found)


NOTES = """\
By prediction: latencies of the roofline, contention as fitted to pairs on an H100 ([how](concurrent_kernels.md)),
on other GPUs: ratios are carried over, and no A40 has shown them. The paper's numbers stand in its curves only:
the last column is what its text says, faster at once up to {border} x {border}."""


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--markdown", type=Path, metavar="FILE")
    page = Page("HIOS's Figures 1 and 2", arguments.parse_args().markdown, notes=NOTES.format(border=SHORTER_UP_TO))
    page.text("## Figure 1: two equal convolutions on an A40")
    ratio, parts = "both at once over one after another", "parts of the device alone (`occupancy`)"
    page.table(("image", ratio, parts, "by the paper's words"), figure_1())
    pairs, low, middle, high = beside_full_kernels()
    page.text(
        f"{border()} How much more large ones take is less clear:",
        f"on the H100 {pairs} pairs of kernels that both fill it took {low:.2f} to {high:.2f} of the sum of their times",
        f"without launch gaps (10 and 90 %; median {middle:.2f}).",
    )
    page.text("## Figure 2: transfer of the input over the computation")
    page.table(("image", "two A40, NVLink", "two V100, PCIe 3.0"), figure_2())
    page.text(
        "As in the paper, transfers are not negligible, and NVLink's cost less of the computation than those over PCIe. Of",
        "the paper's third pair, two RTX A5500, there is no topology here.",
    )
    page.write()


if __name__ == "__main__":
    main()
