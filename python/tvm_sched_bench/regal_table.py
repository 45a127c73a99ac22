"""Table 3 of Archer et al. (ICML 2024): lower bounds of the REGAL graphs over the best partitions that BRKGA finds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import exp, log
from pathlib import Path

import msgspec

from tvm_sched.bounds.partitions.simple import simple_bound
from tvm_sched.pipeline import partition
from tvm_sched.pipeline.graph_files import load_graph
from tvm_sched.pipeline.integer_programs import bottleneck_bound, bottleneck_guess_bound, exact_program
from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.pipeline import PartitionProblem

STAGES = (2, 4, 8, 16, 32, 64)
PAPER = {
    "simple": (0.9579, 0.8795, 0.7911, 0.5821, 0.4087, 0.3336),
    "bottleneck": (0.9794, 0.8818, 0.7918, 0.5824, 0.4090, 0.3338),
    "bottleneck-guess": (0.9804, 0.8826, 0.7918, 0.5824, 0.4090, 0.3338),
    "exact": (0.9804, 0.9579, 0.9407, 0.8929, 0.5910, 0.3810),
}
"""The paper's figures by bound, each for `STAGES`."""
_EVALUATIONS = 10_000


class RegalFigure(msgspec.Struct, frozen=True):
    """Geometric mean over graphs of a bound divided by the cost of BRKGA's partition, beside the paper's."""

    bound: str
    stages: int
    mean: float
    paper: float


class RegalTable(msgspec.Struct, frozen=True):
    """The figures of all bounds and numbers of stages."""

    graphs: int
    figures: list[RegalFigure]

    @property
    def rows(self) -> list[list[str]]:
        """A row for each bound and number of stages, as texts."""
        return [[each.bound, str(each.stages), f"{each.mean:.4f}", f"{each.paper:.4f}"] for each in self.figures]

    @property
    def sentence(self) -> str:
        """The largest difference between a mean and the paper's, as a sentence."""
        far = max(self.figures, key=lambda each: abs(each.mean - each.paper))
        side = "above" if far.mean > far.paper else "below"
        return (
            f"{self.graphs} graphs; farthest from the paper is {far.bound} at {far.stages} stages, "
            f"{abs(far.mean - far.paper):.4f} {side} it."
        )


def load_regal(folder: Path) -> dict[str, PartitionProblem]:
    """Read the graphs of a folder, ``*.pbtxt`` and ``*.json``, by name."""
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder")
    files = sorted(file for file in folder.iterdir() if file.suffix in (".pbtxt", ".json"))
    if not files:
        raise InputError(f"{folder}: it holds no graphs (*.pbtxt, *.json)")
    return {file.name: load_graph(file) for file in files}


def regal_table(
    graphs: dict[str, PartitionProblem],
    stages: Sequence[int],
    seconds: float,
    tell: Callable[[str], None] = lambda _: None,
) -> RegalTable:
    """Compute the table. Each bound is the strongest of its row and of those before it, as in the paper."""
    ratios: dict[tuple[str, int], list[float]] = {(bound, k): [] for bound in PAPER for k in stages}
    for name, problem in graphs.items():
        for k in stages:
            cost = partition(problem, k, "slicegraph", {"order": "brkga", "evaluations": _EVALUATIONS}).cost
            simple = simple_bound(problem, k)
            if simple <= 0:
                raise InputError(f"{name}: all nodes have the work 0; there is nothing to compare bounds with")
            bound = 0.0
            for method, value in _bounds(problem, k, simple, seconds):
                bound = max(bound, value)
                ratios[method, k].append(bound / cost)
            tell(f"{name}, {k} stages: partition {cost:.6g}, bound {bound:.6g}")
    return RegalTable(
        len(graphs),
        [RegalFigure(bound, k, _mean(of), PAPER[bound][STAGES.index(k)]) for (bound, k), of in ratios.items()],
    )


def _bounds(problem: PartitionProblem, k: int, simple: float, seconds: float) -> Iterable[tuple[str, float]]:
    yield "simple", simple
    yield "bottleneck", bottleneck_bound(problem, k, seconds=seconds).bound
    yield "bottleneck-guess", bottleneck_guess_bound(problem, k, seconds=seconds).bound
    yield "exact", exact_program(problem, k, seconds=seconds).bound


def _mean(ratios: Sequence[float]) -> float:
    return exp(sum(log(ratio) for ratio in ratios) / len(ratios))
