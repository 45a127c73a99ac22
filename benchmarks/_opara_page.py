"""The page that `opara.py` makes of its cases: predictions beside measurements and the paper, differences in words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from _common import circumstances
from _opara_measured import MEASURED, ONE, ORDERS, order_effect, speed

from tvm_sched.streams import ALLOCATORS

H100, SWEPT = "H100", "Inception-v3"
PAPER_GPUS = {
    "DeepFM": ("RTX 2080 SUPER",),
    "GoogLeNet": ("RTX 2080 SUPER", "A100"),
    "Inception-v3": ("RTX 2080 SUPER", "A100"),
    "BERT-base": ("A100",),
    "T5-small encoder": ("A100",),
    "NASNet-A large": ("A100",),
}
"""The six models, and the GPUs on which the paper ran them."""
PAPER = {
    ("Inception-v3", 1, "RTX 2080 SUPER"): "1.41",
    ("Inception-v3", 32, "RTX 2080 SUPER"): "1.09",
    ("BERT-base", 1, "A100"): "1.08 or more",
}
"""Opara beside one sequential CUDA graph, as far as the text has it (Section V-B); up to 1.68 over all."""
METHODS = (*ALLOCATORS, "best")
Case = dict[str, Any]


def page(cases: list[Case], launch: str, stream: str, wait: str) -> str:
    """The page of results; the last three are the microseconds that the predictions count."""
    first = [case for case in cases if case["batch"] == 1 and case["gpu"] == H100]
    lines = ["# Opara's evaluation, predicted", "", *circumstances()]
    lines += [
        "Kernels and library calls are as lowered for an H100 (sm_90), with the demands of their launches, predicted by a "
        f"GPU's blocks with latencies of data sheets, parameters and inputs on the "
        f"GPU. A kernel starts {launch} us after another of its stream, a further "
        f"stream costs {stream} us of a run and a wait for another stream {wait} us, as [measured on an "
        f"H100](opara_h100.md) "
        'and taken for all; "free" is without the last two. No GPU ran for this page: what is measured is of that page.',
        "",
        "## Speed beside one stream on an H100: predicted, predicted with free streams, measured",
        "",
        *speeds(first),
        "",
        "## Streams and waits",
        "",
        *streams(first),
        "",
        "## One stream on an H100, us",
        "",
        *one_stream(first),
        "",
        "## What further streams cost: Opara's beside wavefront's, us",
        "",
        *further(first),
        "",
        "## Launch order (worst over best with Opara's streams; number of orders in brackets), allocation and memory",
        "",
        *order_and_memory(first),
        "",
        "## On the paper's GPUs, predicted",
        "",
        "Opara's speed beside others, and depth-first over Opara's launch order:",
        "",
        *paper_gpus(cases),
        "",
        f"## Batches of {SWEPT}",
        "",
        "Speed beside one stream, predicted: Opara, fewest, best.",
        "",
        *batches(cases),
        "",
        "## In words",
        "",
        *(f"- {text}" for text in words(cases, first)),
    ]
    return "\n".join(lines) + "\n" + NOTES


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def beside(case: Case, method: str, other: str = "one", key: str = "us") -> float:
    """A method's predicted speed beside another's."""
    return float(case["methods"][other][key] / case["methods"][method][key])


def _measured_name(method: str) -> str:
    return {"one": ONE, "best": "best by prediction"}.get(method, method)


def speeds(first: list[Case]) -> Iterator[str]:
    yield _row(["model", "operators", *METHODS[1:]])
    yield _row(["---", "---:", *["---"] * (len(METHODS) - 1)])
    for case in first:
        cells = []
        for method in METHODS[1:]:
            # what was "best by prediction" then is not what it is now
            ran = speed(case["model"], method) if method != "best" else None
            said = "–" if ran is None else f"{ran:.2f}"
            cells.append(f"{beside(case, method):.2f}, {beside(case, method, key='free_us'):.2f}, {said}")
        yield _row([case["model"], str(case["operators"]), *cells])


def streams(first: list[Case]) -> Iterator[str]:
    yield _row(["model", *METHODS])
    yield _row(["---"] * (len(METHODS) + 1))
    for case in first:
        rows = (case["methods"][method] for method in METHODS)
        yield _row([case["model"], *(f"{row['streams']}, {row['waits']}" for row in rows)])


def one_stream(first: list[Case]) -> Iterator[str]:
    yield _row(["model", "predicted", "measured, with copies and calls", "measured over predicted"])
    yield _row(["---", "---:", "---:", "---:"])
    for case in first:
        us, ran = case["methods"]["one"]["us"], MEASURED.get(case["model"], {}).get("us", {}).get(ONE)
        yield _row([case["model"], f"{us:.0f}", *([f"{ran:.0f}", f"{ran / us:.1f}"] if ran else ["–", "–"])])


def further(first: list[Case]) -> Iterator[str]:
    yield _row(["model", "streams", "predicted", "with free streams", "measured"])
    yield _row(["---", "---", "---:", "---:", "---:"])
    for case in first:
        opara, waves = case["methods"]["opara"], case["methods"]["wavefront"]
        ran = MEASURED.get(case["model"], {}).get("us")
        said = f"{ran['opara'] - ran['wavefront']:+.0f}" if ran else "–"
        more = [f"{opara[key] - waves[key]:+.0f}" for key in ("us", "free_us")]
        yield _row([case["model"], f"{opara['streams']}, {waves['streams']}", *more, said])


def predicted_orders(case: Case) -> float:
    """The worst launch order over the best."""
    return float(max(case["orders"].values()) / min(case["orders"].values()))


def order_and_memory(first: list[Case]) -> Iterator[str]:
    known = ("one", "opara", "fewest")
    yield _row(
        [
            "model",
            "predicted",
            "measured",
            "ms: " + ", ".join(ALLOCATORS),
            "MB of activations at most: " + ", ".join(known),
        ]
    )
    yield _row(["---", "---:", "---:", "---", "---"])
    for case in first:
        ran = order_effect(case["model"])
        times = ", ".join(f"{case['methods'][method]['ms']:.2f}" for method in ALLOCATORS)
        memory = ", ".join(f"{case['methods'][method]['peak_bytes'] / 1e6:.1f}" for method in known)
        said = f"{ran.ratio:.2f} ({ran.orders})" if ran else "–"
        yield _row([case["model"], f"{predicted_orders(case):.2f} ({len(case['orders'])})", said, times, memory])


def paper_gpus(cases: list[Case]) -> Iterator[str]:
    yield _row(["model", "GPU", "one stream", "its paper", "nimble", "wavefront", "launch order", "its paper"])
    yield _row(["---", "---", *["---:"] * 6])
    for case in cases:
        if case["batch"] == 1 and case["gpu"] != H100:
            orders = ORDERS.get(f"{case['model']}, {case['gpu']}")
            yield _row([
                case["model"], case["gpu"], f"{beside(case, 'opara'):.2f}",
                PAPER.get((case["model"], 1, case["gpu"]), "–"), f"{beside(case, 'opara', 'nimble'):.2f}",
                f"{beside(case, 'opara', 'wavefront'):.2f}", f"{depth_first(case):.2f}", f"{orders:g}" if orders else "–",
            ])  # fmt: skip


def depth_first(case: Case) -> float:
    """Depth-first over Opara's launch order, which is what the paper compares."""
    return float(case["orders"]["depth-first"] / case["orders"]["opara"])


