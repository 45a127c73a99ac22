"""Units, connections, figures, drawings."""

import pytest

from tvm_sched.report.connections import LEGEND, connection, matrix
from tvm_sched.report.drawing import topology_svg
from tvm_sched.report.figures import lane_figures, ordered_lanes, time_by_kind
from tvm_sched.report.measurement import measured_timeline, planned_timeline
from tvm_sched.report.units import format_bytes, format_percent, format_rate, format_spread, format_time, why_outside
from tvm_sched_runtime.problem import HOST, load_topology, preset_names
from tvm_sched_runtime.schedule.simulator import simulate


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (5e-9, "5 ns"), (1.5e-6, "1.50 µs"), (0.0123, "12.3 ms"), (0.99999, "1.00 s"), (250, "250 s")],
)
def test_format_time(seconds, text):
    assert format_time(seconds) == text


def test_sizes_rates_and_shares():
    assert [format_bytes(n) for n in (0, 1023, 1024, 5 << 20)] == ["0 B", "1023 B", "1.00 KiB", "5.00 MiB"]
    assert [format_rate(n) for n in (5, 12.3e9, 3.35e12)] == ["5 B/s", "12.3 GB/s", "3.35 TB/s"]
    assert format_percent(0.1234) == "12.3%"


def test_connections():
    topology = load_topology("v100-server")
    names = topology.device_id
    assert str(connection(topology, names["gpu1"], names["gpu4"])) == "NV2 48 GB/s"
    assert connection(topology, HOST, 0).by == "BUS"
    assert connection(load_topology("p4d"), 0, 7).by == "NVS"
    assert connection(load_topology("cpu2"), HOST, 1).by == "RAM"
    three = load_topology("a6000-server")
    assert {cell.by for row in matrix(three)[1] for cell in row} >= {"X", "BUS"}


@pytest.mark.parametrize("name", [*preset_names(), "cpu1", "cpu16"])
def test_every_machine_can_be_drawn(name):
    import xml.etree.ElementTree as ElementTree

    topology = load_topology(name)
    ElementTree.fromstring(topology_svg(topology))
    for row in matrix(topology)[1]:
        for cell in row:
            assert cell.by in LEGEND or cell.by[:2] == "NV"


def test_figures_add_up(problem, exact):
    timeline = simulate(problem, exact)
    lanes = ordered_lanes(problem.topology, [timeline])
    figures = lane_figures(timeline, lanes)
    assert sorted(lanes) == sorted(timeline.lanes)
    kernels = sum(f.events for f in figures if "/" in f.lane)
    assert kernels == len(problem.graph.operators)
    assert all(0 <= f.busy <= 1 for f in figures)
    assert time_by_kind(timeline)["kernel"] == sum(f.busy_ns for f in figures if "/" in f.lane)


def test_a_plan_is_timed_by_queues_and_waits():
    def step(queue, duration, waits, kind="kernel"):
        event = {"kind": kind, "name": f"{queue}{duration}", "lanes": [f"cpu{queue}/0"], "bytes": 1}
        return {"queue": queue, "duration_ns": duration, "waits": waits, "event": event}

    plan = {"steps": [step(0, 5, []), step(0, 7, []), step(2, 2, [0], "copy"), step(1, 4, [2])]}
    timeline = planned_timeline(plan, "p")
    assert [(event.start_ns, event.end_ns) for event in timeline.events] == [(0, 5), (5, 12), (5, 7), (7, 11)]
    assert (timeline.source, timeline.latency_ns) == ("simulated", 12)


def test_a_step_of_which_the_plan_says_nothing_is_no_event():
    rows = [
        {"start_ns": 0, "end_ns": 4, "event": {"kind": "kernel", "name": "a", "lanes": ["cpu0/0"], "bytes": 3}},
        {"start_ns": 4, "end_ns": 9, "event": None},
    ]
    timeline = measured_timeline({"backend": "cpu", "events": rows})
    assert (len(timeline.events), timeline.latency_ns, timeline.source) == (1, 4, "measured")


def test_a_time_with_its_interval():
    assert format_spread(1_600_000, None) == "1.60 ms"
    assert format_spread(1_600_000, (1_300_000, 2_100_000)) == "1.60 ms, 1.30 to 2.10 ms with 80 %"
    assert format_spread(960_000, (700_000, 1_200_000)) == "960 µs, 700 µs to 1.20 ms with 80 %"


def test_an_interval_that_leaves_its_time_out_is_explained():
    assert why_outside(1_300_000, None) is why_outside(1_300_000, (1_300_000, 2_000_000)) is None
    assert why_outside(1_300_000, (1_350_000, 1_870_000)).startswith("the interval lies above 1.30 ms, the latency at")
    assert why_outside(1_300_000, (1_100_000, 1_200_000)).startswith("the interval lies below 1.30 ms")
