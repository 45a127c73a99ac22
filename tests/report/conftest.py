"""A problem with buses and links, and two schedules of it."""

import pytest

from tvm_sched.cost_model.roofline_model import roofline
from tvm_sched.schedulers import solve
from tvm_sched_bench.testing import random_problem
from tvm_sched_runtime.problem import Problem, load_topology


@pytest.fixture(scope="session")
def problem():
    graph = random_problem(3, operators=30, devices=2, memory="generous").graph
    topology = load_topology("v100-server")
    return Problem(graph, topology, roofline(graph, topology))


@pytest.fixture(scope="session")
def single(problem):
    return solve(problem, method="single")


@pytest.fixture(scope="session")
def exact(problem):
    return solve(problem, method="anytime", options={"work": 0.3})