def batches(cases: list[Case]) -> Iterator[str]:
    swept = [case for case in cases if case["model"] == SWEPT]
    gpus, sizes = list(dict.fromkeys(c["gpu"] for c in swept)), sorted({c["batch"] for c in swept})
    yield _row(["batch", *gpus, "paper, RTX 2080 SUPER: Opara"])
    yield _row(["---:", *["---"] * (len(gpus) + 1)])
    for size in sizes:
        by_gpu = {case["gpu"]: case for case in swept if case["batch"] == size}
        cells = (
            ", ".join(f"{beside(by_gpu[gpu], method):.2f}" for method in ("opara", "fewest", "best"))
            if gpu in by_gpu
            else "–"
            for gpu in gpus
        )
        yield _row([str(size), *cells, PAPER.get((SWEPT, size, "RTX 2080 SUPER"), "–")])


def words(cases: list[Case], first: list[Case]) -> Iterator[str]:
    """What agrees with the measurements and the paper, and what does not."""
    for case in first:
        yield from _other_side(case)
    yield from _googlenet(first)
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
    """Which allocators are faster than one stream by prediction alone, or as measured alone."""
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
                f"GoogLeNet's streams: {count['opara']} by Opara and {count['nimble']} by Nimble, whose matching is "
                f"on the minimum "
                f"equivalent graph; {count['fewest']} by `fewest`, a matching on the transitive closure: the most "
                f"operators that "
                "can run at once. The paper has 28 and 4."
            )


NOTES = """
- "best" takes the streams of least predicted latency, joined to 2, 4, 8 or 16 where that is better, and their launch order.
- Measured times are of runs as the caller sees them, with copies and calls.
- Not here: SM efficiency, which needs a GPU's counters, and ONNX Runtime on a GPU.
"""
