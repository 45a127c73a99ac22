"""The pages in Chromium: they draw, zoom, switch and print without an error, with mouse and keyboard, in both schemes."""

import base64
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest
from chain_cases import chain_problem

from report import browser
from tvm_sched import sweep
from tvm_sched.cost_model.roofline_model import roofline
from tvm_sched.pipeline import plan_pipeline
from tvm_sched.problem_sources import SourceOptions
from tvm_sched.report.html import Entry, write_report
from tvm_sched.report.pipeline_report import write_pipeline_report
from tvm_sched.report.sweep_page import write_sweep_page
from tvm_sched.schedulers import solve
from tvm_sched_bench.testing import random_graph, random_problem
from tvm_sched_cluster import ClusterState, ServiceRequest, fail, load_cluster, load_services, place
from tvm_sched_cluster.cluster_report import write_cluster_report
from tvm_sched_cluster.pods.pod_replay import replay_pods
from tvm_sched_cluster.pods.pod_trace import Node, Pod
from tvm_sched_cluster.replay.replay_report import write_pod_report, write_replay_report
from tvm_sched_cluster.replay.replay_results import PodPolicyRuns, PodReplays, PolicyRuns, Replays
from tvm_sched_cluster.replay.simulation import ReplayOptions, replay
from tvm_sched_cluster.replay.traces import poisson_requests
from tvm_sched_runtime.pipeline.pipeline_simulator import simulate as pipeline_simulate
from tvm_sched_runtime.problem import Problem, load_topology
from tvm_sched_runtime.schedule.simulator import simulate

pytestmark = pytest.mark.xdist_group("browser")
PAGES = ["schedule.html", "pipeline.html", "cluster.html", "replay.html", "pods.html"]
RANGE = "return document.querySelector('.entry:not(.hidden) .gantt').layout.xaxis.range"
TRACES = "return document.querySelector('.entry:not(.hidden) .gantt').data"


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    made = browser.start(tmp_path_factory.mktemp("chromium"))
    yield made
    made.quit()


@pytest.fixture(scope="module")
def pages(tmp_path_factory, problem, single):
    """A page of each kind."""
    folder = tmp_path_factory.mktemp("pages")
    heft = solve(problem, method="heft")
    measured = msgspec.structs.replace(simulate(problem, heft), source="measured")
    entries = [Entry("one device", single), Entry("heft", heft, [simulate(problem, heft), measured])]
    write_report(folder / "schedule.html", problem, entries)
    chain = chain_problem(memory=3500)
    plan = plan_pipeline(chain, 2, "tarnawski-dp")
    write_pipeline_report(folder / "pipeline.html", chain, plan, pipeline_simulate(chain, plan, 12))
    state = ClusterState(load_cluster("rampa-base"), load_services())
    for name in ("a", "b", "c"):
        place(state, ServiceRequest(name, "service5"), "first-fit")
    fail(state, state.running["b"].gpus[0], "first-fit")
    write_cluster_report(folder / "cluster.html", state)
    write_replays(folder)
    return folder


def write_replays(folder):
    """Replays of services, with bounds, and of pods."""
    cluster, known = load_cluster("rampa-base"), [each for each in load_services() if each.name == "service5"]
    asked = poisson_requests({"service5": 1.0}, 40, 10, 86400, 1)
    made = [
        PolicyRuns.of(policy, [replay(ClusterState(cluster, known), asked, policy, settings=ReplayOptions(windows=4))])
        for policy in ("first-fit", "best-fit")
    ]
    about = {"cluster": cluster.name, "gpus": len(cluster.gpus), "requests": "poisson"}
    write_replay_report(folder / "replay.html", Replays(**about, policies=made))
    nodes, pods = [Node(8000, 64, 2, "A")] * 5, [Pod(1000, 1, 1, 600, ()), Pod(1000, 1, 1, 300, ())] * 9
    runs = [PodPolicyRuns.of(policy, [replay_pods(nodes, pods, policy, pods)]) for policy in ("fgd", "best-fit")]
    write_pod_report(folder / "pods.html", PodReplays(nodes=5, gpus=10, requests="pods.csv", policies=runs))


@pytest.fixture
def open_page(driver, pages):
    """Opens a page; afterwards nothing may stand in the console."""

    def opened(name):
        driver.get((pages / name).as_uri())
        return driver

    browser_errors(driver)
    browser.emulate(driver)
    yield opened
    assert browser_errors(driver) == []


