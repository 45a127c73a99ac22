"""The pages of Opara's evaluation: what an H100 took, and predictions beside that and the paper, differences in words."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import claims
from _result_page import NONE, Page, bold, pyplot

from tvm_sched.streams import ALLOCATORS

DATA: dict[str, Any] = json.loads((Path(__file__).parent / "data" / "h100_opara.json").read_text())
MEASURED: dict[str, dict[str, Any]] = DATA["models"]
"""By model: microseconds by variant under ``"us"``, numbers of streams under ``"streams"``."""
ONE, LAST_FIRST = "one stream", ", last first"
PEERS = {"nimble's first matching": (1.29, "T5 1.093"), "wavefront without barriers": (1.18, "")}
"""Opara beside what was measured for the other allocators: what the paper says of these at most, and of what model."""
SINGLE = 1.68
"""Opara beside one sequential CUDA graph, at most."""
ORDERS = {"GoogLeNet, RTX 2080 SUPER": 1.29, "GoogLeNet, A100": 1.103}
"""Depth-first over Opara's launch order (Section II-C)."""


class OrderEffect(NamedTuple):
    """The worst launch order over the best with Opara's streams, and how many orders there are."""

    ratio: float
    orders: int


def order_effect(model: str) -> OrderEffect | None:
    """Return the measured effect over every order that ran; None if the model was not measured."""
    us = MEASURED.get(model, {}).get("us", {})
    times = [time for variant, time in us.items() if variant.split(",")[0] == "opara"]
    return OrderEffect(max(times) / min(times), len(times)) if times else None


def speed(model: str, variant: str, over: str = ONE) -> float | None:
    """Return the measured speed relative to another variant; None if one of them was not measured."""
    us = MEASURED.get(model, {}).get("us", {})
    return us[over] / us[variant] if over in us and variant in us else None


def stream_cost(model: str, variant: str) -> float | None:
    """Return how many microseconds each further stream of Opara costs, against another variant."""
    found = MEASURED[model]
    if variant not in found["us"] or variant not in found["streams"]:
        return None
    further = found["streams"]["opara"] - found["streams"][variant]
    return (found["us"]["opara"] - found["us"][variant]) / further if further > 0 else None


