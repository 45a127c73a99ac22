"""SortingHat's Figure 4 and Section 6: one schedule on three pairs of GPUs, KV caches that remain, and slices of a GPU.

Figure 4: EfficientMIP schedules for two GPUs, and its schedule is priced on GPU1 with GPU2, GPU3 and GPU4 of the V100
server; with ``--planner heft`` HEFT's, alone on a page. Section 6: a decode step in which parts of the KV cache remain on
the devices as parameters do in Figure 14; and an A100 cut into seven MIG instances, each a device.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from _checked import checked
from _common import parser
from _result_page import Page, Row, report
from msgspec.structs import replace

from tvm_sched.cost_model import roofline
from tvm_sched.relax.decoders import decoder_graph
from tvm_sched.schedulers import solve
from tvm_sched_runtime.errors import InfeasibleError
from tvm_sched_runtime.problem import Problem, Request, Topology, Workload, load_topology, problem_of
from tvm_sched_runtime.problem.decoder_config import PRESETS
from tvm_sched_runtime.schedule import simulate

MODELS = ("gpt2-large", "gpt2-xl", "openllama-3b", "openllama-7b")
SHAPES = ((1, 1024), (32, 64))
SECONDS = ("gpu2", "gpu3", "gpu4")
"""GPUs of the pairs beside gpu1: on its bus; on another; on another, with twice the NVLinks."""
PLANNED_FOR = "gpu3"
DECODES = (("openllama-3b", 4, 1024), ("gpt2-xl", 4, 512))
SLICED = (("gpt2-large", 1, 1024), ("gpt2-xl", 1, 1024), ("gpt2-large", 32, 64))
LIMITS = {"time_limit": 1.0, "total_time_limit": 20.0}
"""Seconds a submodel and a case for the papers' programs."""
OPTIONS = {"efficient-mip": {"q": 6, **LIMITS}, "sortinghat": {"q": 6, **LIMITS}, "anytime": {"work": 1.0}}
SPEED_UP, MS, AWAY = "times as fast as one GPU", "ms", "operators on the second GPU"
INTRODUCTION = """\
Graphs are the decoders of [SortingHat's evaluation](sortinghat_grid.md), with fused kernels in float32. The papers'
programs had 1 s a submodel and 20 s a case (the paper: 30 s a submodel); `anytime` had 1 s of an idle core's work."""


def pair(second: str) -> Topology:
    """Return two GPUs of the V100 server under the names ``gpu1`` and ``second``."""
    whole = load_topology("v100-server")
    names = {"gpu1": "gpu1", second: "second"}
    devices = tuple(replace(device, name=names[device.name]) for device in whole.devices if device.name in names)
    used = {device.bus for device in devices}
    links = tuple(
        replace(link, devices=(names[link.devices[0]], names[link.devices[1]]))
        for link in whole.links
        if names.keys() >= set(link.devices)
    )
    buses = tuple(bus for bus in whole.buses if bus.name in used)
    return replace(whole, name=f"gpu1+{second}", devices=devices, buses=buses, links=links)


def one(topology: Topology) -> Topology:
    """Return the first device of a topology, with its bus."""
    device = topology.devices[0]
    buses = tuple(bus for bus in topology.buses if bus.name == device.bus)
    return replace(topology, name=device.name, devices=(device,), buses=buses, links=(), switches=())


def problem(model: str, batch: int, tokens: int, topology: Topology, phase: str = "full") -> Problem:
    """Return the problem of a decoder with fused kernels."""
    return problem_of(decoder_graph(PRESETS[model], batch, tokens, phase=phase), (), topology, roofline)


def pair_rows(models: Sequence[str], shapes: Sequence[tuple[int, int]], planner: str) -> Iterator[Row]:
    """Yield the speed-up of one schedule on each pair of GPUs."""
    for model in models:
        for batch, tokens in shapes:
            case = f"{model} {batch}x{tokens}"
            print(case, flush=True)
            alone = solve(problem(model, batch, tokens, one(pair("gpu2"))), method="single").certificate
            assert alone is not None
            planned = problem(model, batch, tokens, pair(PLANNED_FOR))
            schedule = checked(planned, solve(planned, method=planner, options=OPTIONS.get(planner, {})))
            away = sum(placement.device == "second" for placement in schedule.placements)
            yield Row(case, AWAY, away, "operators")
            for second in SECONDS:
                other = problem(model, batch, tokens, pair(second))
                moved = schedule.replace(problem=other.digest, certificate=None)
                latency = simulate(other, moved).latency_ns
                yield Row(case, f"gpu1 + {second}", alone.latency_ns / latency, SPEED_UP)


