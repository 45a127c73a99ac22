"""A search distribute over a Ray cluster."""

from operator import truediv

import pytest

from tvm_sched.worker_pool import distribute, workers
from tvm_sched_cluster import serving
from tvm_sched_cluster.serving import load_deployment
from tvm_sched_runtime.errors import InputError
from worker_pool_cases import search

pytestmark = pytest.mark.xdist_group("ray")


def test_the_cluster_finds_the_same(nodes):
    here = search()
    with serving.RayExecutor() as pool, workers(pool):
        assert search() == here


def test_errors_come_as_they_were_raised_and_nothing_waits(nodes):
    with serving.RayExecutor() as pool, workers(pool):
        with pytest.raises(InputError, match=r"^none\.json: neither a deployment file"):
            distribute(load_deployment, [("none.json",)])
        with pytest.raises(ZeroDivisionError):
            distribute(truediv, [(1, 2), (1, 0)])
        assert distribute(truediv, [(n, 2) for n in range(6)]) == [n / 2 for n in range(6)]


@pytest.mark.thorough
def test_commands_give_the_same(nodes, tmp_path):
    import json

    from typer.testing import CliRunner

    from tvm_sched.cli import app
    from tvm_sched_bench.testing import random_problem

    for seed, name in ((7, "problem.json"), (11, "other.json")):
        random_problem(seed, operators=12, devices=2, memory="generous").save(tmp_path / name)
    anytime = ["--option", "anytime.work=0.1", "--seed", "3"]
    for command in (
        ["compare", str(tmp_path / "other.json"), "--each", "--schedulers", "single,anytime", *anytime],
        ["pipeline", "--partitioner", "slicegraph", "--option", "populations=3", "--option", "evaluations=100"],
    ):
        said = []
        for option in ([], ["--workers", "ray:auto"]):
            result = CliRunner().invoke(
                app, [command[0], str(tmp_path / "problem.json"), *command[1:], *option, "--json"]
            )
            assert result.exit_code == 0, result.output
            said.append(json.loads(result.stdout))
        assert without_seconds(said[0]) == without_seconds(said[1])


def without_seconds(data):
    if isinstance(data, dict):
        return {key: without_seconds(value) for key, value in data.items() if key != "seconds"}
    return [without_seconds(value) for value in data] if isinstance(data, list) else data