H100, SWEPT, DECODER = "H100", "Inception-v3", "OpenLLaMA-3B, 32 tokens"
TIMELINES, TIMELINE_METHODS = ("GoogLeNet", "T5-small encoder", "BERT-base"), ("one", "nimble", "opara")
"""What is drawn, as in the paper's Figures 6 and 7."""
TABLE_I = {
    "BERT-base": (0.58, 20.8), "GoogLeNet": (0.27, 5.80), "NASNet-A large": (1.75, 257.83), "Inception-v3": (0.50, 14.40),
    "T5-small encoder": (2.8, 161.4),
}  # fmt: skip
"""Milliseconds of Opara's and Nimble's allocation (Table I; its T5 is not named further)."""
MORE_EFFICIENCY = {
    "Inception-v3": 36, "GoogLeNet": 58, "DeepFM": 126, "NASNet-A large": 48, "BERT-base": 20, "T5-small encoder": 19
}  # fmt: skip
"""Percent that Opara's SM efficiency is above one sequential CUDA graph's (Section V-B)."""
PAIRS = Path(__file__).parent / "data" / "h100_concurrency.json"
PAPER_GPUS = {
    "DeepFM": ("RTX 2080 SUPER",),
    "GoogLeNet": ("RTX 2080 SUPER", "A100"),
    "Inception-v3": ("RTX 2080 SUPER", "A100"),
    "BERT-base": ("A100",),
    "T5-small encoder": ("A100",),
    "NASNet-A large": ("A100",),
    DECODER: ("A100",),
}
"""The six models, and the GPUs on which the paper ran them."""
PAPER = {
    ("Inception-v3", 1, "RTX 2080 SUPER"): "1.41",
    ("Inception-v3", 32, "RTX 2080 SUPER"): "1.09",
    ("BERT-base", 1, "A100"): "1.08 or more",
}
"""Opara beside one sequential CUDA graph, as far as the text has it (Section V-B); up to 1.68 over all."""
SWEPT_METHODS = ("opara", "nimble", "wavefront", "fewest", "best")
METHODS = ("one", "opara", "opara, program", "nimble", "wavefront", "fewest", "best")
Case = dict[str, Any]
PREDICTIONS = """\
Kernels and library calls are as lowered for an H100 (sm_90), with the demands of their launches, predicted by a GPU's blocks
with latencies of data sheets, parameters and inputs on the GPU. A kernel starts {launch} us after another of its stream, a
further stream costs {stream} us of a run and a wait for another stream {wait} us, as [measured on an H100](opara_h100.md)
and taken for all; "free" is without the last two. No GPU ran for this page: what is measured is of that page."""
MEASUREMENTS = """\
Measured on {source}. Figures are {unit}; in brackets the speed beside one stream.
Of the measurement: {notes}. "Last first": of operators that are free, the last of the launch order is
captured first, since a graph starts the branch that was captured last first ([measured](concurrent_kernels.md)). Since
then a graph's nodes are made in that order whatever the plan, so that the chosen launch order is the one in which
branches start; that has not run on a GPU yet. Later kernels are on [another page](gpu_latency.md)."""
OWN_ORDERS = """\
Each method has its own launch order: Nimble and one stream depth-first (PyTorch's order), Rammer's wavefront depth-first
within a wave and with a barrier after each wave, Opara and `fewest` Opara's (Algorithm 2). Algorithm 2 takes an operator's
least demand of threads, registers and shared memory, and memory-bound operators begin. The authors' program
(`OperatorLauncher.py`) looks at shared memory alone, compute-bound operators begin, and a kind without free operators loses
its turn: *opara, program*. Nimble's streams are those of its authors' program (`AutoStream`): a matching on the minimum
equivalent graph makes chains, and a second one joins chains that begin behind the end of another. T5 is the encoder of
T5-small alone."""
NOTES = """\
- "best" takes the streams of least predicted latency, joined to 2, 4, 8 or 16 where that is better, and their launch order.
- Measured times are of runs as the caller sees them, with copies and calls.
- Not here: ONNX Runtime on a GPU.
"""


def page(cases: list[Case], launch: str, stream: str, wait: str, path: Path | None) -> Page:
    """Make the page of predictions; ``launch``, ``stream`` and ``wait`` are the costs in microseconds that they assume."""
    first = [case for case in cases if case["batch"] == 1 and case["gpu"] == H100]
    notes = PREDICTIONS.format(launch=launch, stream=stream, wait=wait)
    made = Page("Opara's evaluation, predicted", path, notes=notes)
    made.text(OWN_ORDERS)
    made.text("## Speed beside one stream on an H100: predicted, predicted with free streams, measured")
    made.text(
        "What was measured as Nimble and as wavefront had other streams or no barriers: no measured figure for these."
    )
    _speeds(made, first)
    made.text("## Streams and waits")
    rows = ([case["methods"][method] for method in METHODS] for case in first)
    lines = ([c["model"], *(f"{r['streams']}, {r['waits']}" for r in own)] for c, own in zip(first, rows, strict=True))
    made.table(["model", *METHODS], lines, left=len(METHODS) + 1)
    made.text("## One stream on an H100, us")
    _one_stream(made, first)
    made.text("## What further streams cost: Opara's beside wavefront's (measured without barriers), us")
    _further(made, first)
    made.text("## Launch order (worst over best with Opara's streams; number of orders in brackets), and memory")
    _order_and_memory(made, first)
    made.text("## Table I: milliseconds of the allocation")
    _table_1(made, first)
    made.text("## Figures 1 and 5(b): SM efficiency")
    _efficiency(made, cases)
    made.text("## Figure 3: compute- and memory-bound kernels side by side, measured on an H100")
    _figure_3(made)
    made.text("## Figures 6 and 7: timelines on an A100")
    _timelines(made, cases)
    made.text("## On the paper's GPUs, predicted")
    made.text("Opara's speed beside others, and depth-first over Opara's launch order:")
    _paper_gpus(made, cases)
    made.text(f"## Batches of {SWEPT}")
    made.text(
        "Speed beside one stream, predicted: Opara, Nimble, wavefront (Rammer), fewest, best. On an A100 the paper has",
        "Opara up to 1.29 times as fast as Rammer and 1.15 times as fast as Nimble, at batches of 2 to 32.",
    )
    _batches(made, cases)
    made.text("## In words")
    made.text(*(f"- {text}" for text in words(cases, first)))
    made.text(*NOTES.splitlines())
    return made


