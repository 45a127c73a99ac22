# ruff: noqa: E501
"""What `gpu_hour.py page` writes: the result pages of networks, kernels, the cold start, direct reads and the runtime."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from _result_page import NONE, Page, bold

from tvm_sched.cost_model.features import matrix_products
from tvm_sched.cost_model.host_rereads import WIDTH, readings

from .cases import TYPES
from .cold_start import LATE, PEERS
from .record import rows

Found = Mapping[str, Mapping[str, dict[str, Any]]]
GRAPH, EAGER, COMPILED = "PyTorch, CUDA graph", "PyTorch", "torch.compile, reduce-overhead"
OURS = {"one": "ours, one", "opara": "ours, opara", "best": "ours, best"}
FIRST = "cold_start of the first record"
KEPT = "## Measured by hand on 22 November 2026"
"""Heading of the part of a page that is kept as it is."""


def pages(records: Sequence[Path], folder: Path) -> None:
    """Write all pages of which the records have a figure."""
    found = collect(records)
    found[FIRST] = collect(records[:1]).get("cold_start", {})
    made = circumstances(found, records)
    for name, title, write in (
        ("gpu_latency", "Networks on one GPU", latency),
        ("gpu_kernels", "Kernels on one GPU", kernels),
        ("gpu_cold_start", "Cold start on one GPU", cold_start),
        ("gpu_direct_reads", "Kernels that read host memory", direct),
        ("gpu_runtime", "The runtime on a real GPU", runtime),
        ("gpu_streams", "Streams and launch orders on one GPU", streams),
        ("gpu_pairs", "Pairs of kernels on one GPU", pairs),
        ("gpu_text", "Text on one GPU", text),
        ("gpu_others", "Other runtimes on one GPU", others),
    ):
        page = Page(title, folder / f"{name}.md", made=made)
        if write(page, found):
            old = page.path.read_text() if page.path is not None and page.path.exists() else ""
            if KEPT in old:
                page.text(old[old.index(KEPT) :].strip())
            page.write()


def collect(records: Sequence[Path]) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the last row of each step's cases that is done; a case that never was, with its last failure.

    A network keeps the streams that only an earlier run had.
    """
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for file in records:
        for row in rows(file):
            step = found.setdefault(row["step"], {})
            before = step.get(row["case"], {})
            if row.get("status") == "done" and row["step"] == "networks" and "times" in before:
                row |= {
                    part: before.get(part, {}) | row.get(part, {})
                    for part in ("times", "errors", "predicted", "functions")
                }
            if row.get("status") == "done" or before.get("status") != "done":
                step[row["case"]] = row
    return found


def done(found: Found, step: str) -> dict[str, dict[str, Any]]:
    """Return a step's cases that are done."""
    rows_of_step = found.get(step, {})
    return {case: row for case, row in rows_of_step.items() if row.get("status") == "done" and case != "step"}


def failures(page: Page, found: Found, *steps: str) -> None:
    """List the cases of steps that failed."""
    lines = []
    for step in steps:
        for case, row in found.get(step, {}).items():
            for reason in ({"": row["error"]} if row.get("status") == "failed" else row.get("failures") or {}).items():
                lines.append(f"- {': '.join(filter(None, (case, *reason)))}".replace("\n", " ")[:240])
    if lines:
        page.text("Failed:")
        page.text(*lines)


def circumstances(found: Found, records: Sequence[Path]) -> list[str]:
    """Say which machine made the records, when, and with which libraries."""
    environment = done(found, "environment")
    gpu = environment.get("gpu", {}).get("nvidia_smi", "unknown GPU").split(", ")
    processor, libraries = environment.get("processor", {}), environment.get("libraries", {})
    starts = [row["at"] for file in records for row in rows(file) if row["step"] == "run" and "at" in row]
    dates = sorted({time.strftime("%-d %B %Y", time.gmtime(at)) for at in starts}) or ["an unknown date"]
    versions = [f"driver {gpu[1]}"] if len(gpu) > 1 else []
    if libraries.get("torch_cuda"):
        versions += [f"PyTorch {libraries['torch']}", f"CUDA {libraries['torch_cuda']}"]
    if isinstance(libraries.get("cudnn"), int):
        number = libraries["cudnn"]
        versions.append(f"cuDNN {number // 10000}.{number % 10000 // 100}.{number % 100}")
    command = (
        f"python benchmarks/gpu_hour.py page --record {' '.join(f'benchmarks/data/{file.name}' for file in records)}"
    )
    return [
        f"Made by `{command}` from what `benchmarks/gpu_hour.py run` measured on {' and '.join(dates)} on one lent {gpu[0]}",
        f"({', '.join(versions)}; {processor.get('cores', '?')} cores of {processor.get('model', 'an unknown processor')}).",
    ]


