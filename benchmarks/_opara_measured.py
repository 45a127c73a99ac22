"""What an H100 took for Opara's models (``data/h100_opara.json``), and the page of it that `opara_gpu.py page` makes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from _common import circumstances

DATA: dict[str, Any] = json.loads((Path(__file__).parent / "data" / "h100_opara.json").read_text())
MEASURED: dict[str, dict[str, Any]] = DATA["models"]
"""By model: microseconds by variant under ``"us"``, numbers of streams under ``"streams"``."""
ONE, LAST_FIRST = "one stream", ", last first"
PEERS = {"nimble": (1.29, "T5 1.093"), "wavefront": (1.18, "")}
"""Opara beside the other allocators: what the paper says at most, and of what model."""
SINGLE = 1.68
"""Opara beside one sequential CUDA graph, at most."""
ORDERS = {"GoogLeNet, RTX 2080 SUPER": 1.29, "GoogLeNet, A100": 1.103}
"""Depth-first over Opara's launch order (Section II-C)."""


class OrderEffect(NamedTuple):
    """The worst launch order over the best with Opara's streams, and how many orders there are."""

    ratio: float
    orders: int


def order_effect(model: str) -> OrderEffect | None:
    """As measured, over every order that ran; None where the model was not measured."""
    us = MEASURED.get(model, {}).get("us", {})
    times = [time for variant, time in us.items() if variant.split(",")[0] == "opara"]
    return OrderEffect(max(times) / min(times), len(times)) if times else None


def speed(model: str, variant: str, over: str = ONE) -> float | None:
    """How many times as fast as another variant; None where one was not measured."""
    us = MEASURED.get(model, {}).get("us", {})
    return us[over] / us[variant] if over in us and variant in us else None


def stream_cost(model: str, variant: str) -> float | None:
    """Microseconds that Opara's streams took more than those of another variant, for each further stream."""
    found = MEASURED[model]
    if variant not in found["us"] or variant not in found["streams"]:
        return None
    further = found["streams"]["opara"] - found["streams"][variant]
    return (found["us"]["opara"] - found["us"][variant]) / further if further > 0 else None


def page() -> str:
    """The page of the measurements."""
    lines = ["# Opara's streams and launch orders on an H100", "", *circumstances()]
    lines += [f"Measured on {DATA['source']}. Figures are {DATA['unit']}; in brackets the speed beside one stream."]
    lines += [
        f'Of the measurement: {DATA["notes"]}. "Last first": of operators that are free, the last of the launch order is'
    ]
    lines += [
        "captured first, since a graph starts the branch that was captured last first "
        "([measured](concurrent_kernels.md)). Since"
    ]
    lines += [
        "then a graph's nodes are made in that order whatever the plan, so that the chosen launch order is the "
        "one in which"
    ]
    lines += ["branches start; that has not run on a GPU yet. Later kernels are on [another page](gpu_latency.md).", ""]
    lines += [
        *_figures(),
        "",
        "Beside the paper (Opara, Sections II and V: RTX 2080 SUPER for GoogLeNet, Inception-v3 and DeepFM, A100",
    ]
    lines += ["for the others; PyTorch's kernels):", "", *_claims(), "", "## What contradicts the paper", ""]
    lines += [f"- {text}" for text in _contradictions()]
    lines += [
        "",
        "NASNet-A large was not measured; what is predicted of it stands [beside these](opara.md). torch captures "
        "neither BERT",
    ]
    lines += ["nor T5 of transformers 5.17 as they are (masks are copied from the host)."]
    return "\n".join(lines) + "\n"


def _figures() -> Iterator[str]:
    yield "| variant | " + " | ".join(MEASURED) + " |"
    yield "| --- |" + " ---: |" * len(MEASURED)
    variants = dict.fromkeys(variant for found in MEASURED.values() for variant in found["us"])
    best = {m: min(t for v, t in found["us"].items() if not v.startswith("torch")) for m, found in MEASURED.items()}
    for variant in variants:
        cells = []
        for model, found in MEASURED.items():
            time = found["us"].get(variant)
            text = "" if time is None else f"{time:,}"
            if time is not None and not variant.startswith("torch"):
                text += f" ({found['us'][ONE] / time:.2f})"
            cells.append(f"**{text}**" if time == best[model] else text)
        yield f"| {variant} | " + " | ".join(cells) + " |"
    counts = (", ".join(f"{name} {count}" for name, count in found["streams"].items()) for found in MEASURED.values())
    yield "| streams | " + " | ".join(counts) + " |"


def _claims() -> Iterator[str]:
    yield "| claim | paper | here |"
    yield "| --- | --- | --- |"
    single = ", ".join(f"{speed(model, 'opara'):.2f} {model}" for model in MEASURED)
    yield f"| Opara beside one sequential CUDA graph | up to {SINGLE}; Inception-v3, batch 1: 1.41 | {single} |"
    for peer, (most, other) in PEERS.items():
        here = ", ".join(f"{speed(model, 'opara', peer):.2f} {model}" for model in MEASURED)
        yield f"| Opara beside {peer} | up to {most}{'; ' + other if other else ''} | {here} |"
    orders = ", ".join(f"{e.ratio:.2f} {m} ({e.orders})" for m in MEASURED if (e := order_effect(m)))
    said = ", ".join(f"{ratio:g} ({where})" for where, ratio in ORDERS.items())
    claim = "launch order: worst over best with Opara's streams (number of orders in brackets)"
    yield f"| {claim} | {said}: depth-first over Opara's | {orders} |"
    counts = MEASURED["GoogLeNet"]["streams"]
    here = ", ".join(f"{count} by {name}" for name, count in counts.items())
    yield f"| streams of GoogLeNet | 28 by Opara, 4 by Nimble | {here} |"


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
        "Nimble's streams are Opara's: a largest matching on the minimum equivalent graph gives GoogLeNet as many "
        "chains, since "
        "its modules have three forks of one producer each, which no matching can share. The paper's 4 is the "
        "number of branches "
        "of a module."
    )
    costs = [
        f"{cost:.1f} ({model}, beside {variant})"
        for model in MEASURED
        for variant in ("wavefront", "ios")
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