def beside(case: Case, method: str, other: str = "one", key: str = "us") -> float:
    """Return a method's predicted speed relative to another method."""
    return float(case["methods"][other][key] / case["methods"][method][key])


def _speeds(made: Page, first: list[Case]) -> None:
    rows = []
    for case in first:
        cells = []
        for method in METHODS[1:]:
            ran = speed(case["model"], method) if method == "opara" else None
            said = "–" if ran is None else f"{ran:.2f}"
            cells.append(f"{beside(case, method):.2f}, {beside(case, method, key='free_us'):.2f}, {said}")
        rows.append([case["model"], case["operators"], *cells])
    made.table(["model", "operators", *METHODS[1:]], rows)


def _one_stream(made: Page, first: list[Case]) -> None:
    rows = []
    for case in first:
        us, ran = case["methods"]["one"]["us"], MEASURED.get(case["model"], {}).get("us", {}).get(ONE)
        rows.append([case["model"], f"{us:.0f}", *([f"{ran:.0f}", f"{ran / us:.1f}"] if ran else ["–", "–"])])
    made.table(("model", "predicted", "measured, with copies and calls", "measured over predicted"), rows)


def _further(made: Page, first: list[Case]) -> None:
    rows = []
    for case in first:
        opara, waves = case["methods"]["opara"], case["methods"]["wavefront"]
        ran = MEASURED.get(case["model"], {}).get("us")
        said = f"{ran['opara'] - ran['wavefront without barriers']:+.0f}" if ran else "–"
        more = [f"{opara[key] - waves[key]:+.0f}" for key in ("us", "free_us")]
        rows.append([case["model"], f"{opara['streams']}, {waves['streams']}", *more, said])
    made.table(("model", "streams", "predicted", "with free streams", "measured"), rows, left=2)


def predicted_orders(case: Case) -> float:
    """Return the latency of the worst launch order over the best."""
    return float(max(case["orders"].values()) / min(case["orders"].values()))


def _order_and_memory(made: Page, first: list[Case]) -> None:
    known, rows = ("one", "opara", "fewest"), []
    for case in first:
        ran = order_effect(case["model"])
        memory = ", ".join(f"{case['methods'][method]['peak_bytes'] / 1e6:.1f}" for method in known)
        said = f"{ran.ratio:.2f} ({ran.orders})" if ran else "–"
        rows.append([case["model"], f"{predicted_orders(case):.2f} ({len(case['orders'])})", said, memory])
    memory_head = f"MB of activations at most: {', '.join(known)}"
    made.table(("model", "predicted", "measured", memory_head), rows)


def _table_1(made: Page, first: list[Case]) -> None:
    """Add what allocating streams takes, neither preparing its input nor pricing its schedule."""
    rows = []
    for case in first:
        ours = [f"{case['methods'][method]['ms']:.2f}" for method in ALLOCATORS]
        rows.append((case["model"], *ours, *(TABLE_I.get(case["model"], ("–", "–")))))
    made.table(("model", *ALLOCATORS, "paper: Opara", "paper: Nimble"), rows)
    known = [case for case in first if case["model"] in TABLE_I]
    ratios = [case["methods"]["nimble"]["ms"] / case["methods"]["opara"]["ms"] for case in known]
    theirs = [nimble / opara for opara, nimble in (TABLE_I[case["model"]] for case in known)]
    if known:
        made.text(
            f"Nimble's allocation takes {min(ratios):.1f} to {max(ratios):.1f} times Opara's here and {min(theirs):.1f} to "
            f"{max(theirs):.1f} times in the paper, whose program is Python's and matches by depth-first search; ours is "
            "C++ and matches by Hopcroft and Karp."
        )