def cache_rows(cases: Sequence[tuple[str, int, int]]) -> Iterator[Row]:
    """Yield the latency of a decode step by what remains on the devices."""
    for model, batch, tokens in cases:
        made = problem(model, batch, tokens, load_topology("v100-server"), "decode")
        cache = [tensor for tensor in made.graph.tensors if "cached" in tensor.name]
        weights = tuple(sorted(made.parameters - {tensor.name for tensor in cache}))
        for share in (None, 0.0, 0.5, 1.0):
            kept = () if share is None else (*weights, *(tensor.name for tensor in cache[: round(share * len(cache))]))
            words = "nothing remains" if share is None else f"weights and {share:.0%} of the KV cache remain"
            case = f"{model}, {batch} sequences of {tokens} tokens, {words}"
            print(case, flush=True)
            for method in ("single", "sortinghat", "anytime"):
                schedule = solve(made, Workload((Request(kept),)), method=method, options=OPTIONS.get(method, {}))
                assert schedule.certificate is not None
                yield Row(case, method, schedule.certificate.latency * 1e3, MS)


def slice_rows(cases: Sequence[tuple[str, int, int]]) -> Iterator[Row]:
    """Yield the latency on a whole A100, on one of its slices, and on all seven."""
    slices = load_topology("a100-mig7")
    systems = {"whole GPU": one(load_topology("p4d")), "one slice": one(slices), "seven slices": slices}
    for model, batch, tokens in cases:
        case = f"{model} {batch}x{tokens}"
        print(case, flush=True)
        for name, topology in systems.items():
            made = problem(model, batch, tokens, topology)
            for method in ("sortinghat", "anytime") if len(topology.devices) > 1 else ("single",):
                label = f"{name}, {method}" if len(topology.devices) > 1 else name
                try:
                    schedule = checked(made, solve(made, method=method, options=OPTIONS.get(method, {})))
                except InfeasibleError:
                    print(f"{case}: no memory on {name}")
                    continue
                assert schedule.certificate is not None
                yield Row(case, label, schedule.certificate.latency * 1e3, MS)


def page(found: dict[str, list[Row]], path: Path | None) -> Page:
    """Make the page."""
    made = Page("SortingHat's Figure 4 and Section 6", path, predicted=True, notes=INTRODUCTION)
    made.text("## Figure 4: one schedule on three pairs of GPUs")
    _pairs(made, found["pairs"], "EfficientMIP")
    made.text("With [HEFT's schedules](sortinghat_figure_4.md), which use both GPUs, the pairs differ.")
    made.text("## Section 6: KV caches that remain")
    made.text(
        "A decode step on the V100 server, in ms, of schedules made for what remains. The cache of each layer is two",
        "parameters of the graph, which remain as weights do in Figure 14: on the device that reads them. The paper",
        "expects that SortingHat is efficient where KV blocks are reused, and has no figure of it.",
    )
    _by_case(made, found["caches"])
    made.text(*caches(found["caches"]))
    made.text("## Section 6: slices of a GPU")
    made.text(
        "An A100 whole, and cut into seven MIG instances (`a100-mig7`), each with 1/8 of its memory and bandwidth; cold",
        "latencies in ms. A case without a figure does not fit into the memory. The paper has no figure of it.",
    )
    _by_case(made, found["slices"])
    made.text(*slices_text(found["slices"]))
    return made


def _pairs(made: Page, rows: list[Row], planner: str) -> None:
    made.text(
        f"{planner}'s schedule for two V100 on buses of their own, priced on GPU1 with a GPU of the same bus (GPU2), of",
        "another bus (GPU3), and of another bus with two NVLinks instead of one (GPU4); times as fast as GPU1 alone.",
    )
    _by_case(made, rows)
    made.text(figure_4(rows, planner))


