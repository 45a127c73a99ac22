"""The proofs' pages: what code refers to is there, and examples come out as the pages say."""

import functools
import math
import re
from pathlib import Path

import numpy as np
import pytest

from tvm_sched.bounds.partitions.node import dearest_node
from tvm_sched.bounds.partitions.prices import price_bound
from tvm_sched.bounds.partitions.semidefinite import semidefinite_bound
from tvm_sched.bounds.partitions.simple import simple_bound
from tvm_sched.bounds.relaxation import Relaxation
from tvm_sched.bounds.variant_relaxation import relaxed
from tvm_sched.pipeline.integer_programs import stage_ranges
from tvm_sched.schedulers.efficient_mip import Instance
from tvm_sched.schedulers.efficient_mip.path_bound import lower_bound
from tvm_sched.schedulers.efficient_mip.separator_bound import separator_bound
from tvm_sched_runtime.pipeline import PartitionProblem, StageTensor
from tvm_sched_runtime.problem import (
    Alternative,
    Bus,
    Costs,
    Device,
    Group,
    Operator,
    OpGraph,
    Problem,
    Tensor,
    Topology,
    Variants,
)

ROOT = Path(__file__).parents[2]
PROOFS = ROOT / "docs" / "proofs"
STATEMENT = re.compile(r"(Lemma|Theorem)s? (\d+)(?:(?:, \d+)* (?:and|to) (\d+))?")


@functools.cache
def statements(page):
    """Numbers of the lemmas and theorems that a page states."""
    headings = re.findall(r"^(?:## |\*\*)(?:Lemma|Theorem) (\d+)", page.read_text(encoding="utf-8"), re.MULTILINE)
    return sorted(map(int, headings))


@pytest.mark.parametrize("page", sorted(PROOFS.glob("*.md")), ids=lambda page: page.stem)
def test_statements_are_numbered_from_one(page):
    assert statements(page) == list(range(1, len(statements(page)) + 1))


def references():
    """File, the words before a page's name, and the page, of each mention of a proof in code."""
    for path in sorted((ROOT / "python").rglob("*.py")):
        text = " ".join(path.read_text(encoding="utf-8").split())
        for match in re.finditer(r"(?:docs/proofs/|\()(\w+)\.md", text):
            if "docs/proofs" in match[0] or (PROOFS / f"{match[1]}.md").exists():
                before = text[max(0, match.start() - 60) : match.start()].rpartition(".")[2]
                yield path.relative_to(ROOT), before, match[1]


def test_code_names_statements_that_are_there():
    found = 0
    for path, before, name in references():
        page = PROOFS / f"{name}.md"
        assert page.exists(), f"{path} names {page}"
        for statement in STATEMENT.finditer(before):
            found += 1
            assert {int(n) for n in statement.groups()[1:] if n} <= set(statements(page)), (path, statement[0], name)
    assert found > 30


def test_the_index_names_files_that_are_there():
    text = (PROOFS / "index.md").read_text(encoding="utf-8")
    files = set(re.findall(r"`((?:bounds|pipeline|schedulers|cpp|tvm_sched_cluster)/[\w/]+\.\w+)`", text))
    assert len(files) > 15
    places = ROOT, ROOT / "python", ROOT / "python" / "tvm_sched", ROOT / "python" / "tvm_sched_runtime"
    assert [file for file in files if not any((place / file).exists() for place in places)] == []
    pages = {page.name for page in PROOFS.glob("*.md")} - {"index.md"}
    assert {name for name in pages if f"({name})" not in text} == set()


def chain(work, transfer=0.0):
    """Nodes in a row."""
    tensors = [StageTensor(v, (v + 1,), transfer) for v in range(len(work) - 1)]
    return PartitionProblem([f"n{v}" for v in range(len(work))], np.array(work, float), np.zeros(len(work)), tensors)


def independent(work, tensors=()):
    """Nodes without edges."""
    return PartitionProblem([f"n{v}" for v in range(len(work))], np.array(work, float), np.zeros(len(work)), tensors)


def test_the_average_is_above_the_largest_node():
    assert simple_bound(independent([5, 3, 3, 3]), 2) == 7


