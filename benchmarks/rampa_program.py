"""RAMPA as its authors' program runs it: options of our ants one by one, on the authors' clusters, models and sequences.

Services are placed until the first that does not fit. The authors' clusters 3 and 4 have malformed fields, so they are run
as they are meant (with the fields put right) and as their program reads them. ``--data`` is a clone of the
authors' repository (``git clone https://github.com/a-ikoma/RAMPA_simmulation build/data/rampa``), or a folder with their
``graphs``, ``models`` and ``sequences``. With ``--resume FILE`` each measurement is kept there, and a run that was
interrupted goes on where it was; ``--minutes`` ends a run.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean

import msgspec
from _checked import allocation_verdict, tally
from _common import parser
from _result_page import NONE, Page, write_json
from claims import table
from rampa import REFERENCES
from rich.console import Console

from tvm_sched_cluster import ClusterState, Service, ServiceRequest, try_place
from tvm_sched_cluster.allocators.ant_colony import PROGRAM, TEXT
from tvm_sched_cluster.bounds.mix_bound import bound_of_requests
from tvm_sched_cluster.files.rampa_simulator_files import read_graph, read_models, read_requests
from tvm_sched_cluster.search.cluster_search import ClusterSearch
from tvm_sched_runtime.errors import InputError

DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "rampa"
MEANT = {
    "graph1": ("rampa-base", {}),
    "graph2": ("rampa-high-bandwidth", {}),
    "graph3": ("rampa-high-performance", {"14000.32,900": "14000,32,900"}),
    "graph4": ("rampa-large", {"17-12-418-19-4": "17-12-4,18-19-4", "12-18-18-24-4": "12-18-4,18-24-4"}),
}
"""Names of the authors' clusters, and what is put right in their files."""
AS_READ = {
    "graph3": {"gpu,8,40,0.000101,14000.32,900,1,": "gpu,7,40,0.000101,14000.32,900,1,"},
    "graph4": {"17-12-418-19-4": "17-12-418", "12-18-18-24-4": "12-18-18"},
}
"""What the authors' program makes of the malformed fields, as files that our reader takes."""
CASES = {"case1": "same", "case2": "high-throughput", "case3": "low-delay", "case4": "huge-model"}
ON = dict.fromkeys(PROGRAM, True)
PLAIN = "rampa, neither"
TENTH = "transfers a tenth as long"
METHODS: dict[str, tuple[str, dict[str, object]]] = {
    "anytime": ("anytime", {}),
    "rampa, text": ("rampa", dict.fromkeys(TEXT, True)),
    PLAIN: ("rampa", {}),
    "rampa, program": ("rampa", ON),
    **{f"rampa, {name.replace('_', ' ')}": ("rampa", {name: True}) for name in PROGRAM},
    f"rampa, program, {TENTH}": ("rampa", ON),
}
BEST_STAGES = "its best stages"
FIXED: dict[str, tuple[str, dict[str, object]]] = {
    f"ncar, program, {BEST_STAGES}": ("ncar", ON),
    f"pipeedge, {BEST_STAGES}": ("pipeedge", {}),
    f"pipeedge, ants, {BEST_STAGES}": ("pipeedge", {"ants": True}),
}
"""Methods with a fixed number of stages of each service, the best of 288 combinations on the page of our `rampa`."""
BOUNDS = ("bound", f"bound, {TENTH}")
MAIN = ("bound", "rampa, text", PLAIN, "rampa, program", "anytime")
NOTES = """\
The authors' program (github.com/a-ikoma/RAMPA_simmulation) differs from the paper's text, as [our `rampa`](rampa.md) reads
it, in five points, each an option of `rampa` here:

- `sub_agents`: each choice of GPUs sends a colony of its own for the links, of up to 20 generations of 20, which ends when
  it finds the same five times; the text has sub-agents, but no generations of them.
- `pool_links`: (5) sums over pairs of pools of GPUs, not over pairs of GPUs, so that links cost little beside GPUs; and the
  link between a pool and its switch costs, too.
- `pool_choice`: a pool of 40 free GPUs is as likely as one of 1 that costs the same.
- `falling_costs`: q_g of (4) falls with each stage that takes a GPU of the rack.
- `first_rise`: after a number of stages that is no cheaper than the last no more are tried.

*rampa, text* has none of them, *rampa, program* all. *rampa, text* has two options instead, which *rampa, neither* has not:

- `access_links`: (5) holds for the links from GPUs to their switch, too, whose delay Table III has.
- `free_walks`: ants walk to any switch that they have not passed. Else they keep three rules of the program: a second
  generation in one rack where the first finds nothing, walks of at most 6 links, a step to the aim when that is next.

What the program does besides and is not done here: 32 fibres join a
pool to its switch, where our racks have a link for each GPU; a circuit serves two transfers of one service between the same
pools; a transfer of n MB takes the time of n · 100,000 bytes, the i-th operator's output stands for the i-th stage's, and
only the last transfer counts for the cycle. *Transfers a tenth as long* has the first of these three: outputs of operators
are divided by ten.

Two of the authors' files have malformed fields. *As read* is what their program makes of these: in cluster 3
(`14000.32,900`) a V100 has 900 GB at 1 GB/s and one rack fewer; in cluster 4 (`17-12-418-19-4`, `12-18-18-24-4`) one link
has 418 fibres, one 18, and two are missing. The others are as the paper means them. The authors' figures are what their
program placed; of which of their sequences is not known here. It walks at random, and so do our ants.
Other work ran on the machine: services placed do not depend on it, and seconds are the processor's."""


