"""The independent price of partitions: equal to ours with and without memory, and what is wrong is refused."""

import json

import pytest
from exhaustive import small_problem
from hypothesis import given, settings
from hypothesis import strategies as st

from strategies import SEEDS
from thorough import examples
from tvm_sched.bounds.partitions.simple import simple_bound
from tvm_sched_bench.kinds.throughput_kind import Pipeline, ThroughputKind
from tvm_sched_check import Refused
from tvm_sched_check.partitions import check

KIND = ThroughputKind()


def files_of(folder, task, method):
    files = folder / "instance.json", folder / "partition.json"
    files[0].write_bytes(KIND.document(task))
    files[1].write_bytes(KIND.solve(task, method, 0.05, 0).solution)
    return files


@given(SEEDS, st.integers(1, 4), st.booleans(), st.sampled_from(["pipedream", "equal-split"]))
@settings(max_examples=examples(60), deadline=None)
def test_partitions_cost_the_same(folder, seed, stages, limited, method):
    task = Pipeline(small_problem(seed, 9, limited=limited), stages)
    files = files_of(folder, task, method)
    found = check(*files)
    assert float(found.cost) == pytest.approx(KIND.worth(task, files[1].read_bytes(), "own"))
    assert float(found.proved) == pytest.approx(simple_bound(task.graph, stages))


def changed(document, what):
    stages = document["stages"]
    if what == "a node is missing":
        stages[0] = stages[0][1:]
    elif what == "a node stands twice":
        stages[0].append(stages[0][0])
    elif what == "stages in reverse":
        stages.reverse()
    elif what == "nodes in reverse":
        stages[:] = [list(reversed([name for stage in stages for name in stage]))]
    elif what == "too many stages":
        stages[:] = [[name] for stage in stages for name in stage]
    elif what == "another instance":
        document["instance"] = "0" * 16
    else:
        stages[0][0] = "nobody"


WRONG = ("a node is missing", "a node stands twice", "stages in reverse", "nodes in reverse", "too many stages")


@pytest.mark.parametrize("what", [*WRONG, "another instance", "a node that is not there"])
def test_a_wrong_partition_is_refused(folder, what):
    files = files_of(folder, Pipeline(small_problem(3, 9), 3), "equal-split")
    document = json.loads(files[1].read_text())
    changed(document, what)
    files[1].write_text(json.dumps(document))
    with pytest.raises(Refused):
        check(*files)
