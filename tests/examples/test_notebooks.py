"""The notebooks run from top to bottom, as scripts, and what they show is HTML."""

import json
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest

from docs import command_server
from tvm_sched.schedulers import solve
from tvm_sched_bench.testing import random_problem
from tvm_sched_runtime.schedule import Timeline
from tvm_sched_runtime.schedule.notebook_views import MOST_EVENTS
from tvm_sched_runtime.schedule.simulator import simulate

NOTEBOOKS = sorted((Path(__file__).parents[2] / "examples" / "notebooks").glob("*.ipynb"))
SHOWN = """
for shown in [value for value in list(globals().values()) if hasattr(type(value), "_repr_html_")]:
    assert shown._repr_html_().startswith("<")
"""


def cells(notebook):
    return [
        "".join(cell["source"]) for cell in json.loads(notebook.read_text())["cells"] if cell["cell_type"] == "code"
    ]


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    pytest.importorskip("onnx")
    with command_server.started() as server:
        client = tmp_path_factory.mktemp("tools") / "python"
        command_server.write_client(client, server)
        yield client


@pytest.mark.sampled(3)
@pytest.mark.slow
@pytest.mark.xdist_group("pages")
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(notebook, python, tmp_path):
    code = "\n".join([*cells(notebook), SHOWN])
    ran = subprocess.run([python, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr[-3000:]


def test_notebooks_are_kept_without_outputs():
    assert [path.stem for path in NOTEBOOKS] == ["deploy", "plan_a_server", "write_a_scheduler"]
    for path in NOTEBOOKS:
        document = json.loads(path.read_text())
        assert document["nbformat"] == 4
        assert all(not cell.get("outputs") for cell in document["cells"])


def test_a_timeline_is_drawn_with_each_event_in_its_lanes():
    problem = random_problem(3, operators=12, devices=2, memory="generous")
    schedule = solve(problem, method="heft")
    timeline = simulate(problem, schedule)
    drawing = ElementTree.fromstring(timeline._repr_html_())
    titles = [each.text for each in drawing.iter("{http://www.w3.org/2000/svg}title")]
    assert len(titles) == sum(len(event.lanes) for event in timeline.events)
    table = ElementTree.fromstring(schedule._repr_html_())
    rows = {row.find("th").text: row.find("td").text for row in table.iter("tr")}
    assert rows["latency"] == f"{schedule.certificate.latency * 1e3:,.3f} ms"
    assert rows["transfers"] == f"{len(schedule.transfers):,}"


def test_of_very_many_events_the_longest_are_drawn():
    problem = random_problem(3, operators=12, devices=2, memory="generous")
    one = simulate(problem, solve(problem, method="heft"))
    events = tuple(one.events[n % len(one.events)] for n in range(MOST_EVENTS + 10))
    many = Timeline(one.source, one.problem, events, one.latency_ns)
    shown = many._repr_html_()
    assert shown.count("<title>") >= MOST_EVENTS
    assert f"the longest {MOST_EVENTS:,} of {MOST_EVENTS + 10:,} events" in shown
