"""The report of a pipeline plan; `test_browser` opens it."""

import re

import msgspec
import numpy as np
import pytest
from chain_cases import chain_problem
from execute_cases import executor

from report.parsed import Page
from tvm_sched.pipeline import plan_pipeline
from tvm_sched.report.pipeline_report import write_pipeline_report
from tvm_sched_runtime.pipeline.pipeline_simulator import simulate

FIELDS = ("input_ns", "work_ns", "overflow_ns", "output_ns")


@pytest.fixture(scope="module")
def case():
    problem = chain_problem(memory=3500)  # a stage of two operators has parameters that overflow
    return problem, plan_pipeline(problem, 2, "tarnawski-dp")


def written(path, problem, plan, runs, **more):
    write_pipeline_report(path, problem, plan, *runs, **more)
    text = path.read_text()
    page = Page(text)
    assert page.open == [], "every element is closed"
    assert not any(attributes.get("src") for _, attributes in page.attributes), "it needs no network"
    return text, page


def test_stage_bars_are_the_parts_of_the_costs(case, tmp_path):
    problem, plan = case
    text, _ = written(tmp_path / "r.html", problem, plan, [simulate(problem, plan)], options={"asked by": "a & b"})
    bars = re.findall(r'<span class="parts">(.*?)</span>', text)
    assert len(bars) == len(plan.stages)
    for bar, stage in zip(bars, plan.stages, strict=True):
        widths = {name: float(width) for name, width in re.findall(r'<i class="(\w+)" style="width:([\d.]+)%"', bar)}
        assert widths == pytest.approx(
            {f.removesuffix("_ns"): 100 * getattr(stage, f) / plan.cost_ns for f in FIELDS if getattr(stage, f)},
            abs=1e-3,
        )
        bound = float(re.search(r'<u style="left:([\d.]+)%"', bar)[1])
        assert bound == pytest.approx(100 * plan.certificate.lower_bound_ns / plan.cost_ns, abs=1e-3)
    assert any(stage.overflow_ns for stage in plan.stages)
    assert f"this cannot be improved by more than {100 * plan.certificate.gap:.1f}%." in text
    assert "a &amp; b" in text


def test_batches_move_through_the_stages_in_one_colour_each(case, tmp_path):
    problem, plan = case
    run = simulate(problem, plan, 12)
    text, page = written(tmp_path / "r.html", problem, plan, [run])
    data = page.data(text)
    (entry,) = data["entries"]
    assert entry["lanes"][: len(plan.stages)] == [f"{stage.device}/0" for stage in plan.stages]
    (timeline,) = entry["timelines"]
    assert len(timeline["lane"]) == sum(len(event.lanes) for event in run.timeline.events)
    for name, group in zip(timeline["name"], timeline["group"], strict=True):
        assert int(data["names"][name].rpartition(" ")[2]) % 8 == group
    assert entry["groups"][0] == "batches 0, 8, …"


def test_a_run_stands_below_its_prediction(tmp_path):
    pipeline = executor(emulated=True)
    problem, plan = pipeline.problem, plan_pipeline(chain_problem(), len(pipeline.programs), "equal-split")
    _, run = pipeline.trace([np.zeros(1)] * 3)
    plan = msgspec.structs.replace(plan, certificate=None)
    text, page = written(tmp_path / "r.html", problem, plan, [simulate(problem, plan, 3), [run]])
    (entry,) = page.data(text)["entries"]
    assert [timeline["source"] for timeline in entry["timelines"]] == ["simulated", "emulated"]
    assert set(entry["timelines"][1]["name"]) == set(entry["timelines"][0]["name"])
    assert "Emulated period" in text
    assert "<u " not in text, "without a certificate there is no bound to show"
