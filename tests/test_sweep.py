"""A sweep: its grid, what rows say, and its answers, against arithmetic."""

from concurrent.futures import Executor, Future

import msgspec
import pytest

from tvm_sched.cost_model.roofline_model import roofline
from tvm_sched.problem_sources import SourceOptions
from tvm_sched.schedulers import solve
from tvm_sched.sweep import Grid, Row, Sweep, parse_prices, parse_vary, price_of, run, spread, summarise
from tvm_sched_bench.testing import random_graph
from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.problem import Problem, load_topology


class Here(Executor):
    """Computes in this process, and is interrupted before the submission of a number."""

    def __init__(self, interrupted_at=None):
        self.left = interrupted_at

    def submit(self, function, /, *arguments):
        if self.left is not None:
            if self.left == 0:
                raise KeyboardInterrupt
            self.left -= 1
        future = Future()
        future.set_result(function(*arguments))
        return future


@pytest.fixture
def problem_file(tmp_path):
    topology = load_topology("v100-server")
    graph = random_graph(5, operators=12)
    Problem(graph, topology, roofline(graph, topology)).save(tmp_path / "p.json")
    return tmp_path / "p.json"


def grid(path, *vary, prices=None):
    return Grid(path, None, parse_vary(vary), SourceOptions(costs="roofline"), prices or {})


def nothing(*_):
    pass


def test_keys_are_read_in_one_order():
    assert parse_vary(["batch=1,8", "gpus=1..3,8", "link=pcie3,nvlink", "bandwidth=0.5x,2"]) == {
        "gpus": (1, 2, 3, 8),
        "link": ("pcie3", "nvlink"),
        "bandwidth": (0.5, 2.0),
        "batch": (1, 8),
    }


@pytest.mark.parametrize(
    "text",
    [
        "gpus", "gpus=0", "gpus=3..1", "gpus=a", "link=usb", "bandwidth=0", "bandwidth=x", "cores=2", "batch=",
        "topology=",
    ],
)  # fmt: skip
def test_wrong_values_are_named(text):
    with pytest.raises(InputError, match="--vary"):
        parse_vary([text])


def test_each_row_is_the_schedule_of_its_machine(problem_file):
    work = grid(problem_file, "gpus=1,2", "bandwidth=1,2")
    found, complete = run(work, "heft", {}, Here(), nothing)
    assert complete
    assert [each.row.values for each in found] == work.points()
    for each, point in zip(found, work.points(), strict=True):
        problem = work.problem(point, nothing)
        known = solve(problem, method="heft").certificate
        assert each.row.lower_bound == known.lower_bound
        assert each.row.latency <= known.latency
        assert each.timeline.latency_ns == round(each.row.latency * 1e9)
        assert each.row.throughput == 1 / each.row.latency


def test_a_larger_machine_is_never_slower(problem_file):
    found, _ = run(grid(problem_file, "gpus=1..6", "link=pcie3,nvlink"), "pipelined", {}, Here(), nothing)
    for link in ("pcie3", "nvlink"):
        times = [each.row.latency for each in found if each.row.values["link"] == link]
        assert times == sorted(times, reverse=True)
        assert all(each.row.used <= each.row.devices for each in found)


def test_ctrl_c_keeps_what_is_finished(problem_file):
    work = grid(problem_file, "gpus=1..4")
    found, complete = run(work, "heft", {}, Here(interrupted_at=2), nothing)
    assert not complete
    assert [each.row.values["gpus"] for each in found] == [1, 2]
    assert summarise(work, found, "heft", {}, None).wanted == 4


def test_prices():
    machine = load_topology("v100-server")
    assert price_of(machine, None, parse_prices(["2.5"])) == 10
    assert price_of(machine, "nvlink", parse_prices(["1", "V100=2", "nvlink=0.5"])) == 10
    assert price_of(machine, None, parse_prices(["A100=2"])) is None
    for wrong in ("a", "-1", "V100=", "nan"):
        with pytest.raises(InputError, match="--price"):
            parse_prices([wrong])


def rows(*latencies, bound=0.5):
    return [
        Row(values={"gpus": n}, devices=n, batch=1, used=n, latency=latency, lower_bound=bound, price=2.0 * n)
        for n, latency in enumerate(latencies, 1)
    ]


def answers(found, target=None):
    from tvm_sched.sweep import where_gpus_stop_paying, which_is_enough

    return [*which_is_enough(found, target), *where_gpus_stop_paying(found, {"gpus": [1, 2, 3, 4]})]


def test_where_another_gpu_stops_paying():
    (said,) = answers(rows(4.0, 2.0, 1.0, 0.98))
    assert said.startswith("beyond 3 GPUs the latency falls by less than 5% in all (up to 4)")
    assert said.endswith("no schedule on 4 saves more than 50%")
    assert answers(rows(4.0, 2.0, 1.0, 0.5)) == ["every further GPU pays, up to 4"]


def test_which_machine_is_enough():
    found = rows(4.0, 2.0, 1.0, 0.98)
    kernels = "by any schedule of these kernels (bound)"
    assert answers(found, 2.0)[0] == (
        "2000 ms: the cheapest variant that reaches it is gpus 2 (2e+03 ms predicted); "
        f"of 4 variants 3 reach it, 0 cannot {kernels}, 1 are open"
    )
    assert answers(found, 0.4)[0] == (
        f"400 ms: no variant reaches it; of 4 variants 0 reach it, 4 cannot {kernels}, 0 are open"
    )


def test_a_sweep_is_plain_data(problem_file):
    work = grid(problem_file, "gpus=1,2", prices={"": 3.0})
    found, _ = run(work, "heft", {}, Here(), nothing)
    made = summarise(work, found, "heft", {}, 0.05)
    again = msgspec.json.decode(msgspec.json.encode(made), type=Sweep)
    assert again == made
    first = made.rows[0]
    assert first.cost == pytest.approx(1000 * first.latency * first.price / 3600)
    assert first.least_cost <= first.cost


def test_rows_have_the_interval_of_their_prices(problem_file):
    sure = run(grid(problem_file, "gpus=1"), "single", {}, Here(), nothing)[0][0].row
    priced = Grid(problem_file, None, parse_vary(["gpus=1"]), SourceOptions(costs="learned"), {})
    row = run(priced, "single", {}, Here(), nothing)[0][0].row
    assert sure.interval is None
    assert row.interval[0] < row.latency < row.interval[1]
    assert spread(row).endswith("with 80 %")