def test_a_node_takes_its_neighbours_along():
    problem = chain([1, 6, 1], 5.0)
    assert dearest_node(problem) == (pytest.approx(8, rel=1e-9), 1)
    assert simple_bound(problem, 2) == 6


def test_three_nodes_in_two_stages():
    assert chain([3, 3, 3]).bottleneck(chain([3, 3, 3]).ideals(2)[2]) == 6


def test_nodes_that_do_not_fit_together():
    problem = independent([4] * 6)
    assert simple_bound(problem, 4) == 6
    assert 7 < price_bound(problem, 4, bound=6, cutoff=8.0)[0] <= 8


def test_readers_of_one_input_in_two_stages():
    problem = independent([1] * 4, [StageTensor(-1, (0, 1, 2, 3), 2.0)])
    assert problem.bottleneck([0, 0, 1, 1]) == 4
    assert 3 < semidefinite_bound(problem, 2, iterations=2000) <= 4


def test_ranges_of_stages_in_a_chain():
    first, last = stage_ranges(chain([4, 4, 4]), 3, 4)
    assert first.tolist() == last.tolist() == [0, 1, 2]


def test_a_path_is_cut_where_memory_ends():
    instance = Instance([[10.0, 10.0]] * 2, [100.0] * 2, [1.0] * 2, [30.0] * 2, [(0, 1)], [1.0, 1.0])
    assert lower_bound(instance) == 80
    assert math.isclose(instance.critical_path, 20)


def test_branches_between_separators_count():
    edges = [(0, 1), (0, 2), (1, 3), (2, 3)]
    instance = Instance([[10.0, 10.0]] * 4, [100.0] * 4, [1.0] * 4, [30.0] * 4, edges, [3.0, 3.0])
    assert (lower_bound(instance), separator_bound(instance).bound) == (90, 100)


def two_devices():
    """Two devices, each with a bus of 1 byte/ns without latency."""
    devices = tuple(Device(f"gpu{i}", 10**6, 1e12, {"float32": 1e12}, bus=f"pcie{i}") for i in range(2))
    return Topology("two", devices, tuple(Bus(f"pcie{i}", 1e9) for i in range(2)))


@pytest.mark.parametrize(("ancestors", "crossed", "end"), [(1, 1104, 1108), (2, 1604, 1604)])
def test_parameters_of_ancestors_cross_the_buses(ancestors, crossed, end):
    names = [f"a{i}" for i in range(ancestors)]
    operators = [Operator(name, inputs=(f"w{name}",), outputs=(name,)) for name in names]
    operators.append(Operator("o", inputs=(*names, "w"), outputs=("y",)))
    tensors = [Tensor(f"w{name}", 1000, "parameter") for name in names] + [Tensor("w", 1008, "parameter")]
    graph = OpGraph("g", tuple(operators), (*tensors, *(Tensor(name, 0) for name in (*names, "y"))), ("y",))
    problem = Problem(graph, two_devices(), Costs(np.array([[1, 1]] * ancestors + [[100, 100]])))
    relaxation = Relaxation(problem)
    assert relaxation.host.ancestors_on_bus[-1] == pytest.approx(crossed)
    assert relaxation.end[-1] == pytest.approx(end)


def test_heads_and_a_tail_of_two_alternatives():
    heads = tuple(Operator(f"half{i}", inputs=(f"w{i}",), outputs=(f"h{i}",)) for i in range(2))
    own = (*(Tensor(f"w{i}", 40, "parameter") for i in range(2)), *(Tensor(f"h{i}", 0) for i in range(2)))
    halves = Alternative("halves", (*heads, Operator("tail", inputs=("h0", "h1"), outputs=("y",))), own)
    variants = Variants([Group("group", ("fused",), (halves,))], Costs(np.array([[60, 60], [60, 60], [5, 5]])))
    fused = Operator("fused", inputs=("w",), outputs=("y",))
    graph = OpGraph("g", (fused,), (Tensor("w", 80, "parameter"), Tensor("y", 0)), ("y",))
    problem = relaxed(Problem(graph, two_devices(), Costs(np.array([[100, 100]])), variants)).problem
    assert problem.costs.operator_ns.tolist() == [[49, 49], [49, 49], [2, 2]]
    assert [tensor.size for tensor in problem.graph.tensors if tensor.kind == "parameter"] == [40, 40]
