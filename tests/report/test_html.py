"""The report's structure; `test_browser` opens it."""

import re

import msgspec
import pytest

from report.parsed import Page
from tvm_sched.cost_model import learned
from tvm_sched.report.html import Entry, write_report
from tvm_sched.schedulers import solve
from tvm_sched_bench.testing import random_problem
from tvm_sched_runtime.errors import TvmSchedError
from tvm_sched_runtime.problem import Operator, OpGraph, Problem, Tensor, Workload
from tvm_sched_runtime.schedule import Placement, Schedule, Timeline, requests_of
from tvm_sched_runtime.schedule.simulator import memory_profile, simulate
from variant_cases import CHOICE, gated


def report(path, problem, entries, **options):
    write_report(path, problem, entries, **options)
    text = path.read_text()
    page = Page(text)
    assert page.open == [], "every element is closed"
    return text, page


@pytest.fixture(scope="module")
def written(problem, single, exact, tmp_path_factory):
    real = msgspec.structs.replace(simulate(problem, exact), source="measured")
    entries = [Entry("one device", single), ("exact", exact, [simulate(problem, exact), real])]
    path = tmp_path_factory.mktemp("report") / "r.html"
    return report(path, problem, entries, title="A & B", options={"model": "m.onnx"})


def test_it_opens_without_a_network(written):
    text, page = written
    for tag, attributes in page.attributes:
        assert not attributes.get("src"), tag
        assert tag != "link"
        assert (attributes.get("href") or "#").startswith("#")
    style = re.search(r"<style>(.*?)</style>", text, re.DOTALL)[1]
    assert "url(" not in style
    assert "@import" not in style
    assert "Plotly" in text


def test_a_speed_up_is_shown_where_there_is_something_to_compare(problem, single, exact, tmp_path):
    together, _ = report(tmp_path / "two.html", problem, [Entry("one device", single), Entry("exact", exact)])
    alone, _ = report(tmp_path / "one.html", problem, [Entry("exact", exact)])
    assert ("Speed-up" in together, "Speed-up" in alone) == (True, False)


def test_each_of_several_has_its_interval(problem, tmp_path):
    graph, topology = problem.graph, problem.topology
    uncertain = Problem(graph, topology, learned(graph, topology))
    entries = [Entry(method, solve(uncertain, method=method)) for method in ("single", "heft")]
    text, _ = report(tmp_path / "r.html", uncertain, entries)
    assert text[text.index('class="summary"') :].partition("</table>")[0].count("with 80 %") == 2


def test_it_has_a_title_and_both_colour_schemes_and_prints(written):
    text, page = written
    assert "<title>A &amp; B</title>" in text
    assert "prefers-color-scheme: dark" in text
    assert "@media print" in text
    assert ("meta", {"name": "color-scheme", "content": "light dark"}) in page.attributes


def test_the_certificate_is_shown(written, exact):
    text, _ = written
    for word in ("Lower bound", "Gap", "Predicted latency", "Measured latency", exact.certificate.bound, "m.onnx"):
        assert word in text
    assert f"{100 * exact.certificate.gap:.1f}%" in text


def test_lanes_and_bars_are_those_of_the_timelines(written, problem, single, exact):
    text, page = written
    first, second = page.data(text)["entries"]
    assert len(first["timelines"]) == 1
    assert [timeline["source"] for timeline in second["timelines"]] == ["simulated", "measured"]
    for entry, schedule in ((first, single), (second, exact)):
        timeline = simulate(problem, schedule)
        drawn = entry["timelines"][0]
        assert set(entry["lanes"]) == set(timeline.lanes)
        assert len(drawn["lane"]) == sum(len(event.lanes) for event in timeline.events)
        assert max(a + b for a, b in zip(drawn["start"], drawn["time"], strict=True)) >= entry["latency"]
        assert all(group < len(entry["groups"]) for group in drawn["group"])
        assert entry["bound"] == schedule.certificate.lower_bound_ns
    assert [lane for lane in second["lanes"] if "/" in lane] == sorted(lane for lane in second["lanes"] if "/" in lane)