class Measured(msgspec.Struct, frozen=True):
    """What a method placed on one of the authors' clusters of one of their sequences, or the bound."""

    cluster: str
    demand: str
    sequence: int
    method: str
    placed: int
    seconds: float = 0.0
    """Of the processor."""
    checked: str = ""

    @property
    def key(self) -> tuple[str, str, int, str]:
        """Key of the measurement."""
        return self.cluster, self.demand, self.sequence, self.method


@cache
def search_of(data: Path, graph: str, as_read: bool) -> ClusterSearch:
    """Load an authors' cluster, put right or as their program reads it."""
    text = (data / "graphs" / f"{graph}.txt").read_text(encoding="utf-8-sig")
    for wrong, right in (AS_READ if as_read else {graph: MEANT[graph][1]})[graph].items():
        if wrong not in text:
            raise InputError(f"{graph}.txt has no field {wrong!r}: it is another version of the authors' file")
        text = text.replace(wrong, right)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"{graph}.txt"
        file.write_text(text)
        return ClusterSearch(read_graph(file))


def models_folder(data: Path) -> Path:
    """Return the folder with the authors' models."""
    return next((folder for folder in (data / "MODELS", data / "models") if folder.is_dir()), data / "models")


def requests_file(data: Path, case: str, sequence: int) -> Path:
    """Return the file of the authors' sequence of requests."""
    cloned = data / "allocs" / case / f"allocSeq{sequence}.txt"
    return cloned if cloned.is_file() else data / "sequences" / f"{case}-seq{sequence}.txt"