def mean(ratios: Iterable[float]) -> float:
    """Return the geometric mean."""
    return statistics.geometric_mean(list(ratios))


def count(some: int, all_of: int) -> str:
    """Return "3 of 4"."""
    return f"{some} of {all_of}"


def span(values: Iterable[float]) -> str:
    """Return the least and the greatest of ratios."""
    found = sorted(values)
    return f"{found[0]:.2f}" if len(found) == 1 else f"{found[0]:.2f} to {found[-1]:.2f}"


def latency(page: Page, found: Found) -> bool:
    """Write the page of networks."""
    measured, compiled = done(found, "networks"), done(found, "compiled")
    measured = {case: row for case, row in measured.items() if GRAPH in row["times"] and row.get("functions")}
    if not measured:
        return False
    page.text(
        "Batch 1, float32 without TF32 on both sides, random weights, inputs and parameters on the GPU. Each time is the",
        "caller's, in microseconds: the median of rows of ten runs, in which all columns alternate. Ours are CUDA graphs by",
        "scheduler `single`. *PyTorch / ours* divides the time of PyTorch's CUDA graph by ours with the best streams: above 1,",
        "ours is faster. *Libraries* counts the kernels of cuBLASLt and cuDNN among ours. The error is the greatest difference",
        "from float64, as a part of the greatest value. Where a record has some of our columns only, the others are of the",
        "record before it, on the same kind of machine on the same day.",
    )
    ratios: dict[str, dict[str, float]] = {}
    for dtype in TYPES:
        cases = {case.rpartition(" ")[0]: (case, row) for case, row in measured.items() if case.endswith(f" {dtype}")}
        if not cases:
            continue
        page.text(f"## {dtype}")
        lines = []
        for name, (case, row) in cases.items():
            times: dict[str, float | None] = {way: each["median_us"] for way, each in row["times"].items()}
            times |= {way: each["median_us"] for way, each in compiled.get(case, {}).get("times", {}).items()}
            columns = [times.get(way) for way in (EAGER, GRAPH, COMPILED, *OURS.values())]
            cells = bold([NONE if each is None else f"{each:.0f}" for each in columns], columns)
            ours = [each for each in columns[3:] if each is not None]
            if ours:
                ratios.setdefault(dtype, {})[name] = float(columns[1] or 0) / min(ours)
            ratio = f"{ratios[dtype][name]:.2f}" if ours else NONE
            used = row.get("functions", {})
            libraries = f"{used.get('nvidia', 0)} of {sum(used.values())}" if used else NONE
            error = max((row["errors"][way] for way in OURS.values() if way in row["errors"]), default=None)
            told = NONE if error is None else f"{error:.0e}"
            lines.append([name, *cells, ratio, libraries, told, f"{row['errors'][EAGER]:.0e}"])
        page.table(
            ["network", EAGER, GRAPH, "torch.compile", "ours, one stream", "ours, Opara's streams", "ours, best by prediction",
             "PyTorch / ours", "libraries", "error", "PyTorch's"], lines,
        )  # fmt: skip
    page.text("What it says:")
    page.text(*latency_sentences(measured, ratios))
    predicted_networks(page, measured)
    failures(page, found, "networks", "compiled")
    return True