def browser_errors(driver):
    return [entry["message"] for entry in driver.get_log("browser")]


def find(driver, selector):
    from selenium.webdriver.common.by import By

    return driver.find_elements(By.CSS_SELECTOR, selector)


def find_in(element, selector):
    from selenium.webdriver.common.by import By

    return element.find_elements(By.CSS_SELECTOR, selector)


def wait(driver, condition):
    """Until it holds: the chart follows its window a moment later."""
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(driver, 20).until(lambda _: condition())


def press(element, *keys):
    element.send_keys(*keys)


def shown(driver):
    (entry,) = find(driver, ".entry:not(.hidden)")
    return entry.get_attribute("id")


def test_schedules_are_switched_with_mouse_and_keyboard(open_page):
    from selenium.webdriver.common.keys import Keys

    driver = open_page("schedule.html")
    assert shown(driver) == "entry-1"
    first, second = find(driver, "[role=tab]")
    assert second.get_attribute("aria-selected") == "true"
    first.click()
    assert shown(driver) == "entry-0"
    assert len(find(driver, "#entry-0 .gantt .bars .point")) > 30
    press(first, Keys.ARROW_RIGHT)
    assert shown(driver) == "entry-1"
    assert driver.switch_to.active_element == second
    find(driver, "a[data-entry='0']")[0].click()
    assert shown(driver) == "entry-0"


def test_the_chart_is_zoomed_and_moved(open_page):
    from selenium.webdriver import ActionChains
    from selenium.webdriver.common.keys import Keys

    driver = open_page("schedule.html")
    chart = find(driver, "#entry-1 .gantt")[0]
    start, end = driver.execute_script(RANGE)
    find(driver, "#entry-1 [data-zoom='0.5']")[0].click()
    assert driver.execute_script(RANGE) == pytest.approx([end / 4, end * 3 / 4])
    press(chart, Keys.ARROW_RIGHT)
    assert driver.execute_script(RANGE) == pytest.approx([end * 3 / 8, end * 7 / 8])
    press(chart, "0")
    assert driver.execute_script(RANGE) == pytest.approx([start, end])
    press(chart, "+")
    assert driver.execute_script(RANGE) == pytest.approx([end / 4, end * 3 / 4])
    find(driver, "#entry-1 [data-zoom='0']")[0].click()
    plot = find(driver, "#entry-1 .gantt .nsewdrag")[0]
    ActionChains(driver).move_to_element(plot).click_and_hold().move_by_offset(100, 0).release().perform()
    narrow = driver.execute_script(RANGE)
    assert narrow[1] - narrow[0] < end / 5
    ActionChains(driver).double_click(plot).perform()
    assert driver.execute_script(RANGE) == pytest.approx([start, end])


def test_the_table_lists_what_the_chart_shows(open_page):
    driver = open_page("schedule.html")
    find(driver, "[role=tab]")[0].click()
    find(driver, "#entry-0 .events summary")[0].click()

    def rows():
        return len(find(driver, "#entry-0 .events tbody tr"))

    wait(driver, rows)  # the browser tells of an open table a little later
    all_rows = rows()
    bars = driver.execute_script(TRACES)
    assert all_rows == sum(len(trace["x"]) for trace in bars if trace["type"] == "bar")
    find(driver, "#entry-0 [data-zoom='0.5']")[0].click()
    wait(driver, lambda: 0 < rows() < all_rows)


def test_kinds_differ_by_more_than_their_colour(open_page):
    driver = open_page("schedule.html")
    find(driver, "#entry-1 .patterns")[0].click()
    bars = [trace for trace in driver.execute_script(TRACES) if trace["type"] == "bar"]
    patterns = [trace["marker"]["pattern"]["shape"] for trace in bars]
    assert len(set(patterns)) == len(bars) > 2
    lines = [trace["line"]["dash"] for trace in driver.execute_script(TRACES) if trace["type"] == "scatter"]
    assert len(set(lines)) == len(lines) > 1
    for trace in bars:
        assert contrast(trace["insidetextfont"]["color"], trace["marker"]["color"]) >= 4.5