def pairs_page(rows: list[Row], path: Path | None) -> Page:
    """Make the page of Figure 4 alone, with HEFT's schedules."""
    made = Page("SortingHat's Figure 4 with HEFT's schedules", path, predicted=True)
    made.text(
        "EfficientMIP as [run here](sortinghat_systems.md) puts all operators on one GPU, so that its schedules say nothing",
        "of pairs. HEFT's use both, are made without a time limit, and are priced in the same way.",
    )
    _pairs(made, rows, "HEFT")
    return made


def _by_case(made: Page, rows: list[Row]) -> None:
    figures = {(row.case, row.method): row.figure for row in rows}
    methods = list(dict.fromkeys(row.method for row in rows))
    lines = [
        [case, *(f"{figures[case, method]:.4g}" if (case, method) in figures else "–" for method in methods)]
        for case in dict.fromkeys(row.case for row in rows)
    ]
    made.table(["case", *methods], lines)


def figure_4(rows: list[Row], planner: str) -> str:
    """Compare with what the paper says of its Figure 4."""
    figures = {(row.case, row.method): row.figure for row in rows}
    cases = list(dict.fromkeys(row.case for row in rows))
    first, second, third = (f"gpu1 + {name}" for name in SECONDS)
    faster = [case for case in cases if figures[case, second] > figures[case, first]]
    more = [case for case in cases if figures[case, third] > figures[case, second]]
    slower = [case for case in cases if figures[case, first] < 1]
    gain = [figures[case, third] / figures[case, second] - 1 for case in cases]
    on_one = [case for case in cases if not figures[case, AWAY]]
    return (
        f"GPU1+GPU3 is faster than GPU1+GPU2 in {len(faster)} of {len(cases)} cases, as in the paper's figure in all; "
        f"GPU1+GPU2 is slower than GPU1 alone in {len(slower)}. GPU1+GPU4 is faster than GPU1+GPU3 in {len(more)}, by up "
        f"to {max(gain):.2%}; the paper's text says consistently, from twice the NVLinks. {planner} puts all operators "
        f"on one GPU in {len(on_one)} cases, in which the second GPU does not matter. Bars of the paper's figure have no "
        "numbers."
    )


def caches(rows: list[Row]) -> Iterator[str]:
    """Say what SortingHat gains over one GPU by what remains."""
    figures = {(row.case, row.method): row.figure for row in rows}
    for case in dict.fromkeys(row.case for row in rows):
        one_gpu, own, ours = (figures[case, method] for method in ("single", "sortinghat", "anytime"))
        yield f"- {case}: SortingHat is {one_gpu / own:.2f} times as fast as one GPU, `anytime` {one_gpu / ours:.2f} times."


def slices_text(rows: list[Row]) -> Iterator[str]:
    """Say where slices pay."""
    figures = {(row.case, row.method): row.figure for row in rows}
    for case in dict.fromkeys(row.case for row in rows):
        whole, alone = figures[case, "whole GPU"], figures.get((case, "one slice"))
        best = min(
            (name for name in ("sortinghat", "anytime")), key=lambda name: figures[case, f"seven slices, {name}"]
        )
        all_of = figures[case, f"seven slices, {best}"]
        beside = f"{alone / all_of:.2f} times as fast as one slice" if alone else "one slice cannot hold the model"
        yield f"- {case}: on seven slices `{best}` is {whole / all_of:.2f} times as fast as on the whole GPU; {beside}."


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--planner", choices=("efficient-mip", "heft"), default="efficient-mip", help="of Figure 4")
    options = arguments.parse_args()
    few = slice(1) if options.quick else slice(None)
    if options.planner == "heft":
        rows = list(pair_rows(MODELS, SHAPES[few], "heft"))
        report("SortingHat's Figure 4 with HEFT's schedules", rows, options.json)
        pairs_page(rows, options.markdown).write()
        return
    found = {
        "pairs": list(pair_rows(MODELS[few], SHAPES[few], options.planner)),
        "caches": list(cache_rows(DECODES[few])),
        "slices": list(slice_rows(SLICED[few])),
    }
    report("SortingHat's Figure 4 and Section 6", [row for rows in found.values() for row in rows], options.json)
    page(found, options.markdown).write()


if __name__ == "__main__":
    main()