def latency_sentences(measured: Mapping[str, dict[str, Any]], ratios: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Say how ours compares with PyTorch's graphs, and what streams give."""
    lines = []
    for dtype, each in ratios.items():
        fast = sum(ratio >= 1 for ratio in each.values())
        lines.append(
            f"- In {dtype}, {count(fast, len(each))} networks are at least as fast as PyTorch's CUDA graph. PyTorch's time over "
            f"ours is {mean(each.values()):.2f} as a geometric mean, {span(each.values())}."
        )
    for way, words in (("opara", "Opara's streams"), ("best", "The streams that the prediction prefers")):
        gains = {}
        for case, row in measured.items():
            times = row["times"]
            if OURS[way] in times and OURS["one"] in times:
                gains[case] = times[OURS["one"]]["median_us"] / times[OURS[way]]["median_us"]
        if gains:
            best = max(gains, key=lambda case: gains[case])
            lines.append(
                f"- {words} make {len(gains)} networks {mean(gains.values()):.2f} times as fast as one stream (geometric mean; "
                f"{span(gains.values())}, most for {best})."
            )
    return lines


def predicted_networks(page: Page, measured: Mapping[str, dict[str, Any]]) -> None:
    """Put predictions beside what was measured."""
    lines, ratios = [], []
    for case, row in measured.items():
        for way in OURS.values():
            if way in row["times"] and row["predicted"].get(way):
                ratio = row["times"][way]["median_us"] / row["predicted"][way]
                ratios.append(ratio)
                lines.append(
                    [case, way.removeprefix("ours, "), f"{row['predicted'][way]:.0f}", f"{row['times'][way]['median_us']:.0f}",
                     f"{ratio:.1f}"]
                )  # fmt: skip
    if not lines:
        return
    page.text("## Predicted and measured")
    page.text(
        "Predictions are of the roofline of the data sheet, with `launch_overhead`, on",
        "`benchmarks/gpu_steps/h100.toml`, in microseconds, with all parameters on the GPU.",
    )
    page.table(["network", "streams", "predicted", "measured", "measured / predicted"], lines, left=2)
    page.text(
        f"Measured times are {mean(ratios):.1f} times the predicted ones (geometric mean; {span(ratios)}). At batch 1 a kernel",
        "fills a small part of the GPU, which a roofline does not know: compare schedules by it, do not read times off it.",
    )


def kernels(page: Page, found: Found) -> bool:
    """Write the page of single kernels."""
    measured = {case: row for case, row in done(found, "kernels").items() if "us" in row}
    if not measured:
        return False
    page.text(
        "Each time is the median of 15 replays of a CUDA graph of 20 calls, divided by 20, in microseconds: launches do not",
        "count. PyTorch's calls are captured in the same way. Every call uses the same memory, so up to 50 MB may come from the",
        "level-2 cache. *Roofline* is the time of the arithmetic at 66.9 (float32), 494 (TF32) or 989 TFLOP/s (half precision)",
        "or of the bytes at 3.35 TB/s, whichever is longer, as a part of our time. Errors are the greatest difference from",
        "PyTorch's result in float64, as a part of the greatest value.",
    )
    lines, ratios, predictions = [], dict[str, list[float]](), list[float]()
    for case, row in sorted(measured.items(), key=lambda item: order_of(item[0])):
        roof = roofline_us(case, row)
        ratio = row["torch_us"] / row["us"]
        family = case.split()[0]
        ratios.setdefault(
            f"{family}, {'float32' if case.endswith(('float32', 'tf32')) else 'half precision'}", []
        ).append(ratio)
        predictions.append(row["us"] / row["predicted_us"])
        lines.append(
            [case, f"{row['us']:.1f}", f"{row['torch_us']:.1f}", f"{ratio:.2f}", f"{row['predicted_us']:.1f}",
             f"{100 * roof / row['us']:.0f} %", f"{row['error']:.0e}", f"{row['torch_error']:.0e}"]
        )  # fmt: skip
    page.table(["kernel", "ours", "PyTorch", "PyTorch / ours", "predicted", "roofline", "error", "PyTorch's"], lines)
    page.text("What it says, in geometric means of PyTorch's time over ours:")
    page.text(
        *(
            f"- {family}: {mean(each):.2f} ({span(each)}; {count(sum(ratio >= 0.99 for ratio in each), len(each))} at least as fast)"
            for family, each in ratios.items()
        )
    )
    page.text(
        f"Kernels take {mean(predictions):.1f} times what the roofline predicts (geometric mean; {span(predictions)}).",
    )
    failures(page, found, "kernels")
    return True


def order_of(case: str) -> tuple[int, int, str]:
    """Sort kernels by family and type."""
    families = ("attention", "conv", "product")
    family = next((k for k, name in enumerate(families) if case.startswith(name)), len(families))
    return family, next((k for k, dtype in enumerate(TYPES) if f" {dtype}" in case), 0), case


def roofline_us(case: str, row: Mapping[str, Any]) -> float:
    """Return the microseconds of a kernel at the data sheet's rates."""
    rate = 494e12 if " tf32" in case else 66.9e12 if " float32" in case else 989e12
    return 1e6 * float(max(row["flops"] / rate, row["bytes"] / 3.35e12))


def cold_start(page: Page, found: Found) -> bool:
    """Write the page of the cold start."""
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for case, row in done(found, "cold_start").items():
        size, state, rest = case.split(", ", 2)
        groups.setdefault((size, state, rest.rpartition(", turn")[0]), []).append(row)
    if not groups:
        return False
    page.text(
        "From the start of a process to the first output on the host, in seconds. The model is a chain of products of one row",
        "in float32 whose weights are in one safetensors file. *cached*: the file is in the page cache; *from disk*: the page",
        "cache was dropped, libraries too. PyTorch's rows load the same file in five ways and then multiply; they also import",
        "PyTorch, which a server pays once. The column *parameters* leaves that out: it counts from the context or, for ours,",
        "from the call that loads, until the first output. Medians over the turns.",
    )
    states = dict.fromkeys((size, state) for size, state, _ in groups)
    for size, state in states:
        lines = []
        for way in ("ours", LATE, *PEERS):
            each = groups.get((size, state, way))
            if each:
                marks = [dict(row["marks"]) for row in each]
                begin = (
                    "input made"
                    if way in ("ours", LATE)
                    else "CUDA initialised"
                    if "CUDA initialised" in marks[0]
                    else "context"
                )
                first = statistics.median(mark["first output"] for mark in marks)
                lines.append(
                    [way, f"{statistics.median(mark['libraries imported'] for mark in marks):.2f}",
                     f"{statistics.median(mark['first output'] - mark[begin] for mark in marks):.3f}", f"{first:.2f}",
                     str(len(each)), f"{max(row['error'] for row in each):.0e}"]
                )  # fmt: skip
        page.text(f"## {size}, {state}")
        page.table(["loader", "libraries imported", "parameters", "first output", "turns", "error"], lines)
    stages(page, groups)
    predicted_loads(page, found, groups)
    failures(page, found, "cold_start")
    return True


def stages(page: Page, groups: Mapping[tuple[str, str, str], list[dict[str, Any]]]) -> None:
    """Write the stages of our loads."""
    ours = {key: each for key, each in groups.items() if key[2] == "ours" and "stages" in each[0]}
    if not ours:
        return
    names = dict.fromkeys(stage["name"] for each in ours.values() for row in each for stage in row["stages"])
    page.text("## Stages of our loads")
    page.text(
        "Milliseconds, medians. *process* is the time before the artifact is opened: Python and its imports. Stages may overlap:",
        "parameters are pinned while the first run has begun.",
    )
    lines = []
    for name in names:
        cells = []
        for each in ours.values():
            times = [
                1e3 * (stage["end_s"] - stage["start_s"])
                for row in each
                for stage in row["stages"]
                if stage["name"] == name
            ]
            cells.append(f"{statistics.median(times):.1f}" if times else NONE)
        counted = next(
            stage["model"] for each in ours.values() for row in each for stage in row["stages"] if stage["name"] == name
        )
        lines.append([name, counted, *cells])
    page.table(["stage", "in the model", *(f"{size}, {state}" for size, state, _ in ours)], lines, left=2)


def predicted_loads(page: Page, found: Found, groups: Mapping[tuple[str, str, str], list[dict[str, Any]]]) -> None:
    """Put the predicted first run beside the measured one."""
    lines = []
    for (size, state, way), each in groups.items():
        if way == "ours" and "stages" in each[0]:
            times = [
                1e3 * (stage["end_s"] - stage["start_s"])
                for row in each
                for stage in row["stages"]
                if stage["name"] == "first run"
            ]
            predicted = each[-1]["predicted"]["cold_us"] / 1e3
            measured = statistics.median(times)
            lines.append([f"{size}, {state}", f"{predicted:.1f}", f"{measured:.1f}", f"{measured / predicted:.2f}"])
    if lines:
        page.text("## The first run, predicted and measured")
        page.text(
            "Milliseconds: the model counts copies and kernels, not the stages before them. Products here are cuBLASLt's, which",
            "seems to load its kernels in the first run: some 60 ms, which the model does not count; parameters are pinned",
            "meanwhile.",
        )
        if first := [row for case, row in found.get(FIRST, {}).items() if ", cached, ours, turn 0" in case]:
            ran = [
                1e3 * sum(s["end_s"] - s["start_s"] for s in row["stages"] if s["name"] == "first run") for row in first
            ]
            ratios = [ms / (row["predicted"]["cold_us"] / 1e3) for ms, row in zip(ran, first, strict=True)]
            page.text(
                "In the first record the same models, cached, have kernels of TVM and were pinned before the first run, which then",
                f"took {', '.join(f'{ms:.1f}' for ms in ran)} ms: {', '.join(f'{ratio:.2f}' for ratio in ratios)} of the prediction.",
            )
        page.table(["model", "predicted", "measured", "measured / predicted"], lines)


def priced(page: Page, measured: Mapping[str, Mapping[str, Any]]) -> None:
    """Show the price of direct host access that counts readings, beside the times, in bytes over the rate of the copy."""
    page.text(
        "## The price that counts readings",
        "",
        "`tvm_sched.cost_model.host_rereads`, which the cost models `learned` and `measured` use: microseconds for the weight, at",
        "the rate of its copy in the same run. Fitted to the three products of libraries; those of TVM check it.",
    )
    lines = []
    for case, row in measured.items():
        rows, kernels, weight = case.split(", ")
        loaded = measured.get(f"{rows}, {kernels}, loaded")
        if weight == "loaded" or loaded is None:
            continue
        m, size = int(rows.split()[0]), row.get("width", 4096)
        copy = max(us for kind, us in loaded["traced"] if kind == "copy")
        work = matrix_products([m], [size], [size], "float32", 32)
        work = replace(work, library=np.array([float(kernels == "libraries")]))
        price = copy * WIDTH * readings(work)[1][0]
        time = row["times"]["graph"]["median_us"]
        half = "fitted" if kernels == "libraries" else "held out"
        lines.append([f"{rows}, {kernels}", half, f"{price:.0f}", f"{time:.0f}", f"{time / price:.2f}"])
    page.table(["rows, kernels", "half", "price", "CUDA graph", "graph / price"], lines)


def contention(page: Page, found: Found, table: list[dict[str, Any]]) -> None:
    """Show copies in both directions at once, and say what the records do not hold."""
    rates = next(
        (row["gb_s"] for row in done(found, "copies").values() if "from_host_both" in row.get("gb_s", {})), None
    )
    both = next((row["gb_s"] for row in table if row["case"] == "copy: both directions at once, sum"), None)
    if rates is None or both is None:
        return
    page.text("## Copies under contention")
    page.table(
        ["copies of one GPU", "alone, GB/s", "both directions at once, GB/s", "both / alone"],
        [[words, f"{rates[name]:.1f}", f"{rates[name + '_both']:.1f}", f"{rates[name + '_both'] / rates[name]:.2f}"]
         for words, name in (("from the host", "from_host"), ("to the host", "to_host"))],
    )  # fmt: skip
    alone = rates["from_host"] + rates["to_host"]
    held = (rates["from_host_both"] + rates["to_host_both"]) / alone
    page.text(
        f"In `copies.cu` both directions together carry {both:.1f} GB/s, {both / alone:.2f} of the sum of the two alone; in the table",
        f"{held:.2f}. Were a share of the rate fitted to `copies.cu`, it would be {both / alone / held:.2f} of what the table says, where the full rate",
        f"is {1 / held:.2f}: no better. So a duplex bus keeps the full rate in each direction, up to {alone / both:.2f} times what both have at once.",
        "",
        "The record is of one GPU: it does not say what several GPUs that load at once take from each other,",
        "nor what a copy and a kernel that reads host memory do. In the model they take turns: a kernel that reads a weight several",
        "times occupies the bus for all its readings (`host_read` in `docs/model.md`).",
    )


def direct(page: Page, found: Found) -> bool:
    """Write the page of direct host reads."""
    measured = done(found, "direct")
    if not measured:
        return False
    page.text(
        "A product with a 4096 x 4096 weight (64 MiB) in float32. The weight is copied before each run, or its kernel reads it in",
        "host memory (`direct host access`). Microseconds, medians of 60 runs; *kernel* is of one traced run.",
    )
    lines, ratios = [], dict[str, float]()
    for case, row in measured.items():
        kernel = next((us for kind, us in row["traced"] if kind == "kernel"), float("nan"))
        graph = row["times"]["graph"]["median_us"]
        ratios[case] = graph / row["predicted_us"]
        lines.append(
            [case, f"{row['predicted_us']:.0f}", f"{row['times']['issued']['median_us']:.0f}", f"{graph:.0f}",
             f"{ratios[case]:.2f}", f"{kernel:.0f}", f"{row['error']:.0e}"]
        )  # fmt: skip
    page.table(
        ["rows, kernels, weight", "predicted", "issued", "CUDA graph", "graph / predicted", "kernel", "error"], lines
    )
    reads = {case: ratio for case, ratio in ratios.items() if "read in host memory" in case}
    loads = {case: ratio for case, ratio in ratios.items() if case.endswith("loaded")}
    if reads and loads:
        worst = max(reads, key=lambda case: reads[case])
        counted = (
            "The prediction counts the weight once for each tile of rows of a library's product, else once."
            if measured[worst].get("counts_tiles")
            else "The prediction counts each byte once."
        )
        page.text(
            f"Runs that load the weight take {span(loads.values())} times what is predicted, runs that read it in host memory",
            f"{span(reads.values())} times (most: {worst}). {counted} A kernel reads the weight once",
            "for each tile of rows, and its accesses need not be as wide as a copy's.",
        )
        priced(page, measured)
    table = copy_rows(found)
    reads_of = [row for row in table if row["case"].startswith("direct")]
    if reads_of:
        page.text("## Reads of host memory by a plain kernel")
        page.text(
            "`benchmarks/gpu_steps/copies.cu`: *parameter* is the number of blocks, or the stride in vectors of 16 bytes, or how",
            "often each byte is read. GB/s counts the bytes that the kernel uses.",
        )
        page.table(
            ["access", "MiB", "parameter", "ms", "GB/s"],
            [[row["case"].partition(": ")[2], row["mib"], row["parameter"], f"{row['ms']:.3f}", f"{row['gb_s']:.1f}"]
             for row in reads_of],
        )  # fmt: skip
    contention(page, found, table)
    at_once = done(found, "contention")
    if at_once:
        page.text("## Loads and direct reads at once")
        page.text(
            "Two runs at once over the sum of both alone; in the model what shares a bus takes turns, which is 1."
        )
        page.table(["weights of the two", "at once / one after another"],
                   [[case, f"{row['ratio']:.2f}"] for case, row in at_once.items()])  # fmt: skip
    failures(page, found, "direct", "contention")
    return True


def text(page: Page, found: Found) -> bool:
    """Write the page of text."""
    measured = done(found, "text")
    if not measured:
        return False
    same = {case: row["tokens"] for case, row in measured.items() if "tokens" in row}
    page.text(
        f"Greedy tokens of a small Llama are those of the CPU's kernels: {', '.join(f'{n} {case}' for case, n in same.items()) or NONE}.",
        "Below, four layers of a Llama with 7 billion parameters with the table of 32,000 tokens, random weights, in the middle of a",
        "context of 4,096. *Roofline*: the bytes of the weights, and of keys and values that are filled, at an H100's 3.35 TB/s, as a part of the",
        "graph's time.",
    )
    lines = [
        [case, name, f"{plan['predicted_us']:.0f}", *(f"{plan['times'][way]['median_us']:.0f}" for way in ("issued", "graph")),
         f"{plan['bytes'] / 3.35e6 / plan['times']['graph']['median_us']:.0%}",
         f"{plan['flops'] / plan['times']['graph']['median_us'] / 1e6:.1f}"]
        for case, row in measured.items() for name, plan in row.get("plans", {}).items()
    ]  # fmt: skip
    head = ["weights", "plan", "predicted, us", "issued, us", "CUDA graph, us", "roofline", "TFLOP/s"]
    page.table(head, lines, left=2)
    failures(page, found, "text")
    return True


def others(page: Page, found: Found) -> bool:
    """Write the page of other runtimes."""
    measured = done(found, "others")
    if not measured:
        return False
    ours = {case: row["times"] for case, row in done(found, "networks").items()}
    page.text("Microseconds, medians; inputs and outputs on the GPU. *ours*: CUDA graphs, the best streams.")
    lines = []
    for case, row in measured.items():
        title, _, provider = case.rpartition(", ")
        best = min(
            (each["median_us"] for way, each in ours.get(title, {}).items() if way.startswith("ours")), default=None
        )
        lines.append([title, provider, f"{row['times'][provider]['median_us']:.0f}", NONE if best is None else f"{best:.0f}",
                      f"{row['error']:.0e}"])  # fmt: skip
    page.table(["network", "provider", "us", "ours", "error"], lines, left=2)
    failures(page, found, "others")
    return True


def copy_rows(found: Found) -> list[dict[str, Any]]:
    """Return the rows of the program ``copies``."""
    listed: list[dict[str, Any]] = done(found, "copies").get("copies.cu", {}).get("rows", [])
    return listed


def runtime(page: Page, found: Found) -> bool:
    """Write the page of the runtime: values, compute-sanitizer, copies, pinning."""
    checked = done(found, "values")
    if not checked:
        return False
    page.text("## Values")
    several = sum("schedule" in case for case in checked)
    page.text(
        f"{count(len(checked), len([case for case in found['values'] if case != 'step']))} small networks are right against",
        f"float64: {several} by random schedules on two to four devices, all on this one GPU, each cold and warm, issued and as a",
        "CUDA graph, five runs each with a run of other inputs between. The greatest error is",
        f"{max(row['error'] for row in checked.values() if row['tolerance'] < 1e-3):.1e} of the greatest value in float32,",
        f"{max((row['error'] for row in checked.values() if row['tolerance'] > 1e-3), default=0):.1e} in half precision.",
    )
    sanitized = done(found, "sanitizer")
    if sanitized:
        page.text("## compute-sanitizer")
        page.table(
            ["check and network", "exit status", "said"],
            [[case, row["exit"], last_line(row["said"])] for case, row in sanitized.items()],
        )
    kept = done(found, "states")
    if kept:
        page.text("## States")
        page.text(
            "Differences from float64 of outputs and of the state, issued and as graphs, from zero and set to zero:"
        )
        page.table(
            ["model", "steps", "error", "allowed"],
            [[case, row["steps"], f"{row['error']:.0e}", f"{row['tolerance']:.0e}"] for case, row in kept.items()],
        )
    between = {case: row for case, row in done(found, "peers").items() if "gb_s" in row}
    if between:
        page.text("## Between GPUs")
        page.text(
            "GB/s of copies of 256 MiB whose bytes were compared when the GPUs were opened: done by the receiver, as in runs, by",
            "the sender, and through the host's memory.",
        )
        page.table(
            ["copies", "receiver", "sender", "through the host"],
            [
                [case, *(f"{row['gb_s'][way]:.1f}" for way in ("pulled", "pushed", "staged"))]
                for case, row in between.items()
            ],
        )
    over = {case: row for case, row in done(found, "peers").items() if "times" in row}
    if over:
        ways = dict.fromkeys(way for row in over.values() for way in row["times"])
        page.text("Schedules over several GPUs, microseconds; *never*: all copies go through the host.")
        page.table(
            ["network", "GPUs", *ways, "error"],
            [[case, row["devices"], *(f"{row['times'][way]['median_us']:.0f}" for way in ways), f"{row['error']:.0e}"]
             for case, row in over.items()],
        )  # fmt: skip
    table = copy_rows(found)
    plain = [row for row in table if row["case"].startswith("copy") and "kib" in row]
    if plain:
        page.text("## Copies")
        sizes = dict.fromkeys(row["kib"] for row in plain)
        kinds = dict.fromkeys(row["case"].partition(": ")[2] for row in plain)
        cell = {(row["case"].partition(": ")[2], row["kib"]): f"{row['us']:.1f}" for row in plain}
        page.text("Microseconds by size, one copy at a time, and waiting for it:")
        page.table(["KiB", *kinds], [[kib, *(cell.get((kind, kib), NONE) for kind in kinds)] for kib in sizes])
    pins = [row for row in table if row["case"].startswith("pin")]
    if pins:
        page.text("## Pinning")
        page.table(
            ["pinning", "MiB", "threads", "ms", "GB/s"],
            [[row["case"].partition(": ")[2], row.get("mib", NONE), row.get("threads", NONE), f"{row['ms']:.1f}",
              f"{row['gb_s']:.1f}" if "gb_s" in row else NONE]
             for row in pins],
        )  # fmt: skip
    opening = done(found, "environment").get("opening the GPU")
    if opening:
        page.text("## Opening the GPU")
        page.text("Seconds of `cuInit` and of the primary context in a new process, by `CUDA_MODULE_LOADING`:")
        page.table(
            ["modules", "cuInit", "context"],
            [[way, *(" and ".join(f"{turn[k]:.3f}" for turn in turns) for k in (0, 1))]
             for way, turns in opening["init_and_context_s"].items()],
        )  # fmt: skip
    failures(page, found, "values", "states", "sanitizer", "copies", "peers", "environment")
    return True


def streams(page: Page, found: Found) -> bool:
    """Write the page of streams and launch orders."""
    measured = {case: row for case, row in done(found, "streams").items() if row["times"]}
    if not measured:
        return False
    page.text(
        "Batch 1, float32 without TF32, parameters on the GPU, CUDA graphs. Microseconds of a run as the caller sees it, medians",
        "of rows of ten runs, in which all ways alternate; in brackets the speed beside one stream. *busy*: percent of the time",
        "in which a multiprocessor has a warp, by Nsight Compute of the whole graph; *predicted* is of the cost model `occupancy`.",
    )
    share = done(found, "efficiency")
    for case, row in measured.items():
        page.text(f"## {case}")
        one = row["times"].get("ours, one", {}).get("median_us")
        lines = []
        for way, each in sorted(row["times"].items(), key=lambda item: float(item[1]["median_us"])):
            name = way.removeprefix("ours, ")
            used = share.get(f"{case}, {name}")
            speed = f" ({one / each['median_us']:.2f})" if one else ""
            predicted = row["predicted"].get(way)
            lines.append(
                [name, f"{each['median_us']:.0f}{speed}", NONE if predicted is None else f"{predicted:.0f}",
                 NONE if used is None else f"{used['busy_percent']:.0f}"]
            )  # fmt: skip
        page.table(["streams, launch order", "us", "predicted", "busy"], lines)
    by_threads = done(found, "issuing")
    if by_threads:
        page.text("## Threads that issue a run")
        page.text("Microseconds of runs that are issued step by step, not as graphs.")
        ways = dict.fromkeys(way for row in by_threads.values() for way in row["times"])
        page.table(
            ["network, streams", *ways],
            [[case, *(f"{row['times'][way]['median_us']:.0f}" if way in row["times"] else NONE for way in ways)]
             for case, row in by_threads.items()],
        )  # fmt: skip
    failures(page, found, "streams", "issuing", "efficiency")
    return True


def pairs(page: Page, found: Found) -> bool:
    """Write the page of pairs of kernels."""
    rows_of_step = done(found, "pairs")
    both = {case: row for case, row in rows_of_step.items() if "ratio" in row}
    if not both:
        return False
    page.text(
        "Chains of equal kernels, each a CUDA graph that a thread of its own runs again and again: the time of both at once over",
        "the sum of both alone. 1 is one after another, 0.5 free sharing. *places*: the most that a launch of either takes of",
        "the GPU's places for blocks.",
    )
    places = {case: max(row["shares"]) for case, row in rows_of_step.items() if row.get("shares")}
    lines = []
    for case, row in sorted(both.items(), key=lambda item: float(item[1]["ratio"])):
        parts = [f"{100 * places[name]:.0f} %" if name in places else NONE for name in case.split(" and ")]
        lines.append([case, " and ".join(parts), f"{row['ratio']:.2f}"])
    page.table(["kernels", "places", "at once over one after another"], lines, left=2)
    ratios = [row["ratio"] for row in both.values()]
    page.text(f"At once takes {mean(ratios):.2f} of the time of one after another (geometric mean; {span(ratios)}).")
    failures(page, found, "pairs")
    return True


def last_line(text: str) -> str:
    """Return the last line of a program's output that says something."""
    lines = [line.strip("= ").strip() for line in text.splitlines() if "SUMMARY" in line] or text.splitlines()[-1:]
    return lines[-1] if lines else ""
