"""Suites: names and arguments of instances, files and their digests, and the suite of this repository."""

from pathlib import Path

import pytest

from tvm_sched_bench import BestKnown, load_suite
from tvm_sched_bench.instance_sources import SOURCES
from tvm_sched_bench.kinds import Proof
from tvm_sched_runtime.errors import InputError

OWN = Path(__file__).parents[2] / "benchmarks" / "instances"


def test_each_combination_is_an_instance(suite):
    assert [case.name for case in suite.cases] == [
        "random/problem-cold", "random/problem-warm", "chain/chain-s2", "workload/workload", "services/huge-model-s0",
    ]  # fmt: skip
    cold, warm = suite.cases[:2]
    assert warm.digest == f"{cold.digest}-{warm.task.workload.digest}"
    assert warm.task.resident
    assert not cold.task.resident
    assert suite.cases[2].task.stages == 2


def test_patterns(suite):
    assert [case.name for case in suite.chosen(["*warm", "chain/*"])] == ["random/problem-warm", "chain/chain-s2"]
    with pytest.raises(InputError, match="no instance is called 'chain/chain-s3'"):
        suite.chosen(["chain/chain-s3"])


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('source = "graph"', 'source = "graphs"', "there is no source 'graphs'; did you mean 'graph'"),
        ('kind = "throughput"', 'kind = "speed"', "there is no kind of instance 'speed'"),
        ('name = "chain"', 'name = "chain"\nseconds = 3', "unknown field `seconds`"),
        ("stages = [2]", "stages = [2, 2]", "instance 'chain/chain-s2' is there twice"),
        ("version = 1", "version = 2", "newer than this tvm_sched reads"),
    ],
)
def test_what_is_wrong_in_a_suite(folder, old, new, message):
    file = folder / "suite.toml"
    file.write_text(file.read_text().replace(old, new))
    with pytest.raises(InputError, match=message):
        load_suite(folder)


def test_another_file_or_argument_is_refused(folder):
    file = folder / "suite.toml"
    file.write_text(file.read_text().replace('run = ["cold", "warm"]', 'state = ["cold"]'))
    with pytest.raises(InputError, match="got an unexpected keyword argument 'state'"):
        load_suite(folder).cases[0].task  # noqa: B018 - it is made when it is asked for
    (folder / "chain.json").write_text("{}")
    with pytest.raises(InputError, match=r"chain.json is not the file that the suite names"):
        load_suite(folder).case("chain/chain-s2").task  # noqa: B018


@pytest.mark.parametrize(
    ("source", "arguments", "message"),
    [
        ("tasks", {"graph": "choleski", "topology": "p4d"}, "no task graph 'choleski'.*did you mean 'cholesky'"),
        ("decoder", {"model": "gpt3", "shape": "1x32", "topology": "p4d"}, "no language model 'gpt3'"),
        ("decoder", {"model": "gpt2-large", "shape": "32", "topology": "p4d"}, "shape is '32'; BATCHxTOKENS"),
        ("problem", {"path": OWN / "models" / "resnet50_p4d.json.gz", "run": "hot"}, "run is 'hot'; 'cold' and 'warm'"),
    ],
)
def test_wrong_arguments_of_sources(source, arguments, message):
    with pytest.raises(InputError, match=message):
        SOURCES.get(source)(**arguments)


def test_the_suite_of_this_repository_has_all_its_files():
    suite = load_suite(OWN)
    families = {
        family.name: sum(case.name.startswith(f"{family.name}/") for case in suite.cases) for family in suite.families
    }
    assert families["regal"] == 600
    assert families["sortinghat"] == 64
    assert families["rampa"] == 48
    for case in suite.cases:
        if "path" in case.arguments:
            assert case.task is not None
    for family in suite.families:
        assert not family.files or family.licence or family.source in ("problem", "model")


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "name",
    ["tasks/tree-p4d", "moirai/googlenet", "networks/squeezenet_p4d-warm", "pipelines/googlenet_p4d-s4", "regal/s0-s64",
     "regal/s0-s16", "placement/bert24_inference_layer", "rampa/rampa-base-huge-model-s0"],
)  # fmt: skip
def test_kept_solutions_are_worth_what_is_said(name):
    suite = load_suite(OWN)
    best, case = BestKnown(suite), suite.case(name)
    known, solution = best.of(case), best.solution(case)
    assert case.kind.worth(case.task, solution, name) == pytest.approx(known.value, rel=1e-12)
    assert not case.kind.better(known.value, known.bound)
    proof = Proof(known.bound, known.bound_by, best.evidence(case))
    found = case.kind.check(case.task, solution, proof, name)
    assert known.checked == (found.by if case.kind.holds(proof, found) or not found.by else f"{found.by}, cost alone")
