"""Table 3 on a chain worked out by hand: nodes of 4, 4, 4 and 8, each of which sends 1 to the next."""

import json

import numpy as np
import pytest

from tvm_sched.bounds.partitions.simple import simple_bound
from tvm_sched.pipeline import partition
from tvm_sched_bench.regal_table import PAPER, STAGES, RegalFigure, RegalTable, load_regal, regal_table
from tvm_sched_bench.testing.regal import LOCAL_REACH, LOCAL_READS, LOCAL_TRANSFER, regal_like, regal_local

CHAIN = """
node { name: "a" id: 0 output_info { size: 1 } compute_cost: 4 }
node { name: "b" id: 1 input_info { preceding_node: 0 } output_info { size: 1 } compute_cost: 4 }
node { name: "c" id: 2 input_info { preceding_node: 1 } output_info { size: 1 } compute_cost: 4 }
node { name: "d" id: 3 input_info { preceding_node: 2 } compute_cost: 8 }
"""


def test_a_chain_by_hand(tmp_path):
    """Two stages: abc | d costs 12 + 1, total work is 20. Four: ab | c | d costs 9, and the largest node 8."""
    (tmp_path / "chain.pbtxt").write_text(CHAIN)
    table = regal_table(load_regal(tmp_path), (2, 4), 20)
    means = {(each.bound, each.stages): each.mean for each in table.figures}
    assert means["simple", 2] == pytest.approx(10 / 13)
    assert means["simple", 4] == pytest.approx(8 / 9)
    assert means["exact", 2] == pytest.approx(1, rel=1e-5)
    assert means["exact", 4] == pytest.approx(1, rel=1e-5)
    papers = {(each.bound, each.stages): each.paper for each in table.figures}
    assert (papers["simple", 4], papers["exact", 2]) == (0.8795, 0.9804)


def test_means_are_geometric(tmp_path):
    """The second graph is one node: bound and cost are equal."""
    (tmp_path / "chain.pbtxt").write_text(CHAIN)
    (tmp_path / "node.json").write_text(json.dumps({"nodes": [{"id": 1, "work": 5, "size_out": 0}], "edges": []}))
    table = regal_table(load_regal(tmp_path), (2,), 20)
    assert table.graphs == 2
    assert table.figures[0].mean == pytest.approx((10 / 13) ** 0.5)


def test_the_sentence_names_the_largest_difference():
    table = RegalTable(3, [RegalFigure("simple", 2, 0.9, 0.95), RegalFigure("exact", 64, 0.2, 0.381)])
    assert table.sentence == "3 graphs; farthest from the paper is exact at 64 stages, 0.1810 below it."


def test_a_share_of_the_own_tensors_is_smaller_than_one_of_all_tensors():
    """Both graphs draw the same numbers; the random parts of a node's work are to each other as its tensors to all."""
    share_of_all, share_of_own = (regal_like(1, 60, own_share=own) for own in (False, True))
    assert share_of_all.tensors == share_of_own.tensors
    tensors = [tensor.transfer for tensor in share_of_all.tensors]
    own = np.array(tensors)
    for tensor in share_of_all.tensors:
        own[list(tensor.readers)] += tensor.transfer
    extra = share_of_all.work - own
    assert extra.max() > own.max(), "one node dominates"
    assert share_of_own.work == pytest.approx(own + extra * own / sum(tensors))


def test_nodes_of_a_local_graph_read_what_is_near():
    """Work of the last node: its own tensor, the two it reads, and a share of these of 0 or more."""
    problem = regal_local(3)
    reads = [[t.producer for t in problem.tensors if v in t.readers] for v in range(problem.size)]
    assert all(len(of) == min(v, LOCAL_READS) for v, of in enumerate(reads))
    assert all(v - u <= LOCAL_REACH for v, of in enumerate(reads) for u in of)
    sizes = [tensor.size for tensor in problem.tensors]
    tensors = sizes[-1] + sum(sizes[u] for u in reads[-1])
    assert tensors <= problem.work[-1] < 1.5 * tensors
    assert [t.transfer for t in problem.tensors] == [pytest.approx(LOCAL_TRANSFER * size) for size in sizes]


@pytest.mark.thorough
def test_local_graphs_fit_the_papers_row():
    """Geometric means over 6 graphs of the simple bound over the best partition: within 15 % of the paper's."""
    for k, paper in zip(STAGES, PAPER["simple"], strict=True):
        ratios = []
        for seed in range(6):
            problem = regal_local(seed)
            cost = partition(problem, k, "slicegraph", {"order": "brkga", "evaluations": 1000}).cost
            ratios.append(simple_bound(problem, k) / cost)
        assert np.exp(np.mean(np.log(ratios))) == pytest.approx(paper, rel=0.15)
