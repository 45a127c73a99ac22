"""TensorFlow's CostGraphDef as text: small graphs written by hand."""

import numpy as np
import pytest

from tvm_sched.pipeline.cost_graph import read_cost_graph
from tvm_sched.pipeline.graph_files import load_graph
from tvm_sched_runtime.errors import FormatError
from tvm_sched_runtime.pipeline import StageTensor

DIAMOND = """
# two outputs of one node, a control input, unknown fields
node {
  name: "input; {not a mark}"
  output_info { size: 40 alias_input_port: -1 dtype: DT_FLOAT shape { dim { size: 10 } } }
  output_info <size: 8>
  compute_cost: 3
}
node { name: 'left' id: 1 input_info { preceding_node: 0 } output_info { size: 16 } compute_cost: 7; }
node { name: "right" id: 2, input_info { preceding_node: 0 preceding_port: 1 } compute_cost: 5 is_final: true }
node: { id: 7 input_info { preceding_node: 1 } control_input: [2] output_info: { size: -1 } }
cost { dimension: "memory" cost: 1.5 }
"""


@pytest.fixture
def read(tmp_path):
    def call(text, **options):
        path = tmp_path / "graph.pbtxt"
        path.write_text(text)
        return read_cost_graph(path, **options)

    return call


def test_nodes_ports_and_control_inputs(read):
    graph = read(DIAMOND, bandwidth=4)
    assert graph.names == ["input; {not a mark}#0", "left#1", "right#2", "node#7"]
    assert graph.work.tolist() == [3, 7, 5, 0]
    assert graph.tensors == [
        StageTensor(0, (1,), 10.0, 40),
        StageTensor(0, (2,), 2.0, 8),
        StageTensor(1, (3,), 4.0, 16),
        StageTensor(3, (), 0.0, 0),
        StageTensor(2, (3,), 0.0),
    ]
    assert graph.edges == [(0, 1), (0, 2), (1, 3), (2, 3)]
    # The first two nodes send 2 and 4, the last two get them.
    assert graph.bottleneck([0, 0, 1, 1]) == 3 + 7 + 2 + 4


def test_graphs_are_read_by_the_ends_of_their_names(read, tmp_path):
    read(DIAMOND)
    assert np.array_equal(load_graph(tmp_path / "graph.pbtxt").work, [3, 7, 5, 0])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no messages called 'node'"),
        ("node: 3", "no messages called 'node'"),
        ("node { id: 1 } node { id: 1 }", "id of nodes stands twice"),
        ("node { id: x }", "field 'id' is 'x'; an integer is allowed"),
        ("node { input_info { preceding_node: 3 } }", "reads port 0 of node 3, which is not there"),
        ("node { } node { id: 1 input_info { preceding_node: 0 preceding_port: 1 } }", "reads port 1 of node 0"),
        ("node { control_input: 4 }", "control input '4' of node 'node#0' is no node"),
        ("node { output_info { size: 1 } input_info { preceding_node: 0 } }", "reads its own output"),
        ("node { id: 1 compute_cost: -1 }", "work of node 'node#1' is -1"),
        ("node { id: 1", "'}' is missing"),
        ("node { id }", "field 'id' has no value"),
        ("node { control_input: [1", "list of field 'control_input' does not end"),
        ("node { control_input: [{ }] }", "a list of plain values is expected"),
        ("} node { }", "found '}' where the name of a field is expected"),
        ('node { name: "open }', "line 1: '\"' has no place"),
        ("a {" * 100, "too deep"),
    ],
)
def test_what_is_wrong_is_said(read, text, message):
    with pytest.raises(FormatError, match=r"graph\.pbtxt: ") as caught:
        read(text)
    assert message in str(caught.value)


def test_cycles_and_bandwidths(read):
    cycle = "node { id: %d input_info { preceding_node: %d } output_info { } }"
    with pytest.raises(FormatError, match="cycle"):
        read(cycle % (0, 1) + cycle % (1, 0))
    with pytest.raises(FormatError, match="bandwidth is 0"):
        read(DIAMOND, bandwidth=0)