def contrast(one, other):
    def luminance(colour):
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("page", PAGES)
@pytest.mark.sampled(5)
def test_texts_can_be_read(open_page, page, scheme):
    driver = open_page(page)
    browser.emulate(driver, prefers_color_scheme=scheme)
    for summary in find(driver, "summary"):
        driver.execute_script("arguments[0].parentElement.open = true", summary)
    wait(driver, lambda: browser.too_faint(driver) == [])  # charts are drawn again a little after the scheme changed


def assert_fits_narrow_windows(driver):
    size = driver.get_window_size()
    try:
        driver.set_window_size(620, 900)
        wait(driver, lambda: not browser.wider_than_the_window(driver))
    finally:
        driver.set_window_size(size["width"], size["height"])


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.sampled(3)
def test_it_fits_narrow_windows(open_page, page):
    assert_fits_narrow_windows(open_page(page))


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.sampled(5)
def test_it_prints(open_page, page):
    driver = open_page(page)
    pdf = base64.b64decode(driver.print_page())
    assert pdf.startswith(b"%PDF")
    assert pdf.count(b"/Type /Page\n") >= 1


def test_what_is_printed_fits_the_paper(open_page):
    driver = open_page("schedule.html")
    browser.emulate(driver, media="print")
    driver.execute_script("window.dispatchEvent(new Event('beforeprint'))")
    assert find(driver, "#entry-1 .gantt .main-svg")[0].size["width"] <= 960
    assert not any(element.is_displayed() for element in find(driver, ".tools, .tabs, .events"))
    assert browser.too_faint(driver) == []
    driver.execute_script("window.dispatchEvent(new Event('afterprint'))")
    browser.emulate(driver)
    wait(driver, lambda: find(driver, "#entry-1 .gantt .main-svg")[0].size["width"] > 1000)


def test_everything_is_reached_with_the_keyboard(open_page):
    driver = open_page("schedule.html")
    reached = browser.reached_with_tab(driver, 20)
    names = [each["name"] for each in reached]
    for name in ("one device", "heft", "Zoom in", "Zoom out", "Fit", "Timeline of heft", "Events in view as a table"):
        assert name in names
    assert any("colours" in each["classes"] for each in reached)
    assert any("patterns" in each["classes"] for each in reached)
    assert [each for each in reached if each["outline"] == "none" and each["tag"] != "BODY"] == []


def test_batches_of_a_pipeline(open_page):
    driver = open_page("pipeline.html")
    assert len(find(driver, ".gantt .bars .point")) >= 24
    before = driver.execute_script(RANGE)
    find(driver, "[data-zoom='0.5']")[0].click()
    assert driver.execute_script(RANGE) != before


def test_a_request_shows_its_gpus(open_page):
    from selenium.webdriver.common.keys import Keys

    driver = open_page("cluster.html")
    button = find(driver, "table [data-request=a]")[0]
    button.click()
    held = len(find(driver, ".gpu[data-request=a]"))
    assert held >= 1
    assert len(find(driver, ".gpu.on")) == held
    assert find(driver, ".chosen")[0].text.startswith(f"a holds {held} GPU")
    press(button, Keys.ESCAPE)
    assert find(driver, ".gpu.on") == []
    assert len(find(driver, ".gpu.failed")) == 1


def test_a_replay_draws_a_line_for_each_policy_and_a_dashed_bound(open_page):
    driver = open_page("replay.html")
    charts = find(driver, "section svg[role=img]")
    assert len(charts) == 5
    lines = [len(find_in(chart, "polyline")) for chart in charts]
    assert lines == [2, 3, 2, 2, 2]
    assert [bool(line.get_attribute("stroke-dasharray")) for line in find_in(charts[1], "polyline")] == [
        False,
        False,
        True,
    ]
    assert all(chart.size["width"] > 500 and chart.size["height"] > 100 for chart in charts)
    assert [row.text.split()[0] for row in find(driver, "section:first-of-type tbody tr")] == ["first-fit", "best-fit"]
    pods = open_page("pods.html")
    assert len(find(pods, "section svg[role=img] polyline")) == 2


