"""The comparisons of README and `docs/index.md`: each is computed from the page or data that it stands on.

A claim's text is made from the figures of its source, so a figure that changes there is a claim that README no longer makes.
It fails, too, if README compares something that no claim is about. Run it for a list of the claims with their sources,
the commands that made these, and what both sides of each comparison had.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from _common import parser

ROOT = Path(__file__).parents[1]
RESULTS = "docs/results"
PAPER_SERVERS = ("v100-server", "v100-hetero", "a6000-server")
COMPARES = re.compile(
    r"\d.*\b(times|longer|shorter|slower|faster|instead of|more in|at most|less than|within|reaches|median)\b"
    r"|\b(times|longer|shorter|slower|faster|instead of|more in|at most|less than|within|reaches|median)\b.*\d"
    r"|\b(faster|slower|better|shorter) (than|on)\b|\bon a par\b|\bas fast as\b"
)
"""What makes a sentence a comparison."""


class Claim(NamedTuple):
    """A sentence, or a part of one, that README must have."""

    text: Callable[[], str]
    """Returns the text, with the figures of the source."""
    source: str
    """Page or data file of the figures, relative to the repository."""
    sides: str
    """What both sides had: graph, kernels, variants, time, and who set the parameters."""


Table = dict[str, dict[str, str]]


def tables(page: str) -> Iterator[Table]:
    """Return the tables of a results page: cells by the first cell of their row and by their column."""
    head: list[str] = []
    found: Table = {}
    for line in [*(ROOT / RESULTS / f"{page}.md").read_text().splitlines(), ""]:
        cells = [cell.strip().strip("*") for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if not cells:
            if found:
                yield found
            head, found = [], {}
        elif not head:
            head = cells
        elif not set(line) <= set("|-: "):
            name = cells[0] if cells[0] not in found else f"{cells[0]} ({len(found)})"
            found[name] = dict(zip(head, cells, strict=True))


def table(page: str, column: str) -> Table:
    """Return the first table of a page that has a column."""
    for found in tables(page):
        if any(column in row for row in found.values()):
            return found
    raise SystemExit(f"{RESULTS}/{page}.md has no table with a column {column!r}")


def number(cell: str) -> float:
    """Return the first number of a cell."""
    found = re.search(r"-?\d+(\.\d+)?(e[+-]\d+)?", cell)
    assert found, cell
    return float(found.group())


def percent(ratio: float) -> str:
    return f"{100 * (ratio - 1):.0f} %"


def benchmark_methods() -> str:
    over = {name: number(row["over best"]) for name, row in table("benchmark", "over best").items()}
    families = table("benchmark", "sortinghat")
    of = {name: number(value) for name, value in families["sortinghat (5)"].items() if name != "family"}
    hios = number(families["hios (6)"]["hios-lp"])
    beside = {name: value / over["anytime"] for name, value in over.items()}
    return (
        f"HEFT's schedules take {percent(beside['heft'])} longer than ours, HIOS-LP's {percent(beside['hios-lp'])}, "
        f"SortingHat's {percent(beside['sortinghat'])}; one device takes {beside['single']:.1f} times as long. On the kind "
        "of problem that each was made for, SortingHat's take "
        f"{percent(of['sortinghat'] / of['anytime'])} longer and HIOS-LP's {percent(hios)}"
    )


def benchmark_gap() -> str:
    row = table("benchmark", "over best")["anytime"]
    return (
        "In the benchmark of the table's first row, the gap between our latency and its lower bound is "
        f"{row['median gap'].replace('%', ' %')} in the median and {row['largest gap'].replace('%', ' %')} at most."
    )


def best_known() -> str:
    text = (ROOT / RESULTS / "open_gaps.md").read_text()
    count, median, share, below = re.search(  # type: ignore[union-attr]
        r"Of (\d+) instances: a median of ([\d.]+)%, and (\d+)% under (\d+)%", text
    ).groups()
    return (
        f"With pipelines and clusters, the whole benchmark has {count} instances: for half of them the best known solution "
        f"is within {median} % of its bound, for {share} % within {below} %"
    )


def variants() -> str:
    row = table("variants", "fused")["openllama-7b, 32x64, p4d"]
    gap = re.search(r"gap ([\d.]+)%", row["tensor"])
    assert gap
    return f"{number(row['tensor']):.0f} ms instead of {number(row['fused']):.0f}, gap to the bound {gap.group(1)} %"


def sortinghat() -> str:
    rows = table("sortinghat_grid", "paper's average")
    ours = [rows[name] for name in ("anytime, fused kernels", "anytime", "SortingHat")]
    learned, roofline = ([f"{number(row[name]):.2f}" for row in ours] for name in ("average", "average, roofline"))
    cells = min(int(row["cases"]) for row in ours)
    paper = ours[2]["paper's average"]
    done = "" if cells == 48 else f"on the {cells} of 48 cells that are done, "
    return (
        f"By learned latencies, {done}{learned[0]} times as fast on average without variants, {learned[1]} with variants, "
        f"which SortingHat does not know. SortingHat, on the same fused kernels, reaches {learned[2]} in our runs; its "
        f"paper says {paper}. By the roofline ours are {roofline[0]} and {roofline[1]}, SortingHat's "
        f"{roofline[2]}"
    )


def pipeline() -> str:
    rows = table("pipeline", "equal-split")
    less = [
        1 - number(row["pipeline-exact"]) / number(row["equal-split"])
        for name, row in rows.items()
        if name.startswith(("GoogLeNet", "MiniLM"))
    ]
    return f"{100 * min(less):.0f} to {100 * max(less):.0f} % shorter for GoogLeNet and MiniLM"


def plans() -> str:
    rows = [row for row in table("plans", "times faster").values() if row["runtime"] != "torch"]
    factors = [number(row["times faster"]) for row in rows if row["times faster"] != "-"]
    assert min(factors) >= 1, "a split of theirs is faster"
    unfit = len(rows) - len(factors)
    return (
        f"never slower, up to {max(factors):.1f} times faster; in {unfit} of {len(rows)} cases their split does not fit and "
        "ours does"
    )


def rampa() -> str:
    rows = table("rampa", "authors' RAMPA")
    counts = [{name: number(row[name]) for name in ("bound", "anytime", "rampa")} for row in rows.values()]
    more = sum(row["anytime"] > row["rampa"] for row in counts)
    gap = max(1 - row["anytime"] / row["bound"] for row in counts)
    return f"more in {more} of {len(counts)} cases, within {100 * gap:.1f} % of the bound"


def rampa_program() -> str:
    rows = table("rampa_program", "authors' RAMPA").values()
    pairs = [(number(row["anytime"]), number(row["authors' RAMPA"])) for row in rows if row["anytime"] != "–"]
    more = sum(ours > theirs for ours, theirs in pairs)
    assert more == len(pairs), "the sentence below says each"
    return (
        f"more than each of the {len(pairs) // 2} figures that the authors' program gave, on both sequences that were tried "
        "of each (which of their sequences a figure is of is not known)"
    )


def executor() -> str:
    rows = table("executor_overhead", "Relax VM").values()
    ours, theirs = ([number(row[name]) for row in rows] for name in ("tvm_sched", "Relax VM"))
    return f"{min(ours):.2f} to {max(ours):.2f} us instead of {statistics.fmean(theirs):.2f}"


def _googlenet() -> tuple[float, float, float]:
    """Return the milliseconds on one GPU, on four, and of the bound."""
    ms, bound = list(tables("googlenet"))[:2]
    one, ours, least = (
        number(of["googlenet"][name]) for of, name in ((ms, "single"), (ms, "anytime"), (bound, "anytime"))
    )
    return one, ours, least


def googlenet() -> str:
    one, ours, least = _googlenet()
    return (
        f"and takes {ours:.2f} ms. One GPU takes {one:.2f} ms. It is proved that no schedule of these kernels takes less "
        f"than {least:.2f} ms."
    )


def cpu() -> str:
    row = table("cpu_latency", "first output")["held-out, all sets"]
    measured = [number(each["ours / best peer"]) for each in table("cpu_latency", "ours / best peer").values()]
    level = "on a par with" if 0.9 <= number(row["latency, ours / best peer"]) <= 1.1 else "not on a par with"
    return (
        f"{level} the best of ONNX Runtime, OpenVINO and PyTorch, and faster on {row['ours is best']} of "
        f"{row['measured']} held-out networks. Relative to the best of the three, in the geometric mean, latency is "
        f"{row['latency, ours / best peer']} ({min(measured):.2f} to {number(row['worst']):.2f}), the time to the first "
        f"output {row['first output']}, memory {row['memory']}; below 1, tvm_sched is better. {cpu_of_another_kind()}"
    )


def cpu_of_another_kind() -> str:
    row = table("cpu_latency_intel", "first output")["held-out, all sets"]
    measured = [number(each["ours / best peer"]) for each in table("cpu_latency_intel", "ours / best peer").values()]
    return (
        "These figures are from an AMD EPYC. On an Intel Xeon, beside ONNX Runtime and OpenVINO alone, it is faster on "
        f"{row['ours is best']} of {row['measured']} networks: latency {row['latency, ours / best peer']} "
        f"({min(measured):.2f} to {number(row['worst']):.2f}), first output {row['first output']}, memory {row['memory']}."
    )


def gpu() -> str:
    words, compiled = [], list[bool]()
    for found in tables("gpu_latency"):
        ratios = sorted(number(row["PyTorch / ours"]) for row in found.values() if "PyTorch / ours" in row)
        if ratios:
            mean = statistics.geometric_mean(ratios)
            dtype = ("float32", "float16")[len(words)]  # the order of the page
            run, named = (" as fast (geometric mean ", " run") if not words else (" (", "")
            words.append(
                f"{len(ratios)} networks in {dtype}{named} {ratios[0]:.2f} to {ratios[-1]:.2f} times{run}{mean:.2f})"
            )
        for row in (row for row in found.values() if re.search(r"\d", row.get("torch.compile", ""))):
            ours = [row[name] for name in ("ours, one stream", "ours, Opara's streams") if re.search(r"\d", row[name])]
            compiled.append(number(row["torch.compile"].strip("*")) < min(number(cell.strip("*")) for cell in ours))
    return (
        f"compared with PyTorch's CUDA graphs, {', '.join(words)}. torch.compile was run on {len(compiled)} of these, "
        f"and is faster on {sum(compiled)}."
    )


def language_models() -> str:
    rows = table("language_models", "decode, tokens/s")
    ours, torch, llama = (rows[name] for name in ("float32", "float32 (1)", "float32 (2)"))
    assert [row["engine"] for row in (ours, torch, llama)] == ["tvm_sched", "transformers", "llama.cpp"]
    decode, prompt = "decode, tokens/s", "prompt, tokens/s"
    return (
        f"In float32, a decode step takes {number(llama[decode]) / number(ours[decode]):.1f} times the processor time of "
        f"llama.cpp, but a prompt takes {number(torch[prompt]) / number(ours[prompt]):.1f} times that of PyTorch (measured)."
    )


def front_cpu() -> str:
    row = table("cpu_latency", "first output")["held-out, all sets"]
    best = min(number(each["ours / best peer"]) for each in table("cpu_latency", "ours / best peer").values())
    return (
        f"{row['latency, ours / best peer']} times the latency of the best of ONNX Runtime, OpenVINO and PyTorch in the "
        f"geometric mean of {row['measured']} held-out networks, best {best:.2f}, worst {number(row['worst']):.2f} "
        "(measured)."
    )


def front_variants() -> str:
    row = table("variants", "fused")["openllama-7b, 32x64, p4d"]
    gap = re.search(r"gap ([\d.]+)%", row["tensor"])
    assert gap
    return (
        f"OpenLLaMA-7B from a cold start in {number(row['tensor']):.0f} ms, gap to the bound {gap.group(1)} %; "
        f"{number(row['fused']):.0f} ms without tensor-parallel variants (predicted)."
    )


def front_schedulers() -> str:
    over = {name: number(row["over best"]) for name, row in table("benchmark", "over best").items()}
    gap = table("benchmark", "over best")["anytime"]["median gap"].replace("%", " %")
    return (
        f"HEFT's schedules take {percent(over['heft'] / over['anytime'])} longer than ours, one device "
        f"{over['single'] / over['anytime']:.1f} times as long; half of ours are within {gap} of the bound (predicted)."
    )


def front_googlenet() -> str:
    one, ours, least = _googlenet()
    return (
        f"{ours:.2f} ms instead of {one:.2f} ms on one GPU, and proved that no schedule of these kernels takes less than "
        f"{least:.2f} ms (predicted)."
    )


CLAIMS = (
    Claim(
        googlenet, f"{RESULTS}/googlenet.md",
        "one graph and its fused kernels, no variants; one GPU loads all parameters before its first kernel",
    ),
    Claim(
        benchmark_methods, f"{RESULTS}/benchmark.md",
        "one problem for all, 2 s in all for each method, SortingHat's program included; other options are the defaults",
    ),
    Claim(benchmark_gap, f"{RESULTS}/benchmark.md", "as above; the bound is of the same problem"),
    Claim(best_known, f"{RESULTS}/open_gaps.md", "best solution of any run of any method; bounds of the same problems"),
    Claim(
        variants, f"{RESULTS}/variants.md",
        "one graph, one search and work; fused kernels alone against all variants; gap to the bound over all variants",
    ),
    Claim(
        sortinghat, f"{RESULTS}/sortinghat_grid.md",
        "one graph and its fused kernels; SortingHat 3 s a submodel with the paper's q and dominators, by the roofline 30 s "
        "on 8 cells and beside other work; `anytime` 4 s of work in all; variants for `anytime` alone",
    ),
    Claim(
        pipeline, f"{RESULTS}/pipeline.md",
        "one graph, as many stages; equal split in topological order; other programs find the same optimum",
    ),
    Claim(
        plans, f"{RESULTS}/plans.md",
        "one cost model for all splits; the runtime's own choices at its defaults against ours under the same rules",
    ),
    Claim(
        rampa, f"{RESULTS}/rampa.md",
        "one sequence of requests; RAMPA's parameters are its Table VII's; `anytime` counts past requests",
    ),
    Claim(
        rampa_program, f"{RESULTS}/rampa_program.md",
        "the authors' clusters, models and requests; their program counts transfers as shorter than the paper, ours not",
    ),
    Claim(executor, f"{RESULTS}/executor_overhead.md", "one module of empty kernels, run by both"),
    Claim(cpu, f"{RESULTS}/cpu_latency.md", "one network and 2 threads for all, peers at their defaults; run alternately"),
    Claim(
        gpu, f"{RESULTS}/gpu_latency.md",
        "one network and type, float32 without TF32, CUDA graphs on both sides, torch.compile's too; ours with "
        "the best of its streams",
    ),
    Claim(
        language_models, f"{RESULTS}/language_models.md",
        "the same float32 weights, one thread, processor time of alternating turns on a shared machine",
    ),
    Claim(front_cpu, f"{RESULTS}/cpu_latency.md", "one network and 2 threads for all, peers at their defaults"),
    Claim(front_variants, f"{RESULTS}/variants.md", "one graph, search and work; fused kernels against all variants"),
    Claim(front_schedulers, f"{RESULTS}/benchmark.md", "one problem for all, 2 s for each method, default options"),
    Claim(
        front_googlenet, f"{RESULTS}/googlenet.md",
        "one graph and its fused kernels, no variants; one GPU loads all parameters before its first kernel",
    ),
)  # fmt: skip


def command(source: str) -> str:
    """Return the command that made a page, as the page says it."""
    made = re.search(r"Made by `([^`]*)`", (ROOT / source).read_text())
    return made.group(1) if made else "computed from best.json; see the page"


MODIFIED_BEFORE = {f"{RESULTS}/{page}.md" for page in ("variants", "sortinghat_grid")}
"""Sources that were made from modified trees before these were refused; remove each when it is made anew."""


def made_of_modified_tree(source: str) -> bool:
    """Whether a page or a data file has rows of a tree with changes that no commit has."""
    return re.search(r"\b[0-9a-f]{7,40}-dirty\b", (ROOT / source).read_text()) is not None


def plain(text: str) -> str:
    """Return text with links reduced to their words and white space to single spaces."""
    return re.sub(r"\s+", " ", re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)).strip()


def units(text: str) -> Iterator[str]:
    """Return the table rows and sentences of a page, without code."""
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    for block in re.split(r"\n\s*\n", text):
        lines = block.splitlines()
        if any(line.startswith("|") for line in lines):
            yield from (plain(line) for line in lines)
        else:
            yield from re.split(r"(?<=[.!?])\s+(?=[A-Z*])", plain(block))


NO_COMPARISONS = ("The run starts cold", "The default scheduler `anytime` found", "Then, in a few minutes", "| better")
"""Beginnings of sentences with numbers that compare nothing, or whose comparison the claim of the next one has."""


def differences(pages: dict[str, str]) -> Iterator[str]:
    """Say which claims the pages do not make, and which comparisons no claim is about."""
    texts = [(claim, claim.text()) for claim in CLAIMS]
    parts = [part for _, text in texts for part in units(text)]
    whole = " ".join(plain(text) for text in pages.values())
    for source in dict.fromkeys(claim.source for claim in CLAIMS):
        if made_of_modified_tree(source) and source not in MODIFIED_BEFORE:
            yield f"{source} has rows of a modified tree; commit, and make it anew"
    for claim, text in texts:
        if text not in whole:
            yield f"{claim.source} says: {text}"
    for name, page in pages.items():
        for unit in units(page):
            left = "" if any(unit in part for part in parts) else unit
            for part in parts:
                left = left.replace(part, "")
            if COMPARES.search(left) and not unit.strip("*").startswith(NO_COMPARISONS):
                yield f"{name} compares without a claim: {unit}"


def front_pages() -> dict[str, str]:
    return {name: (ROOT / name).read_text() for name in ("README.md", "docs/index.md")}


def main() -> None:
    options = parser(__doc__).parse_args()
    rows = [
        {"claim": claim.text(), "source": claim.source, "command": command(claim.source), "sides": claim.sides}
        for claim in CLAIMS
    ]
    for row in rows:
        print(f"{row['claim']}\n  source:  {row['source']}\n  command: {row['command']}\n  sides:   {row['sides']}\n")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    found = list(differences(front_pages()))
    for each in found:
        print(f"differs: {each}", file=sys.stderr)
    if found:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