def test_memory_is_that_of_the_simulator(written, problem, exact):
    text, page = written
    lines = page.data(text)["entries"][1]["memory"]
    for line, steps in zip(lines, memory_profile(problem, exact), strict=True):
        assert max(line["sizes"]) == max((held for _, held in steps), default=0)
        assert line["times"] == sorted(line["times"])


def test_the_topology_is_drawn(written, problem):
    text, _ = written
    drawing = re.search(r"<svg.*?</svg>", text, re.DOTALL)[0]
    for name in (*(d.name for d in problem.topology.devices), *(b.name for b in problem.topology.buses)):
        assert name in drawing
    assert drawing.count('class="link"') == len(problem.topology.links)


def test_the_entry_with_the_largest_speedup_opens_first(written):
    text, page = written
    assert page.data(text)["open"] == 1


def test_what_variants_gained_counts_as_a_speedup(tmp_path):
    """A compiled model's problem is that of the variants chosen: another digest, the same model."""
    problem = gated()
    fused, apart = problem.resolve({}), problem.resolve(CHOICE)
    entries = [
        Entry("fused", solve(fused, method="single"), problem=fused),
        Entry("apart", solve(apart, method="anytime", options={"work": 0.1}), problem=apart),
    ]
    text, page = report(tmp_path / "r.html", problem, entries)
    assert f"{200 / 115:.2f}×" in text
    assert page.data(text)["open"] == 1


def test_each_request_has_an_entry_with_its_own_latency_and_bound(tmp_path):
    problem = random_problem(0, 8, 3, memory="generous", style="bus")
    made = [
        solve(problem, method=name, workload=Workload(requests_of(problem, [(0, 1), (1, 9)])))
        for name in ("single", "heft")
    ]
    text, page = report(tmp_path / "r.html", problem, [Entry(each.scheduler, each) for each in made])
    said = [(chart["latency"], chart["bound"]) for chart in page.data(text)["entries"]]
    assert said == [(r.latency_ns, r.lower_bound_ns) for each in made for r in each.certificate.requests]
    assert said[0][0] > said[1][0]


def test_names_cannot_break_the_page(tmp_path, problem):
    name = "</script><b>&'\""
    graph = OpGraph(name, (Operator(name, name, (), (name,)),), (Tensor(name, 4),), (name,))
    made = Problem(graph, problem.topology, roofline_of(graph, problem.topology))
    schedule = Schedule(made.digest, (Placement(name, "gpu1"),))
    text, page = report(tmp_path / "r.html", made, [Entry(name, schedule)])
    assert page.tags.count("script") == 3
    assert page.data(text)["names"] == [name]


def roofline_of(graph, topology):
    from tvm_sched.cost_model.roofline_model import roofline

    return roofline(graph, topology)


def test_an_empty_graph(tmp_path, problem):
    graph = OpGraph("empty", (), ())
    made = Problem(graph, problem.topology, roofline_of(graph, problem.topology))
    text, page = report(tmp_path / "r.html", made, [Entry("empty", Schedule(made.digest, ()))])
    assert page.data(text)["entries"][0]["lanes"] == []


def test_nothing_to_show(tmp_path, problem):
    with pytest.raises(TvmSchedError, match="at least one"):
        write_report(tmp_path / "r.html", problem, [])
    assert not (tmp_path / "r.html").exists()


def test_several_problems_in_one_report(tmp_path, problem, single):
    from tvm_sched.schedulers import solve
    from tvm_sched_runtime.problem import load_topology

    topology = load_topology("a40x2")
    other = Problem(problem.graph, topology, roofline_of(problem.graph, topology))
    entries = [Entry("a", single), Entry("b", solve(other, method="single"), (), other)]
    text, page = report(tmp_path / "r.html", problem, entries)
    assert text.count('class="topology-of"') == 2
    assert page.data(text)["entries"][1]["lanes"][0] in [f"{device.name}/0" for device in topology.devices]


def test_a_timeline_of_no_length(tmp_path, problem, single):
    empty = Timeline("measured", problem.digest, (), 0)
    report(tmp_path / "r.html", problem, [Entry("a", single, [empty])])
