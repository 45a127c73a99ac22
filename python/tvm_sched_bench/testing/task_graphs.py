"""Families of task graphs from scientific computing and from networks, to compare schedulers on.

Each maps a seed to an `OpGraph`; sizes of tensors and arithmetic are random around values that are usual for a network.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from tvm_sched_runtime.problem import Operator, OpGraph, Tensor

BYTES, FLOPS, PARAMETER_BYTES = 2_000_000, 2e9, 4_000_000
"""Output bytes, arithmetic and parameter bytes of an average operator."""


class _Graph:
    """A graph under construction; operators are numbers, their outputs are read by number."""

    def __init__(self, seed: int, parameters: bool) -> None:
        self.random, self.parameters = Random(seed), parameters
        self.operators: list[Operator] = []
        self.tensors: list[Tensor] = [Tensor("input", BYTES, "input")] if parameters else []

    def add(self, reads: Sequence[int] = (), size: float = 1.0) -> int:
        """Add an operator that reads the outputs of others; with parameters, also one of its own."""
        o, random = len(self.operators), self.random
        inputs = [f"t{r}" for r in reads]
        if self.parameters:
            inputs = inputs or ["input"]
            self.tensors.append(Tensor(f"w{o}", round(PARAMETER_BYTES * random.uniform(0.2, 2.0)), "parameter"))
            inputs.append(f"w{o}")
        self.tensors.append(Tensor(f"t{o}", round(BYTES * size * random.uniform(0.3, 1.7))))
        flops = round(FLOPS * size * random.uniform(0.2, 3.0))
        self.operators.append(Operator(f"v{o}", "task", tuple(inputs), (f"t{o}",), flops))
        return o

    def finish(self, name: str) -> OpGraph:
        read = {t for operator in self.operators for t in operator.inputs}
        outputs = tuple(f"t{o}" for o in range(len(self.operators)) if f"t{o}" not in read)
        return OpGraph(name, tuple(self.operators), tuple(self.tensors), outputs)


def _butterfly(graph: _Graph) -> None:
    """Add the data flow of a fast Fourier transform over 16 blocks."""
    row = [graph.add() for _ in range(16)]
    for step in (1, 2, 4, 8):
        row = [graph.add((row[i], row[i ^ step])) for i in range(16)]


def _cholesky(graph: _Graph) -> None:
    """Add a tiled Cholesky factorisation of 7 x 7 tiles: factor, solve, update."""
    tiles = 7
    last: dict[tuple[int, int], int] = {}

    def touch(i: int, j: int, *others: int) -> None:
        reads = [*others, last[i, j]] if (i, j) in last else list(others)
        last[i, j] = graph.add(tuple(dict.fromkeys(reads)))

    for k in range(tiles):
        touch(k, k)
        for i in range(k + 1, tiles):
            touch(i, k, last[k, k])
        for i in range(k + 1, tiles):
            for j in range(k + 1, i + 1):
                touch(i, j, last[i, k], last[j, k])


def _gaussian(graph: _Graph) -> None:
    """Gaussian elimination of 12 columns: a pivot, then all columns behind it."""
    columns: dict[int, int] = {}
    for k in range(11):
        pivot = graph.add([columns[k]] if k in columns else [])
        for j in range(k + 1, 12):
            columns[j] = graph.add([pivot, columns[j]] if j in columns else [pivot])


def _montage(graph: _Graph) -> None:
    """Add a mosaic of the sky, as in WfCommons: projections, differences of neighbours, a model, corrections, a sum."""
    projected = [graph.add() for _ in range(14)]
    near = [(a, a + step) for step in (1, 2) for a in range(len(projected) - step)]
    model = graph.add([graph.add([graph.add([projected[a], projected[b]], 0.5) for a, b in near], 0.3)], 0.1)
    corrected = [graph.add([image, model]) for image in projected]
    table = graph.add(corrected, 0.1)
    graph.add([graph.add([table, *corrected], 2.0)], 0.2)


def _epigenomics(graph: _Graph) -> None:
    """Chains between a split and a merge, as in WfCommons: filter, convert, convert again, map."""
    split, heads = graph.add(size=2.0), []
    for _ in range(14):
        head = split
        for size in (1.0, 0.7, 0.5, 1.5):
            head = graph.add([head], size)
        heads.append(head)
    graph.add([graph.add([graph.add(heads, 2.0)])], 0.3)


def _cybershake(graph: _Graph) -> None:
    """Add two large extractions, each read by many syntheses, each with a peak of its own; two archives of all."""
    syntheses = [graph.add([source]) for source in (graph.add(size=8.0), graph.add(size=8.0)) for _ in range(16)]
    peaks = [graph.add([synthesis], 0.1) for synthesis in syntheses]
    graph.add(syntheses, 0.5)
    graph.add(peaks, 0.1)


def _grid(graph: _Graph) -> None:
    """Add a wavefront: each cell of 9 x 9 needs those above and to the left."""
    cells: dict[tuple[int, int], int] = {}
    for i in range(9):
        for j in range(9):
            cells[i, j] = graph.add([cells[at] for at in ((i - 1, j), (i, j - 1)) if at in cells])


def _experts(graph: _Graph) -> None:
    """Add six layers with eight experts each between a router and a sum."""
    out = graph.add()
    for _ in range(6):
        router = graph.add([out], 0.3)
        out = graph.add([graph.add([graph.add([router])]) for _ in range(8)], 0.3)


def _tree(graph: _Graph) -> None:
    """Add a reduction of 48 leaves by twos and threes."""
    row = [graph.add() for _ in range(48)]
    while len(row) > 1:
        step = graph.random.choice((2, 3))
        row = [graph.add(row[i : i + step]) for i in range(0, len(row), step)]


def _series_parallel(graph: _Graph) -> None:
    """Nested series and parallel parts, at random, about 80 operators."""

    def part(before: int, size: int) -> int:
        if size <= 2:
            return graph.add([before])
        if graph.random.random() < 0.4:
            return part(part(before, size // 2), size - size // 2)
        fork = graph.add([before], 0.5)
        branches = graph.random.randint(2, 4)
        return graph.add([part(fork, size // branches) for _ in range(branches)], 0.5)

    part(graph.add(), 130)


def _towers(graph: _Graph) -> None:
    """Add six towers of different depth that exchange their results every fourth layer."""
    heads = [graph.add() for _ in range(6)]
    for layer in range(14):
        heads = [graph.add([head]) if layer % 6 <= t else head for t, head in enumerate(heads)]
        if layer % 4 == 3:
            mixed = graph.add(heads, 0.5)
            heads = [graph.add([head, mixed]) for head in heads]
    graph.add(heads)


def _unet(graph: _Graph) -> None:
    """Add an encoder and a decoder of two branches a level, with tensors that skip between them."""
    skips, out, size = [], graph.add(), 2.0
    for _ in range(5):
        out = graph.add([graph.add([out], size), graph.add([graph.add([out], size)], size)], size)
        skips.append(out)
        out, size = graph.add([out], size / 2), size * 0.7
    for skip in reversed(skips):
        size /= 0.7
        up = graph.add([out], size)
        out = graph.add([graph.add([up, skip], size), graph.add([graph.add([up], size), skip], size)], size)


FAMILIES: dict[str, Callable[[_Graph], None]] = {
    "butterfly": _butterfly,
    "cholesky": _cholesky,
    "gaussian": _gaussian,
    "montage": _montage,
    "epigenomics": _epigenomics,
    "cybershake": _cybershake,
    "grid": _grid,
    "experts": _experts,
    "tree": _tree,
    "series-parallel": _series_parallel,
    "towers": _towers,
    "unet": _unet,
}


def task_graph(family: str, seed: int = 0, parameters: bool = True) -> OpGraph:
    """Return a graph of one of `FAMILIES`, 30 to 110 operators.

    Parameters
    ----------
    seed : int
        Of the sizes; of the structure, too, where that is random.
    parameters : bool
        Each operator reads a parameter of its own, and those without predecessors the input. Otherwise nothing comes from
        host memory.
    """
    graph = _Graph(seed, parameters)
    FAMILIES[family](graph)
    return graph.finish(family if parameters else f"{family}, nothing loaded")
