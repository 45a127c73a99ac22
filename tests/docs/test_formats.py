"""The examples in docs/formats are real documents that belong together."""

import re
from pathlib import Path

import msgspec
import pytest

from tvm_sched.bounds import lower_bound
from tvm_sched.bounds.schedule_evidence import evidence
from tvm_sched.cost_model import costs
from tvm_sched_runtime.pipeline import PipelinePlan, load_manifest
from tvm_sched_runtime.pipeline.pipeline_artifact import MANIFEST
from tvm_sched_runtime.problem import Problem, load_topology, parse_topology, preset_names, read_topology
from tvm_sched_runtime.problem.quantity import UNITS
from tvm_sched_runtime.problem.topology_file import (
    BusesEntry,
    DevicesEntry,
    LinksEntry,
    StorageEntry,
    SwitchEntry,
    TopologyBody,
)
from tvm_sched_runtime.schedule import Certificate, Event, Placement, Schedule, Timeline, Transfer
from tvm_sched_runtime.schedule.simulator import simulate
from tvm_sched_runtime.schedule.verifier import verify

FORMATS = Path(__file__).parents[2] / "docs" / "formats"


def page(name):
    return (FORMATS / f"{name}.md").read_text()


def example(name, language="json"):
    return re.search(rf"```{language}\n(.*?)```", page(name), re.DOTALL).group(1)


def test_topology_and_problem():
    topology = parse_topology(example("topology", "toml"))
    problem = Problem.from_json(example("problem"))
    assert problem.topology == topology
    assert costs(problem.graph, topology) == problem.costs
    assert problem.to_json().decode() == example("problem")


def test_pipeline():
    assert PipelinePlan.from_json(example("pipeline")).to_json().decode() == example("pipeline")


def test_pipeline_artifact(tmp_path):
    (tmp_path / MANIFEST).write_text(example("pipeline_artifact"))
    assert [stage.device for stage in load_manifest(tmp_path).stages] == ["cpu0", "cpu1"]


def test_schedule_and_timeline():
    problem, schedule = Problem.from_json(example("problem")), Schedule.from_json(example("schedule"))
    verify(problem, schedule)
    timeline = simulate(problem, schedule)
    assert schedule.problem == problem.digest
    assert Timeline.from_json(example("timeline")) == timeline
    assert schedule.certificate.latency_ns == timeline.latency_ns
    assert schedule.certificate.lower_bound_ns <= lower_bound(problem).ns
    assert schedule.to_json().decode() == example("schedule")
    assert timeline.to_json().decode() == example("timeline")


def test_evidence():
    found = evidence(Problem.from_json(example("problem")))
    assert found.to_json().decode() == example("evidence")
    assert all(f"`{field}`" in page("evidence") for field in (*msgspec.json.decode(found.to_json()), "relaxed"))
    assert all(f"`{rule}`" in page("evidence") for rule in ("path", "bus", "work", "turns", "placement"))


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("topology", [TopologyBody, DevicesEntry, BusesEntry, LinksEntry, StorageEntry, SwitchEntry]),
        ("schedule", [Schedule, Placement, Transfer, Certificate]),
        ("timeline", [Timeline, Event]),
    ],
)
def test_every_field_has_its_line(name, kinds):
    text = page(name)
    for kind in kinds:
        for field in msgspec.structs.fields(kind):
            assert re.search(rf"`\.?{field.name}(\[\])?`|`\[\[{field.name}\]\]`", text), (name, field.name)


def test_every_unit_and_preset_is_listed():
    text = page("topology")
    assert all(f"`{preset}`" in text for preset in [*preset_names(), "cpuN"])
    for kind in ("bytes", "time"):
        assert all(f"`{unit}`" in text for unit in UNITS[kind])
    assert all(f"`{unit}`" in text for unit in UNITS["rate"] if unit.endswith("/s"))


@pytest.mark.parametrize("name", preset_names())
def test_presets_are_files_that_can_be_copied(name, tmp_path):
    import tvm_sched_runtime.problem

    original = Path(tvm_sched_runtime.problem.__file__).parent / "presets" / f"{name}.toml"
    copy = tmp_path / "mine.toml"
    copy.write_bytes(original.read_bytes())
    assert read_topology(copy) == load_topology(name)
