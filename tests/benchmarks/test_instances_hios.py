"""What `instances_hios` adds to the authors' code: priorities, and prices under the paper's precedence constraint."""

from types import SimpleNamespace

import networkx as nx
import pytest
from instances_hios import feasible, priorities


def graph_of(edges, weights):
    graph = nx.DiGraph()
    for o, weight in enumerate(weights):
        graph.add_node(o, weight=weight)
    graph.add_weighted_edges_from(edges)
    return graph


SCHEDULER = SimpleNamespace(get_latency_of_stage=lambda graph, stage: max(graph.nodes[o]["weight"] for o in stage))


def test_priorities_are_longest_paths_with_transfers():
    # 0 -> 1 (4) and 0 -> 2 (1): longest paths 2 + 4 + 3, 3, 6.
    assert priorities(graph_of([(0, 1, 4), (0, 2, 1)], [2, 3, 6])) == [0, 2, 1]


def test_stages_wait_for_inputs_and_transfers():
    graph = graph_of([(0, 1, 4), (0, 2, 1), (1, 3, 5), (2, 3, 7)], [2, 3, 6, 1])
    # Device 0: 0 to 2, 1 to 5. Device 1: 2 from 2 + 1 to 9. 3 waits for 2's transfer: from 16 to 17.
    assert feasible(SCHEDULER, graph, {0: [{0}, {1}, {3}], 1: [{2}]}) == 17
    assert feasible(SCHEDULER, graph, {0: [{0}, {1, 2}, {3}]}) == 9  # 2, max(3, 6), 1


@pytest.mark.parametrize("stages", [{0: [{1}, {0}]}, {0: [{0, 1}]}], ids=["order", "stage"])
def test_a_circle_has_no_price(stages):
    assert feasible(SCHEDULER, graph_of([(0, 1, 1)], [1, 1]), stages) is None
