"""Graphs in files: what is read, and what is said of files that are wrong."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from tvm_sched.cli import app
from tvm_sched.pipeline import partition
from tvm_sched.pipeline.graph_files import load_instance
from tvm_sched_runtime.errors import TvmSchedError

NODES = [
    {"id": "a", "work": 4, "size_param": 8, "size_out": 2},
    {"id": 7, "work": 3, "size_out": 6, "colour": "red"},
    {"id": "c", "work": 5, "size_param": 1, "size_out": 0},
]
EDGES = [{"source": "a", "target": 7}, {"source": 7, "target": "c"}, {"source": "a", "target": 7}]


def document(**changes):
    return {"nodes": NODES, "edges": EDGES, **changes}


def write(tmp_path, content):
    path = tmp_path / "graph.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_costs_of_what_was_read(tmp_path):
    problem = load_instance(write(tmp_path, document(bandwidth=2, memory=10)))
    assert problem.names == ["a", "7", "c"]
    assert problem.edges == [(0, 1), (1, 2)]  # an edge that stands there twice is one
    assert problem.stage_cost([0]) == 4 + 2 / 2  # 8 bytes of parameters and 2 of output fit into 10
    assert problem.stage_cost([1, 2]) == 2 / 2 + 3 + 5
    # All of it: 9 bytes of parameters beside at most 8 of activations, 7 beyond the memory at 2 bytes a unit of time.
    assert problem.stage_cost([0, 1, 2]) == 12 + 7 / 2
    assert partition(problem, 2, "tarnawski-dp").cost == 9


def test_defaults_are_no_limit_and_a_byte_in_a_unit_of_time(tmp_path):
    problem = load_instance(write(tmp_path, document()))
    assert problem.memory == np.inf
    assert problem.stage_cost([0]) == 4 + 2


WRONG = {
    "not JSON": ("{nodes", "not a JSON document"),
    "a list": ([], "Expected `object`"),
    "no edges": ({"nodes": NODES}, "edges"),
    "no work": (document(nodes=[{"id": 1, "size_out": 1}], edges=[]), "work"),
    "work in words": (document(nodes=[{"id": 1, "work": "much", "size_out": 1}], edges=[]), "work"),
    "negative work": (document(nodes=[{"id": "z", "work": -1, "size_out": 1}], edges=[]), "work of node 'z' is -1"),
    "negative size": (document(nodes=[{"id": "z", "work": 1, "size_out": -1}], edges=[]), "0 or more is allowed"),
    "an id twice": (document(nodes=[*NODES, NODES[0]]), "has an id twice"),
    "an unknown node": (document(edges=[{"source": "a", "target": "x"}]), "names node 'x'"),
    "half an edge": (document(edges=[{"source": "a"}]), "target"),
    "a cycle": (document(edges=[*EDGES, {"source": "c", "target": "a"}]), "cycle"),
    "a loop": (document(edges=[{"source": "a", "target": "a"}]), "node 'a' reads its own output"),
    "no bandwidth": (document(bandwidth=0), "above 0 is allowed"),
    "negative memory": (document(memory=-1), "memory is -1"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_files_are_told_with_their_place(tmp_path, case):
    content, message = WRONG[case]
    path = write(tmp_path, content)
    with pytest.raises(TvmSchedError, match=message) as error:
        load_instance(path)
    assert str(path) in str(error.value)


def test_a_missing_file_is_told(tmp_path):
    with pytest.raises(TvmSchedError, match="cannot be read"):
        load_instance(tmp_path / "none.json")


def command(*arguments):
    return CliRunner().invoke(app, ["pipeline", *map(str, arguments)])


def test_the_command_partitions_a_graph(tmp_path):
    path = write(tmp_path, document())
    result = command(path, "-k", 2, "--partitioner", "tarnawski-dp", "--json")
    assert result.exit_code == 0, result.output
    said = json.loads(result.stdout)
    assert said["cost"] == said["lower_bound"] == 10
    assert [stage["nodes"] for stage in said["stages"]] == [["a"], ["7", "c"]]
    assert "this cannot be improved." in " ".join(
        command(path, "-k", 2, "--partitioner", "tarnawski-dp").stdout.split()
    )


@pytest.mark.parametrize("case", [case for case in WRONG if isinstance(WRONG[case][0], dict)])
def test_the_command_ends_with_status_2_on_wrong_graphs(tmp_path, case):
    content, message = WRONG[case]
    result = command(write(tmp_path, content), "-k", 2)
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())
    assert "Traceback" not in result.output


def test_what_graphs_do_not_have_is_refused(tmp_path):
    path = write(tmp_path, document())
    for arguments, message in [
        ((path,), "give --stages a number from 1"),
        ((path, "-k", 2, "-t", "cpu2"), "--topology is for models"),
        ((path, path, "-k", 2), "one at a time"),
    ]:
        result = command(*arguments)
        assert result.exit_code == 2
        assert message in " ".join(result.output.split())