def _efficiency(made: Page, cases: list[Case]) -> None:
    """Add the share of a run in which a multiprocessor has a block, of the paper's GPUs."""
    rows = []
    for case in (case for case in cases if case["batch"] == 1 and case["gpu"] != H100):
        shares = [case["methods"][method]["efficiency"] for method in METHODS]
        more = f"{100 * (case['methods']['opara']['efficiency'] / shares[0] - 1):+.0f} %"
        paper = f"+{MORE_EFFICIENCY[case['model']]} %" if case["model"] in MORE_EFFICIENCY else "–"
        rows.append((case["model"], case["gpu"], *(f"{100 * share:.0f}" for share in shares), more, paper))
    made.text(
        "Percent of the run in which a multiprocessor has a block, averaged over the GPU's, by the block simulator; the",
        "paper measured one stream of PyTorch, in which kernels are launched one by one, at 2.53, 12.04 and 18.5 on an A100",
        "(GoogLeNet, Inception-v3, BERT). Here a CUDA graph launches them, so that one stream begins higher.",
    )
    made.table(("model", "GPU", *METHODS, "Opara over one", "paper"), rows, left=2)
    made.text(
        "Where Opara is below one stream, the time that its streams take to start and to wait counts as idle; the paper's",
        "increase is over runs of kernels that leave more of the GPU free.",
    )


def _figure_3(made: Page) -> None:
    """Add how long measured pairs take side by side, by what bounds their kernels."""
    data = json.loads(PAIRS.read_text())
    memory = [flops < 10 * moved for _, _, _, _, _, flops, moved, _, _ in data["kernels"]["rows"]]
    kinds: dict[str, list[float]] = {}
    for first, second, after, beside_us in data["pairs"]["rows"]:
        kind = ("compute and compute", "compute and memory", "memory and memory")[memory[first] + memory[second]]
        kinds.setdefault(kind, []).append(beside_us / after)
    rows = [(kind, len(found), f"{statistics.median(found):.2f}") for kind, found in sorted(kinds.items())]
    made.table(("kernels", "pairs", "side by side over one after another, median"), rows)
    mixed, alike = (statistics.median(kinds[kind]) for kind in ("compute and memory", "memory and memory"))
    made.text(
        f"In the median a compute-bound kernel beside a memory-bound one takes {mixed:.2f} of the time of both one after",
        f"another, two memory-bound ones {alike:.2f}; in the paper, on an A100, a convolution beside a ReLU took 13.6 %",
        "less than two ReLUs, and another such pair 12.7 % less. Its kernels are those of one network, ours of many sizes.",
    )


def _timelines(made: Page, cases: list[Case]) -> None:
    """Draw the kernels of each stream: red compute-bound, blue memory-bound, as in the paper."""
    for case in (case for case in cases if case.get("events")):
        end = 0.25 * max(stop for _, _, _, stop in case["events"]["one"])
        shown = {method: [event for event in events if event[2] < end] for method, events in case["events"].items()}
        counts = [len({lane for lane, *_ in events}) for events in shown.values()]
        figure, rows = pyplot().subplots(
            len(shown), 1, sharex=True, figsize=(8, 0.14 * sum(counts) + 1.5), gridspec_kw={"height_ratios": counts}
        )
        for axes, (method, events) in zip(rows, shown.items(), strict=True):
            lanes = list(dict.fromkeys(lane for lane, *_ in events))
            for lane, memory_bound, start, stop in events:
                colour = "#3b6fb6" if memory_bound else "#c0504d"
                axes.broken_barh([(start, stop - start)], (-lanes.index(lane) - 0.4, 0.8), facecolors=colour)
            axes.set_yticks([])
            axes.set_ylabel(method, fontsize=7)
        rows[-1].set_xlim(0, end)
        rows[-1].set_xlabel("us")
        name = case["model"].split()[0].lower()
        made.picture(f"timeline-{name}", f"First quarter of {case['model']}, a row for each stream in use", figure)


