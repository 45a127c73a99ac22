"""The scheduler `robust`: what is best over draws of latencies need not be best at the central ones."""

import msgspec
import numpy as np
import pytest

from tvm_sched.errors import InputError
from tvm_sched.problem import Bus, Costs, Device, Operator, OpGraph, Problem, Tensor, Topology, Uncertainty
from tvm_sched.report.summaries import remarks
from tvm_sched.schedulers import solve


def one_operator(certain: int, central: int, low: int, high: int) -> Problem:
    """One operator, on a device whose latency is known and on one of another model whose latency is not (ns)."""
    tensors = (Tensor("x", 4, "input"), Tensor("y", 4))
    graph = OpGraph("one", (Operator("f", inputs=("x",), outputs=("y",)),), tensors, ("y",))
    devices = tuple(Device(f"gpu{i}", 10**6, 1e12, {"float32": 1e12}, bus="pcie", model=f"model{i}") for i in range(2))
    costs = np.array([[certain, central]])
    errors = Uncertainty(
        np.array([[certain, low]]), np.array([[certain, high]]), np.zeros((1, 2)), np.zeros((1, 2), bool)
    )
    return Problem(
        graph, Topology("two", devices, (Bus("pcie", 1e15),)), Costs(costs, source="by hand", uncertainty=errors)
    )


def device_of(problem: Problem, method: str, **options: object) -> str:
    return solve(problem, method=method, options=options).placements[0].device


@pytest.mark.parametrize("statistic", ["mean", "p80"])
def test_a_little_slower_but_certain_is_better(statistic):
    problem = one_operator(certain=100_000, central=90_000, low=60_000, high=400_000)
    assert device_of(problem, "anytime") == "gpu1"
    schedule = solve(problem, method="robust", options={"statistic": statistic, "draws": 64})
    assert schedule.placements[0].device == "gpu0"
    notes = schedule.notes["robust"]
    rows = {row["candidate"]: row for row in notes["candidates"]}
    assert abs(rows["anytime, central"]["central_ns"] - 90_000) < 100
    assert rows["anytime, central"]["value_ns"] > rows[notes["chosen"]]["value_ns"]
    assert "over 64 draws of the latencies" in remarks(problem, schedule)[-1]
    again = solve(problem, method="robust", options={"statistic": statistic, "draws": 64})
    assert again.to_json() == msgspec.structs.replace(schedule, seconds=again.seconds).to_json()


def test_far_slower_is_not_better_for_being_certain():
    # Up: sigma = ln(400/90)/1.28 = 1.16, down: ln(90/60)/1.28 = 0.32; so the mean is about 2.1 times the central latency.
    problem = one_operator(certain=300_000, central=90_000, low=60_000, high=400_000)
    assert device_of(problem, "robust", draws=256) == "gpu1"


def test_costs_without_intervals_count_as_certain():
    problem = one_operator(100_000, 90_000, 60_000, 400_000)
    exact = Problem(problem.graph, problem.topology, Costs(problem.costs.operator_ns, source="roofline"))
    schedule = solve(exact, method="robust")
    assert schedule.placements[0].device == "gpu1"
    assert "no intervals" in remarks(exact, schedule)[-1]


def test_wrong_statistics_are_refused():
    problem = one_operator(100_000, 90_000, 60_000, 400_000)
    with pytest.raises(InputError, match="statistic"):
        solve(problem, method="robust", options={"statistic": "median"})
