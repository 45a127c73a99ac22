"""Task graphs with communication of others: their times are exactly ours, and wrong files are refused."""

import json

import pytest

from tvm_sched_bench import load_suite
from tvm_sched_bench.task_files import estee_graphs, read_auckland, read_estee, read_unrelated
from tvm_sched_runtime.errors import FormatError, InputError
from tvm_sched_runtime.schedule import Placement, Schedule, Transfer, simulate

DOT = """digraph "Fork_Nodes_3" {
	graph ["Duplicate states"=0,
		Modes="120000ms; \\
equal, ",
		TargetSystem="Homogeneous-2",
		"Total schedule length"=9
	];
	0	["Finish time"=2, Processor=0, "Start time"=0, Weight=2];
	7	["Finish time"=6, Processor=0, "Start time"=2, Weight=4];
	0 -> 7	[Weight=30];
	3	["Finish time"=9, Processor=1, "Start time"=6, Weight=3];
	0 -> 3	[Weight=4];
}
"""
PLAIN = """digraph "Fork" {
	0	 [Weight=2,Start=0,Processor=2];
	7	 [Weight=4,Start=2,Processor=2];
	0 -> 7	 [Weight=30];
}"""
DAG = "#critical\n0.000000\n#tasks\n0:   1.5,  2\n1: 3.000001, 0.25\n#edges\n0: 0, 1, 0.1\n#end\n"


@pytest.fixture
def written(tmp_path):
    def write(text, name="graph_Homogeneous-2.dot"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return write


@pytest.mark.parametrize(("text", "length"), [(DOT, 9), (PLAIN, 6)], ids=["published", "without fields of the graph"])
def test_a_published_schedule_replays_to_its_length(written, text, length):
    published = read_auckland(written(text))
    assert published.length_ns == simulate(published.problem, published.schedule).latency_ns == length
    assert len(published.problem.topology.devices) == 2


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("-2", "-0", "1 to 4096 equal processors"),
        ('"Finish time"=6', '"Finish time"=7', "node '7' runs from 2 to 7"),
        ("Weight=30", "Weight=-3", "edge 0 -> 7 has Weight"),
        ("Processor=1", "Processor=x", "Processor 'x'"),
        ("-2", "-1", "3 tasks on 2 processors"),
        ("0 -> 3", "0 -> 4", "node '4', which is not there"),
        ("0 -> 3", "0 -> 7", "edge 0 -> 7 is there twice"),
        ("3	[", "7	[", "node '7' is there twice"),
        ("0 -> 3", "0 -- 3", "line 12: a node, an edge"),
        ("0 -> 3", "3 -> 3", "cycle"),
        ("digraph", "graph", "not a graph of Auckland"),
    ],
)
def test_wrong_graphs_of_auckland_are_refused(written, old, new, message):
    with pytest.raises(FormatError, match=message):
        read_auckland(written(DOT.replace(old, new)))


def test_unrelated_machines_have_times_to_the_last_digit(written):
    problem = read_unrelated(written(DAG))
    assert problem.costs.operator_ns.tolist() == [[1_500_000, 2_000_000], [3_000_001, 250_000]]
    apart = Schedule(
        problem.digest,
        (Placement("v0", "device0"), Placement("v1", "device1")),
        (Transfer("copy", "device1", "t0", source="device0"),),
    )
    assert simulate(problem, apart).latency_ns == 1_500_000 + 100_000 + 250_000


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (", 0.25", "", "task 1 has 1 times; each is to have 2"),
        ("0.25", "0.2500001", "up to 6 digits"),
        ("1: 3", "2: 3", "line 5: it begins with '2'; '1:' is allowed"),
        ("0, 1, 0.1", "0, 2, 0.1", "edge 0 is 0, 2, 0.1; two tasks of 0 to 1"),
        ("#end", "", "section #end is missing"),
        ("#edges", "#tasks", "line 6: '#tasks'"),
        ("#critical\n", "", "line 1: text outside"),
    ],
)
def test_wrong_graphs_on_unrelated_machines_are_refused(written, old, new, message):
    with pytest.raises(FormatError, match=message):
        read_unrelated(written(DAG.replace(old, new)))


def frame(*tasks):
    return json.dumps({"graph_name": {"0": "pair"}, "graph_id": {"0": "x"}, "graph": {"0": json.dumps(tasks)}})


def task(inputs=(), cpus=1, d=0.5):
    return {"d": d, "e_d": None, "cpus": cpus, "outputs": [{"s": 20.0, "e_s": 20.0}], "inputs": list(inputs)}


def test_a_worker_of_estee_downloads_an_output_once(written):
    """Two tasks on one worker read what another worker made: 20 MB at 100 MB/s take 0.2 s, one time."""
    problem = read_estee(written(frame(task(), task([(0, 0)]), task([(0, 0)])), "set.zip"), workers=2)
    schedule = Schedule(
        problem.digest,
        (Placement("v0", "device0"), Placement("v1", "device1"), Placement("v2", "device1")),
        (Transfer("copy", "device1", "t0", source="device0"),),
    )
    assert simulate(problem, schedule).latency_ns == 1_700_000_000


def test_wrong_workflows_of_estee_are_refused(written):
    for tasks, message in (
        ([task(cpus=2)], "needs 2 cores; tasks of one core are allowed"),
        ([task([(0, 1)])], "reads output 1 of task 0, which is not there"),
        ([task(d=-1)], "a duration is -1"),
        ([{}], "not a list of tasks"),
    ):
        with pytest.raises(FormatError, match=message):
            read_estee(written(frame(*tasks), "set.zip"))
    path = written(frame(task(cpus=2)), "set.zip")
    assert len(read_estee(path, workers=3, one_at_a_time=True).topology.devices) == 3
    with pytest.raises(FormatError, match="there is no graph 1; 0 to 0 are allowed"):
        read_estee(path, graph=1)
    with pytest.raises(FormatError, match="not a data frame"):
        estee_graphs(written("{}", "set.zip"))


def test_a_folder_of_task_graphs_is_a_suite(written, tmp_path):
    written(DOT, "equal/Fork_CCR_1.99_Homogeneous-2.dot")
    written(DAG, "LIGO/LIGO-2-2-0.1-1.dag")
    written(frame(task(cpus=4)), "flows/set.zip")
    suite = load_suite(tmp_path)
    assert [case.name for case in suite.cases] == [
        "LIGO/LIGO-2-2-0.1-1", "equal/Fork_CCR_1.99_Homogeneous-2", "flows/set-g0",
    ]  # fmt: skip
    assert [len(case.task.problem.topology.devices) for case in suite.cases] == [2, 2, 8]
    (tmp_path / "none").mkdir()
    with pytest.raises(InputError, match=r"neither suite.toml nor files of task graphs \(.dot, .dag, .zip\)"):
        load_suite(tmp_path / "none")