def _paper_gpus(made: Page, cases: list[Case]) -> None:
    rows = []
    for case in (case for case in cases if case["batch"] == 1 and case["gpu"] != H100):
        orders = ORDERS.get(f"{case['model']}, {case['gpu']}")
        speeds = [f"{beside(case, 'opara', other):.2f}" for other in ("one", "nimble", "wavefront")]
        speeds.insert(1, PAPER.get((case["model"], 1, case["gpu"]), "–"))
        rows.append([case["model"], case["gpu"], *speeds, f"{depth_first(case):.2f}", f"{orders:g}" if orders else "–"])
    head = ("model", "GPU", "one stream", "its paper", "nimble", "wavefront", "launch order", "its paper")
    made.table(head, rows, left=2)


def depth_first(case: Case) -> float:
    """Return the latency of the depth-first order over Opara's order, the ratio that the paper prints."""
    return float(case["orders"]["depth-first"] / case["orders"]["opara"])


def _batches(made: Page, cases: list[Case]) -> None:
    swept = [case for case in cases if case["model"] == SWEPT]
    gpus, rows = list(dict.fromkeys(c["gpu"] for c in swept)), []
    for size in sorted({c["batch"] for c in swept}):
        by_gpu = {case["gpu"]: case for case in swept if case["batch"] == size}
        row = [str(size)]
        for gpu in gpus:
            case = by_gpu.get(gpu)
            speeds = (f"{beside(case, method):.2f}" for method in SWEPT_METHODS) if case else ("–",)
            row.append(", ".join(speeds))
        rows.append([*row, PAPER.get((SWEPT, size, "RTX 2080 SUPER"), "–")])
    made.table(["batch", *gpus, "paper, RTX 2080 SUPER: Opara"], rows)


def words(cases: list[Case], first: list[Case]) -> Iterator[str]:
    """Say where predictions agree with measurements and paper, and where not."""
    for case in first:
        yield from _other_side(case)
    yield from _googlenet(first)
    for peer, paper in (("nimble", 1.29), ("wavefront", 1.18)):
        top = max(
            (beside(case, "opara", peer), f"{case['model']}, batch {case['batch']}, {case['gpu']}") for case in cases
        )
        ahead = sum(round(beside(case, "opara", peer), 2) > 1 for case in cases)
        yield (
            f"Opara is faster than {peer} in {ahead} of {len(cases)} cases, by prediction, and {top[0]:.2f} times as fast "
            f"at most ({top[1]}); in the paper up to {paper} times. Each further stream costs "
            "a run 1.6 us here, of which the paper says nothing."
        )
    swept = {(c["batch"], c["gpu"]): c for c in cases if c["model"] == SWEPT}
    for gpu in dict.fromkeys(gpu for _, gpu in swept):
        sizes = sorted(size for size, at in swept if at == gpu)
        if len(sizes) > 1:
            ends = [swept[sizes[k], gpu] for k in (0, -1)]
            small, large = (beside(case, "opara") for case in ends)
            free = [f"{beside(case, 'opara', key='free_us'):.2f}" for case in ends]
            yield (
                f"{SWEPT} on one {gpu}: Opara's speed beside one stream {'falls' if large < small else 'rises'} from "
                f"{small:.2f} at batch {sizes[0]} to {large:.2f} at {sizes[-1]}, with free streams from {free[0]} to "
                f"{free[1]} (paper, RTX 2080 SUPER: it falls from 1.41 at 1 to 1.09 at 32)."
            )
    for case in cases:
        orders = ORDERS.get(f"{case['model']}, {case['gpu']}")
        if orders and case["batch"] == 1:
            yield (
                f"{case['model']} on one {case['gpu']}: depth-first takes {depth_first(case):.2f} times Opara's "
                f"order, in the "
                f"paper up to {orders:g}; over all {len(case['orders'])} orders it is {predicted_orders(case):.2f}."
            )
    spread = max(
        (
            max(row["peak_bytes"] for row in case["methods"].values()) / case["methods"]["one"]["peak_bytes"] - 1,
            case["model"],
        )
        for case in first
    )
    more = f"{100 * spread[0]:.1f} % more than one ({spread[1]})"
    yield f"Memory: streams take at most {more}; in the paper Opara's take more."


