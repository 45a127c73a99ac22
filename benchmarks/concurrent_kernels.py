"""The block-level simulator beside pairs and sets of kernels that an H100 ran concurrently (``data/h100_concurrency.json``).

Fitted on every second pair are the part of the GPU's arithmetic that products of libraries reach at best, and the
contention of the cost model ``contention``. What is reported is of the other pairs, and of sets of four to eight kernels,
of which none was fitted. ``one after another`` is what was measured so; ``the longer alone`` would be free sharing.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from _result_page import Page

from tvm_sched.cost_model.contention import H100, Contention, crowded, fit_contention
from tvm_sched.cost_model.occupancy_model import occupancy_share
from tvm_sched_runtime.problem import MULTIPROCESSORS, Device, KernelResources
from tvm_sched_runtime.schedule.thread_blocks import PRODUCT_EFFICIENCY, BlockKernel, run_blocks

DATA = Path(__file__).parent / "data/h100_concurrency.json"
PEAK, BANDWIDTH, CACHE_BANDWIDTH = 67e12, 3.35e12, 5.5e12
"""Of an H100 SXM: its data sheet; of the cache by the copies of 8 MB here."""
CACHE = 40 * 10**6
GAP_NS = 1800
"""Between kernels that follow each other in a graph: of a kernel alone what is not between its first and last block."""
GPU = Device("gpu0", 80 << 30, BANDWIDTH, {"float32": PEAK}, model="H100", arch="sm_90")
FULL = "more"
EFFICIENCIES = (1.0, 0.7, 0.5, 0.35, 0.25)


def kernel_of(row: Sequence[Any], efficiency: float) -> BlockKernel:
    name, blocks, threads, registers, shared, flops, moved, alone, _ = row
    ns = max(1, round(alone * 1e3) - GAP_NS)
    peak = PEAK * (efficiency if name.startswith(("mm", "conv")) else 1.0)
    rate = BANDWIDTH if moved > CACHE else CACHE_BANDWIDTH
    arithmetic, bandwidth = min(1.0, flops / peak / ns * 1e9), min(1.0, moved / rate / ns * 1e9)
    return BlockKernel(
        KernelResources(blocks, threads, registers, shared), ns, arithmetic, bandwidth, overhead_ns=GAP_NS
    )


def makespan_us(kernels: Sequence[BlockKernel]) -> float:
    return max(end for _, end in run_blocks(kernels, MULTIPROCESSORS["sm_90"], 132).times) / 1e3


def predicted_pairs(data: dict[str, Any], pairs: Sequence[Sequence[Any]], efficiency: float) -> npt.NDArray[np.float64]:
    """Predict the pairs; a CUDA graph starts the branch captured last first."""
    kernels = [kernel_of(row, efficiency) for row in data["kernels"]["rows"]]
    return np.array([makespan_us([kernels[second], kernels[first]]) for first, second, *_ in pairs])


class PairsOfKernels(NamedTuple):
    """Inputs of the cost model ``contention`` by pair: microseconds alone, shares of resources, crowding."""

    alone: npt.NDArray[np.float64]
    used: npt.NDArray[np.float64]
    crowded: npt.NDArray[np.float64]


def features(data: dict[str, Any], pairs: Sequence[Sequence[Any]]) -> PairsOfKernels:
    rows = data["kernels"]["rows"]
    kernels = [kernel_of(row, PRODUCT_EFFICIENCY) for row in rows]
    used = [(occupancy_share(GPU, k.resources), k.arithmetic, k.bandwidth) for k in kernels]
    crowding = [crowded(GPU, k.resources, k.arithmetic) for k in kernels]
    chosen = np.array([pair[:2] for pair in pairs])
    return PairsOfKernels(
        np.array([row[7] for row in rows])[chosen], np.array(used)[chosen], np.array(crowding)[chosen]
    )


def fitted_contention(data: dict[str, Any]) -> Contention:
    """Fit the contention model to every second pair."""
    pairs = data["pairs"]["rows"][::2]
    return fit_contention(*features(data, pairs), np.array([pair[3] for pair in pairs]))


def figures(predicted: npt.NDArray[np.float64], measured: npt.NDArray[np.float64]) -> list[str]:
    error = np.abs(predicted / measured - 1)
    return [f"{part:.1%}" for part in (np.median(error), np.mean(error), np.mean(error > 0.2))]


def _pairs(page: Page, data: dict[str, Any]) -> None:
    rows = data["pairs"]["rows"]
    fitted, left = rows[::2], rows[1::2]
    products = [
        pair for pair in fitted if any(data["kernels"]["rows"][k][0].startswith(("mm", "conv")) for k in pair[:2])
    ]
    beside = np.array([pair[3] for pair in products])
    errors = {e: np.median(np.abs(predicted_pairs(data, products, e) / beside - 1)) for e in EFFICIENCIES}
    efficiency = min(errors, key=lambda e: errors[e])
    after, beside = np.array([pair[2] for pair in left]), np.array([pair[3] for pair in left])
    alone = [row[7] for row in data["kernels"]["rows"]]
    longer = np.array([max(alone[first], alone[second]) for first, second, *_ in left])
    blocks = predicted_pairs(data, left, efficiency)
    shared = features(data, left)
    contended = H100.pairs(*shared)
    parts = Contention(0.0, 0.0, 0.0).pairs(*shared)
    slow, fast = beside > 1.5 * after, beside < 0.7 * after
    page.text(
        f"Fitted on {len(fitted)} pairs: products reach {efficiency:g} of the peak at best. Of the other {len(left)}:"
    )
    rows = {
        "blocks": blocks, "parts of the device with contention": contended, "parts of the device alone": parts,
        "one after another": after, "the longer alone": longer,
    }  # fmt: skip
    head = ("prediction", "median error", "mean error", "more than 20 % wrong")
    page.table(head, ((name, *figures(predicted, beside)) for name, predicted in rows.items()))
    page.text(
        f"Together it takes {np.min(beside / after):.2f} to {np.max(beside / after):.2f} of the time of one after another, "
        f"{np.median(beside / after):.2f} in the median. Of {slow.sum()} pairs that are slower by half, blocks say so "
        f"(by 15 %) of {(slow & (blocks > 1.15 * after)).sum()}, contention of "
        f"{(slow & (contended > 1.15 * after)).sum()}; "
        f"of {fast.sum()} that are faster by 30 %, (by 15 %) {(fast & (blocks < 0.85 * after)).sum()} and "
        f"{(fast & (contended < 0.85 * after)).sum()}; and of {(beside < 1.1 * after).sum()} that are hardly slower, they "
        f"say by mistake of {((beside < 1.1 * after) & (blocks > 1.3 * after)).sum()} and "
        f"{((beside < 1.1 * after) & (contended > 1.3 * after)).sum()} that they are by 30 %.",
    )
    inside = (beside >= H100.interval[0] * contended) & (beside <= H100.interval[1] * contended)
    page.text(
        f"Contention is a serial share of {H100.serial_share}, an excess of {H100.excess} for each resource and "
        f"{H100.crowding} of what crowding costs; its interval of 90 % ({H100.interval[0]} to {H100.interval[1]} times what "
        f"it says) holds {np.mean(inside):.0%} of the pairs that were not fitted. "
        "Its form, and that the squared error decides and not the median, were chosen with both halves in view; only its "
        "three numbers are of one half.",
    )
    head = ("of the places for blocks both take", "pairs", "over the sum of both without gaps: 10 %", "median", "90 %")
    found = net_of_gaps(shared, beside).items()
    page.table(head, ((said, count, *(f"{ratio:.2f}" for ratio in ratios)) for said, (count, *ratios) in found))


def net_of_gaps(shared: PairsOfKernels, beside: npt.NDArray[np.float64]) -> dict[str, tuple[int, float, float, float]]:
    """Return times of pairs over the sum of both without launch gaps, by size: count, 10 %, median, 90 %."""
    net = (beside - GAP_NS / 1e3) / (shared.alone - GAP_NS / 1e3).sum(axis=1)
    least, most = shared.used[:, :, 0].min(axis=1), shared.used[:, :, 0].max(axis=1)
    groups = {
        "less than 30 %": most < 0.3,
        "30 to 90 %": (least >= 0.3) & (most < 0.9),
        FULL: least >= 0.9,
    }
    return {said: (some.sum(), *np.quantile(net[some], (0.1, 0.5, 0.9))) for said, some in groups.items()}


def beside_full_kernels() -> tuple[int, float, float, float]:
    """Return `net_of_gaps` of the pairs not used for fitting whose kernels both fill the GPU."""
    data = json.loads(DATA.read_text())
    left = data["pairs"]["rows"][1::2]
    return net_of_gaps(features(data, left), np.array([pair[3] for pair in left]))[FULL]


def _orders(page: Page, data: dict[str, Any], efficiency: float) -> None:
    kernels = [kernel_of(row, efficiency) for row in data["kernels"]["rows"]]
    found: dict[tuple[int, ...], dict[str, list[tuple[float, float]]]] = {}
    for chosen, launched, _, graph, streams in data["orders"]["rows"]:
        sets = found.setdefault(tuple(chosen), {"graphs": [], "streams": []})
        for mode, order, measured in (("graphs", launched[::-1], graph), ("streams", launched, streams)):
            sets[mode].append((makespan_us([kernels[chosen[k]] for k in order]) - GAP_NS / 1e3, measured))
    page.text(f"Medians over {len(found)} sets of four to eight kernels, each in seven orders:")
    lines = []
    for mode in ("graphs", "streams"):
        cells = []
        for sets in found.values():
            predicted, measured = np.array(sets[mode]).T
            cells.append((
                measured.max() / measured.min(), predicted.max() / predicted.min(),
                measured[predicted.argmin()] / measured.min(), measured.mean() / measured.min(),
            ))  # fmt: skip
        lines.append((mode, *(f"{ratio:.2f}" for ratio in np.median(np.array(cells), axis=0))))
    best = "the order predicted best over the best"
    page.table(("launched", "worst order over best, measured", "predicted", best, "any order"), lines)


def slowest_pair(data: dict[str, Any]) -> str:
    """Describe the pair that lost most by running together."""
    kernels = data["kernels"]["rows"]
    first, second, after, beside = max(data["pairs"]["rows"], key=lambda pair: pair[3] / pair[2])
    said = [
        f"{kernels[k][1]} blocks of {kernels[k][2]} threads ({kernels[k][7]:.0f} us alone)" for k in (first, second)
    ]
    return f"Slowed most were {said[0]} beside {said[1]}: {beside:.0f} us in place of {after:.0f} one after another."


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--markdown", type=Path, metavar="FILE")
    options = arguments.parse_args()
    data = json.loads(DATA.read_text())
    over = data["overheads_us"]
    empty, between = (
        (over["chain_200"] - over["chain_100"]) / 100,
        (over["alternate_200"] - over["alternate_100"]) / 100,
    )
    join = (over["forkjoin_8_30"] - over["forkjoin_8_10"]) / 20
    page = Page("Concurrent kernels", options.markdown, notes=f"Measured: {data['source']}.")
    _pairs(page, data)
    _orders(page, data, 0.35)
    page.text(
        f"In a graph an empty kernel takes {empty:.2f} us after another of its stream, {between:.2f} us after one of",
        f"another stream; a fork to eight streams and their join {join:.1f} us. Noted with the data: {data['notes']}.",
        "Small blocks that wait for large ones crowd on multiprocessors that get free first. " + slowest_pair(data),
    )
    page.write()


if __name__ == "__main__":
    main()