def tenth(service: Service) -> Service:
    """Return a service whose operators' outputs are a tenth."""
    operators = tuple(msgspec.structs.replace(one, output=one.output // 10) for one in service.operators)
    return msgspec.structs.replace(service, operators=operators)


def plan(sequences: int) -> Iterator[tuple[str, bool, str, int, str]]:
    """Yield graph, whether as read, case, sequence and method, what matters most first."""
    numbers = range(1, sequences + 1)
    compared = [("graph1", False), ("graph4", True)]
    for sequence, (graph, as_read), case in itertools.product(numbers, compared, CASES):
        for method in (*MAIN, f"rampa, program, {TENTH}", BOUNDS[1]):
            yield graph, as_read, case, sequence, method
    for graph, case, method in itertools.product(MEANT, CASES, MAIN):
        yield graph, False, case, 1, method
    for option, graph, case in itertools.product(reversed(PROGRAM), MEANT, CASES):
        yield graph, False, case, 1, f"rampa, {option.replace('_', ' ')}"
    for case, method in itertools.product(CASES, MAIN):
        yield "graph3", True, case, 1, method
    ncar, *pipeedge = FIXED
    for graph, case in itertools.product(MEANT, CASES):
        yield graph, False, case, 1, ncar
    for case, method in itertools.product(CASES, pipeedge):
        yield "graph1", False, case, 1, method


def best_stages(cluster: str, demand: str, method: str) -> dict[str, int]:
    """Return the stages of each service that place most, by the page of our `rampa`."""
    cell = table("rampa", "authors' RAMPA")[f"{cluster}, {demand}"][f"{method} best (stages)"]
    return {f"service{n}": int(stages) for n, stages in enumerate(cell.partition("(")[2].rstrip(")").split(), 1)}


def measure(
    search: ClusterSearch, services: Sequence[Service], asked: Sequence[ServiceRequest], key: tuple[str, str, int, str]
) -> Measured:
    """Place requests until the first that does not fit, and check the allocation; or compute the bound."""
    begin = time.process_time()
    if key[3] in BOUNDS:
        return Measured(*key, int(bound_of_requests(search, services, asked)), time.process_time() - begin)
    state, (allocator, options) = ClusterState(search.cluster, services, search), (METHODS | FIXED)[key[3]]
    if key[3] in FIXED:
        options = {**options, "stages": best_stages(*key[:2], allocator)}
    placed = sum(1 for _ in itertools.takewhile(bool, (try_place(state, one, allocator, options) for one in asked)))
    seconds = time.process_time() - begin
    return Measured(*key, placed, seconds, allocation_verdict(search, services, asked, state.allocation))


def write(found: Sequence[Measured], rows: Path | None, markdown: Path | None) -> None:
    """Write the page of what has been measured."""
    for one in found:
        if one.checked:
            tally(one.checked)
    page = Page("RAMPA as its authors' program runs it", markdown)
    page.text(*NOTES.splitlines())
    placed = {one.key: one.placed for one in found}
    _beside_the_authors(page, placed)
    _sixteen_cells(page, placed)
    _ablation(page, found)
    _fixed(page, placed)
    page.write()
    write_json(rows, [msgspec.structs.asdict(one) for one in found])


def _cell(value: float | None) -> str:
    return NONE if value is None else f"{value:g}"


def _beside_the_authors(page: Page, placed: dict[tuple[str, str, int, str], int]) -> None:
    page.text("## Beside the authors' figures", "", "Services placed of the authors' sequences 1 and 2.")
    columns = [*MAIN, f"rampa, program, {TENTH}", BOUNDS[1]]
    lines, ratios = [], dict[str, list[float]]()
    impossible = []
    for cluster, demand in itertools.product(("rampa-base", "rampa-large, as read"), CASES.values()):
        reference = REFERENCES[cluster.removesuffix(", as read"), demand]
        for sequence in (1, 2):
            own = {method: placed.get((cluster, demand, sequence, method)) for method in columns}
            if own["rampa, program"] is None:
                continue
            lines.append([f"{cluster}, {demand}, {sequence}", *map(_cell, own.values()), str(reference)])
            for method in ("rampa, text", PLAIN, "rampa, program", columns[5]):
                value = own[method]
                if value is not None:
                    ratios.setdefault(method, []).append(value / reference)
            if own["bound"] is not None and reference > own["bound"]:
                impossible.append(f"{cluster}, {demand}, sequence {sequence} ({reference} against {own['bound']})")
    page.table(["cluster, demand, sequence", *columns, "authors' RAMPA"], lines)
    for method, each in ratios.items():
        page.text(
            f"*{method}* places {min(each):.2f} to {max(each):.2f} of the authors' figures, {fmean(each):.3f} on average."
        )
    means = {method: fmean(each) for method, each in ratios.items()}
    if means and abs(means[columns[5]] - 1) < 0.02 < 1 - means["rampa, program"]:
        page.text("So the length of transfers sets the authors' figures apart from ours, more than how the ants walk.")
    apart = {
        method: [abs(first - second) / max(first, second) for first, second in pairs]
        for method in ("rampa, text", columns[5], "anytime")
        if (pairs := _both_sequences(placed, method))
    }
    told = "; ".join(
        f"*{method}* {fmean(each):.1%} on average, {max(each):.1%} at most" for method, each in apart.items()
    )
    if told:
        page.text(f"Between sequences 1 and 2 of a cell the services placed differ by: {told}.")
    if impossible:
        page.text(
            f"The authors' figure is above what is possible by the paper's formulas in {len(impossible)} of {len(lines)} "
            f"rows: {'; '.join(impossible)}. Their program counts transfers as shorter than they are."
        )


def _both_sequences(placed: dict[tuple[str, str, int, str], int], method: str) -> list[tuple[int, int]]:
    return [
        (services, placed[cluster, demand, 2, own])
        for (cluster, demand, sequence, own), services in placed.items()
        if own == method and sequence == 1 and (cluster, demand, 2, own) in placed
    ]


def _sixteen_cells(page: Page, placed: dict[tuple[str, str, int, str], int]) -> None:
    page.text("## All clusters, sequence 1", "", "Clusters as the paper means them; at the end cluster 3 as read.")
    clusters = [*(name for name, _ in MEANT.values()), "rampa-high-performance, as read"]
    lines, better, both = [], 0, 0
    for cluster, demand in itertools.product(clusters, CASES.values()):
        own = {method: placed.get((cluster, demand, 1, method)) for method in MAIN}
        text, program = own["rampa, text"], own["rampa, program"]
        if text is not None and program is not None:
            lines.append([f"{cluster}, {demand}", *map(_cell, own.values())])
            better, both = better + (program > text), both + 1
    page.table(["cluster, demand", *MAIN], lines)
    page.text(f"*rampa, program* places more than *rampa, text* in {better} of {both} rows.")


def _ablation(page: Page, found: Sequence[Measured]) -> None:
    page.text(
        "## Each option by itself",
        "",
        "Services placed over those of *rampa, neither*, on the clusters as the paper means them, sequence 1; means over",
        "the cells that both have. Processor time is of all requests of a cell, those of the last, which fails, included.",
    )
    meant = {name for name, _ in MEANT.values()}
    own = {one.key: one for one in found if one.sequence == 1 and one.cluster in meant}
    lines = []
    for method in [name for name in METHODS if name.startswith("rampa") and TENTH not in name]:
        pairs = [
            (one, own[text]) for one in own.values() if one.method == method and (text := (*one.key[:3], PLAIN)) in own
        ]
        if pairs:
            ratios = [one.placed / text.placed for one, text in pairs]
            seconds = fmean(one.seconds for one, _ in pairs)
            cells = [f"{fmean(ratios):.3f}", f"{min(ratios):.3f}", f"{max(ratios):.3f}", str(len(pairs))]
            lines.append([method, *cells, f"{seconds:.0f}"])
    page.table(["method", "mean", "least", "most", "cells", "processor time, s"], lines)
    if missing := [name for name in (*METHODS, *FIXED) if name not in {one.method for one in found}]:
        page.text(f"Not run for this page: {'; '.join(missing)}. The command without `--minutes 0` runs them.")


def _fixed(page: Page, placed: dict[tuple[str, str, int, str], int]) -> None:
    if not any(method in FIXED for *_, method in placed):
        return
    page.text(
        "## Fixed numbers of stages",
        "",
        "NCAR and PipeEdge with the stages that place most of 288 combinations [with our ants](rampa.md), on sequence 1.",
        "NCAR has all options of the program. PipeEdge by ants is the program with another objective, the least cycle, as",
        "the paper defines it (the program itself takes the least latency); beside it stands PipeEdge's exact search.",
        "For the program's ants other stages may be better: all 288 combinations were not run with them.",
    )
    columns = ("rampa, program", *FIXED)
    lines, behind, both = [], list[str](), 0
    for cluster, demand in itertools.product((name for name, _ in MEANT.values()), CASES.values()):
        own = {method: placed.get((cluster, demand, 1, method)) for method in columns}
        program, ncar = own[columns[0]], own[columns[1]]
        if program is not None and ncar is not None:
            lines.append([f"{cluster}, {demand}", *map(_cell, own.values())])
            both += 1
            behind += [f"{cluster}, {demand} ({program} against {ncar})"] * (program < ncar)
    if both:
        page.table(["cluster, demand", *columns], lines)
        cells = f": {'; '.join(behind)}" if behind else ""
        page.text(
            f"RAMPA by the program places fewer than NCAR by the program in {len(behind)} of {both} cells{cells}. The "
            "paper has RAMPA nowhere behind NCAR's best case."
        )


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--data", type=Path, default=DATA, metavar="DIR", help="the authors' files")
    arguments.add_argument("--sequences", type=int, choices=(1, 2), default=2, help="beside the authors' figures")
    arguments.add_argument("--minutes", type=float, default=float("inf"), help="begin nothing new after")
    arguments.add_argument("--resume", type=Path, metavar="FILE", help="keep measurements there, and go on from them")
    options = arguments.parse_args()
    if not (options.data / "graphs").is_dir():
        print(f"The authors' files are not here ({options.data.name}); name their folder with --data.")
        return
    found: dict[tuple[str, str, int, str], Measured] = {}
    if options.resume is not None and options.resume.is_file():
        lines = options.resume.read_bytes().splitlines()
        found = {one.key: one for one in (msgspec.json.decode(line, type=Measured) for line in lines)}
    services = read_models(models_folder(options.data))
    end = time.monotonic() + 60 * options.minutes
    for graph, as_read, case, sequence, method in plan(1 if options.quick else options.sequences):
        name = MEANT[graph][0] + (", as read" if as_read else "")
        key = (name, CASES[case], sequence, method)
        if key in found:
            continue
        if time.monotonic() > end:
            break
        Console(stderr=True).print(", ".join(map(str, key)))
        asked = read_requests(requests_file(options.data, case, sequence))
        chosen = [tenth(service) for service in services] if TENTH in method else services
        found[key] = measure(search_of(options.data, graph, as_read), chosen, asked, key)
        if options.resume is not None:
            with options.resume.open("ab") as file:
                file.write(msgspec.json.encode(found[key]) + b"\n")
        if options.quick:
            break
    write(list(found.values()), options.json, options.markdown)


if __name__ == "__main__":
    main()