def _other_side(case: Case) -> Iterator[str]:
    """Name the allocators that beat one stream only by prediction, or only as measured."""
    said = [(m, beside(case, m), speed(case["model"], m)) for m in ALLOCATORS[1:]]
    known = [(p, r, f"{m} {p:.2f}, measured {r:.2f}") for m, p, r in said if r is not None]
    if slower := [text for p, r, text in known if p > 1 > r]:
        yield f"{case['model']}: faster than one stream by prediction, but not as measured: {'; '.join(slower)}."
    if faster := [text for p, r, text in known if p < 1 < r]:
        ratio = MEASURED[case["model"]]["us"][ONE] / case["methods"]["one"]["us"]
        why = ", so that what kernels gain beside each other weighs more on the GPU, and what streams cost less"
        yield (
            f"{case['model']}: faster than one stream as measured, but not by prediction: {'; '.join(faster)}. One stream "
            f"took {ratio:.1f} times what is predicted{why if ratio > 1 else ''}."
        )


def _googlenet(first: list[Case]) -> Iterator[str]:
    for case in first:
        if case["model"] == "GoogLeNet":
            count = {method: case["methods"][method]["streams"] for method in ALLOCATORS}
            yield (
                f"GoogLeNet's streams: {count['opara']} by Opara and {count['nimble']} by Nimble; the paper has 28 and 4. "
                f"{count['fewest']} by `fewest`, a matching on the transitive closure: the most operators that can run at "
                "once."
            )


def measured_page(path: Path | None) -> Page:
    """Make the page of measurements."""
    made = Page("Opara's streams and launch orders on an H100", path, notes=MEASUREMENTS.format(**DATA))
    _figures(made)
    made.text(
        "Beside the paper (Opara, Sections II and V: RTX 2080 SUPER for GoogLeNet, Inception-v3 and DeepFM, A100",
        "for the others; PyTorch's kernels):",
    )
    made.table(("claim", "paper", "here"), _claims(), left=3)
    made.text("## What contradicts the paper")
    made.text(*(f"- {text}" for text in _contradictions()))
    _later(made)
    made.text(
        "NASNet-A large was not measured; what is predicted of it stands [beside these](opara.md). torch captures neither",
        "BERT nor T5 of transformers 5.17 as they are (masks are copied from the host).",
    )
    return made


def _later(made: Page) -> None:
    """Add what later kernels gain by Opara's streams, and torch.compile, from the page of networks on one GPU."""
    one, opara, compiled = "ours, one stream", "ours, Opara's streams", "torch.compile"
    lines = []
    for found, dtype in zip(claims.tables("gpu_latency"), ("float32", "float16"), strict=False):
        for name, row in found.items():
            cells = [row[column].strip("*") for column in (one, opara, compiled, "PyTorch, CUDA graph")]
            if cells[1] != NONE or cells[2] != NONE:
                gain = NONE if cells[1] == NONE else f"{float(cells[0]) / float(cells[1]):.2f}"
                lines.append([f"{name}, {dtype}", *cells, gain])
    made.text("## With later kernels, and torch.compile")
    made.text(
        "On [26 November](gpu_latency.md), with plans of cuDNN, cuBLASLt and kernels of ours: us of a run, inputs on the",
        'GPU. torch.compile has `mode="reduce-overhead"`, which makes CUDA graphs; it has no back end with several streams.',
    )
    made.table(["network", one, opara, compiled, "PyTorch, CUDA graph", "Opara's streams beside one"], lines)
    made.text("In the paper Opara's streams are up to 1.68 times as fast as one CUDA graph, Inception-v3's 1.41 times.")