@pytest.mark.thorough
def test_a_sweep_shows_the_schedule_of_each_variant(driver, tmp_path):
    from selenium.webdriver.common.keys import Keys

    topology = load_topology("v100-server")
    graph = random_graph(5, operators=12)
    Problem(graph, topology, roofline(graph, topology)).save(tmp_path / "p.json")
    keys = sweep.parse_vary(["gpus=1,2,4", "bandwidth=0.5,1,2"])
    grid = sweep.Grid(tmp_path / "p.json", None, keys, SourceOptions(costs="roofline"), {"": 1.0})
    with ThreadPoolExecutor(1) as executor:
        found, _ = sweep.run(grid, "heft", {}, executor, lambda *_: None)
    made = sweep.summarise(grid, found, "heft", {}, 1e-3)
    write_sweep_page(tmp_path / "sweep.html", made, found)
    browser_errors(driver)
    driver.get((tmp_path / "sweep.html").as_uri())
    gpus, bandwidth = find(driver, ".sliders input")
    bars = "return document.querySelector('.gantt').data.map((trace) => [trace.name, trace.x.length, Math.max(...trace.x)])"
    before = driver.execute_script(bars)
    press(bandwidth, Keys.ARROW_RIGHT)
    press(gpus, Keys.ARROW_RIGHT)
    row = next(n for n, each in enumerate(made.rows) if each.values == {"gpus": 2, "bandwidth": 1.0})
    assert find(driver, ".variants tr.on")[0].get_attribute("data-row") == str(row)
    after = driver.execute_script(bars)
    assert after != before
    shown_kernels = next(count for name, count, _ in after if name == "kernels")
    assert shown_kernels == sum(event.kind == "kernel" for event in found[row].timeline.events)
    find(driver, ".variants tbody tr")[0].click()
    assert driver.execute_script(bars) == before
    target = find(driver, ".target")[0]
    for latency in (0.9 * min(each.lower_bound for each in made.rows), 1.1 * max(each.latency for each in made.rows)):
        target.clear()
        target.send_keys(f"{latency * 1e3}")
        reach = sum(each.latency <= latency for each in made.rows)
        assert f"{reach} of 9 reach it" in find(driver, ".live")[0].text
    for scheme in ("light", "dark"):
        browser.emulate(driver, prefers_color_scheme=scheme)
        wait(driver, lambda: browser.too_faint(driver) == [])
    browser.emulate(driver)
    assert_fits_narrow_windows(driver)
    assert browser_errors(driver) == []


def elements(driver):
    return driver.execute_script("return document.querySelectorAll('.entry:not(.hidden) .gantt *').length")


def hover_texts(driver):
    """Of the events, whether drawn as bars or, where they are short, as a path a kind."""
    return [text for trace in driver.execute_script(TRACES) for text in trace.get("hovertext", ()) if text]


SHORT_EVENT = """
const place = document.querySelector("#entry-0 .gantt"), { xaxis, yaxis } = place._fullLayout;
const [from, to] = xaxis.range, own = place.querySelector(".nsewdrag").getBoundingClientRect();
for (const trace of place.data.filter((each) => each.fill === "toself")) {
  const at = trace.x.findIndex((x, i) => trace.hovertext[i] && from < x && x < to);
  if (at >= 0) return [xaxis.d2p(trace.x[at]) - own.width / 2, yaxis.d2p(trace.y[at]) - own.height / 2];
}
"""


@pytest.mark.thorough
def test_ten_thousand_operators(driver, tmp_path):
    from selenium.webdriver import ActionChains

    topology = load_topology("v100-server")
    graph = random_problem(3, operators=10_000, devices=2, memory="generous").graph
    problem = Problem(graph, topology, roofline(graph, topology))
    schedule = solve(problem, method="single")
    file = tmp_path / "large.html"
    write_report(file, problem, [Entry("a", schedule), Entry("b", schedule)])
    assert file.stat().st_size < 10e6
    browser_errors(driver)
    driver.get(file.as_uri())
    assert elements(driver) < 2000, "an element an event would make zooming slow"
    assert any("more here: zoom in" in text for text in hover_texts(driver))
    for _ in range(4):
        find(driver, "#entry-0 [data-zoom='0.5']")[0].click()
    at = driver.execute_script(SHORT_EVENT)
    plot = find(driver, "#entry-0 .gantt .nsewdrag")[0]
    ActionChains(driver).move_to_element_with_offset(plot, *map(int, at)).perform()
    wait(driver, lambda: find(driver, "#entry-0 .gantt .hoverlayer .hovertext"))
    for _ in range(4):
        find(driver, "#entry-0 [data-zoom='0.5']")[0].click()
    near = hover_texts(driver)
    assert near
    assert not any("zoom in" in text for text in near), "every event is drawn for itself"
    assert elements(driver) < 2000
    assert browser_errors(driver) == []
