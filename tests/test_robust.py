"""The scheduler `robust`: what is best over draws of latencies need not be best at the central ones."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from tvm_sched import robust as robust_method
from tvm_sched.cost_model.uncertainty import draws
from tvm_sched.report.summaries import remarks
from tvm_sched.schedulers import get, solve
from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.problem import Bus, Costs, Device, Operator, OpGraph, Problem, Tensor, Topology, Uncertainty


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
    assert "they have no intervals" in remarks(exact, schedule)[-1]


def test_wrong_statistics_are_refused():
    problem = one_operator(100_000, 90_000, 60_000, 400_000)
    with pytest.raises(InputError, match="statistic"):
        solve(problem, method="robust", options={"statistic": "median"})


def test_searches_for_several_kinds_of_requests_share_the_time():
    method = get("robust")
    whole = method.read_options(None).scaled(10**6)
    assert (whole.time_limit, method.read_options(None).part(4).time_limit) == (20.0, 5.0)
    assert method.read_options({"time_limit": 8.0}).part(4).seconds == 2.0


def test_without_time_to_judge_the_central_latencies_decide(monkeypatch):
    problem = one_operator(certain=100_000, central=90_000, low=60_000, high=400_000)
    monkeypatch.setattr(robust_method, "seconds_left", lambda: 0.0)
    schedule = solve(problem, method="robust")
    assert schedule.placements[0].device == "gpu1"
    assert schedule.notes["robust"]["draws"] == 0


def test_ctrl_c_keeps_what_was_found(monkeypatch):
    problem = one_operator(certain=100_000, central=90_000, low=60_000, high=400_000)

    def interrupted(problem, workload, options):
        raise KeyboardInterrupt

    real = robust_method.get

    def interrupting(name):
        if name == "peft":
            return replace(real(name), function=interrupted)
        return real(name)

    monkeypatch.setattr(robust_method, "get", interrupting)
    schedule = solve(problem, method="robust")
    assert {row["candidate"] for row in schedule.notes["robust"]["candidates"]} == {"single", "heft"}


def test_draws_leave_what_the_bus_takes():
    """A direct read that waits for the bus is as long in each draw, or as long as its kernel; others follow their kernel."""
    base = one_operator(100_000, 90_000, 60_000, 400_000)
    direct = np.array([[150_000, 150_000]])
    costs = Costs(base.costs.operator_ns, direct, source="by hand", uncertainty=base.costs.uncertainty)
    for drawn in draws(Problem(base.graph, base.topology, costs), 50):
        kernel = drawn.costs.operator_ns
        assert (drawn.costs.direct_ns == np.maximum(150_000, kernel)).all()