def _figures(made: Page) -> None:
    variants = dict.fromkeys(variant for found in MEASURED.values() for variant in found["us"])
    columns = []
    for found in MEASURED.values():
        times = [found["us"].get(variant) for variant in variants]
        ours = [None if v.startswith("torch") else time for v, time in zip(variants, times, strict=True)]
        speeds = ["" if time is None else f" ({found['us'][ONE] / time:.2f})" for time in ours]
        texts = ["" if time is None else f"{time:,}{said}" for time, said in zip(times, speeds, strict=True)]
        counts = ", ".join(f"{name} {count}" for name, count in found["streams"].items())
        columns.append([*bold(texts, ours), counts])
    made.table(["variant", *MEASURED], zip([*variants, "streams"], *columns, strict=True))


def _claims() -> Iterator[tuple[str, str, str]]:
    single = ", ".join(f"{speed(model, 'opara'):.2f} {model}" for model in MEASURED)
    yield "Opara beside one sequential CUDA graph", f"up to {SINGLE}; Inception-v3, batch 1: 1.41", single
    for peer, (most, other) in PEERS.items():
        here = ", ".join(f"{speed(model, 'opara', peer):.2f} {model}" for model in MEASURED)
        yield f"Opara beside {peer}", f"up to {most}{'; ' + other if other else ''}", here
    orders = ", ".join(f"{e.ratio:.2f} {m} ({e.orders})" for m in MEASURED if (e := order_effect(m)))
    said = ", ".join(f"{ratio:g} ({where})" for where, ratio in ORDERS.items())
    claim = "launch order: worst over best with Opara's streams (number of orders in brackets)"
    yield claim, f"{said}: depth-first over Opara's", orders
    here = ", ".join(f"{count} by {name}" for name, count in MEASURED["GoogLeNet"]["streams"].items())
    yield "streams of GoogLeNet", "28 by Opara, 4 by Nimble", here


def _contradictions() -> Iterator[str]:
    slower = [(model, value) for model in MEASURED if (value := speed(model, "opara")) and value < 1]
    for model, value in slower:
        count = MEASURED[model]["streams"]["opara"]
        yield f"{model}: Opara's {count} streams are slower than one ({value:.2f} times its speed)."
    for peer, (most, _) in PEERS.items():
        ratios = {model: value for model in MEASURED if (value := speed(model, "opara", peer)) is not None}
        top = max(ratios, key=lambda model: ratios[model])
        behind = [model for model, value in ratios.items() if value < 0.995]
        yield (
            f"Opara beside {peer} is {ratios[top]:.2f} at most ({top}; paper up to {most})"
            + (f", and behind it with {', '.join(behind)}." if behind else ".")
        )
    yield (
        "What ran as *nimble's first matching* is not Nimble's whole method: its program matches the chains a second time, "
        "which joins those of successive modules, so that GoogLeNet has 4 streams, as the paper says, and not 28 "
        "([predicted](opara.md)). *wavefront without barriers* lets a wave begin before the last one has ended, which the "
        "paper's Rammer does not. Nimble's whole method and wavefront with barriers were not measured."
    )
    costs = [
        f"{cost:.1f} ({model}, beside {variant})"
        for model in MEASURED
        for variant in ("wavefront without barriers", "ios")
        if (cost := stream_cost(model, variant)) is not None
    ]
    yield (
        "Many streams cost: microseconds for each that Opara has more than another variant: "
        + ", ".join(costs)
        + "; below 0 "
        "what they gain outweighs it. Presets and detected GPUs have a [`stream_overhead`](../formats/topology.md) "
        "of 1.6 us since then, `best` counts it, and "
        "`fewest` has as few streams as can be ([predicted beside these](opara.md))."
    )
    effects = {model: effect.ratio for model in MEASURED if (effect := order_effect(model))}
    top = max(effects, key=lambda model: effects[model])
    yield (
        f"The launch order matters less than the paper found: {effects['GoogLeNet']:.2f} for GoogLeNet, "
        f"{effects[top]:.2f} at most "
        f"({top}). In sets of kernels that fill the GPU it [matters](concurrent_kernels.md) more."
    )
    for model, found in MEASURED.items():
        graph = found["us"].get("torch, CUDA graph")
        if graph and graph < 0.9 * found["us"][ONE]:
            yield (
                f"torch's single graph of {model} is faster than ours with one stream ({graph:,} us against "
                f"{found['us'][ONE]:,}): "
                "it takes other kernels."
            )
