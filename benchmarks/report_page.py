"""The HTML report of 10,000 operators in Chromium: its size, when the first picture is there, how long zooming takes.

Needs Chromium with its driver (`apt-get install chromium chromium-driver`) and the package selenium.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from _common import Row, parser, report

DRAWN = "return performance.getEntriesByName('tvm_sched drawn').map((mark) => mark.startTime)"
ZOOM = """
const done = arguments[arguments.length - 1], start = performance.now();
const count = () => performance.getEntriesByName("tvm_sched drawn").length, before = count();
document.querySelector(".entry:not(.hidden) [data-zoom='" + arguments[0] + "']").click();
(function wait() { count() > before ? done(performance.now() - start) : setTimeout(wait, 1); })();
"""


def main() -> None:
    arguments = parser(__doc__ or "", models=False)
    arguments.add_argument("--operators", type=int, default=10_000, metavar="N")
    arguments.add_argument("--repeats", type=int, default=5, metavar="N", help="times that the page is opened")
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        _write(page, 1_000 if given.quick else given.operators)
        rows = list(_measure(page, Path(folder), given.repeats))
    report("The HTML report in a browser", rows, given.json, given.markdown)


def _write(page: Path, operators: int) -> None:
    """The report of two schedules on a server with four GPUs."""
    from tvm_sched.cost_model import roofline
    from tvm_sched.problem import Problem, load_topology
    from tvm_sched.report.html import Entry, write_report
    from tvm_sched.schedulers import solve
    from tvm_sched.testing import random_problem

    graph, topology = random_problem(3, operators, devices=2, memory="generous").graph, load_topology("v100-server")
    problem = Problem(graph, topology, roofline(graph, topology))
    title = f"{operators:,} operators"
    write_report(page, problem, [Entry(name, solve(problem, method=name)) for name in ("single", "heft")], title=title)


def _measure(page: Path, folder: Path, repeats: int) -> Iterator[Row]:
    driver = _browser(folder)
    try:
        first, zooms = [], []
        for _ in range(repeats):
            driver.get(page.as_uri())
            first.append(min(driver.execute_script(DRAWN)) / 1e3)
            zooms += [driver.execute_async_script(ZOOM, factor) for factor in ("0.5", "0.5", "0.5", "2", "2")]
        case = driver.title
    finally:
        driver.quit()
    yield Row(case, "report", page.stat().st_size / 1e6, "size, MB")
    yield Row(case, "report", min(first), "first picture, least, s")
    yield Row(case, "report", statistics.median(first), "first picture, median, s")
    yield Row(case, "report", statistics.median(zooms), "zoom, median, ms")
    yield Row(case, "report", max(zooms), "zoom, largest, ms")


def _browser(folder: Path) -> Any:
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    for switch in ("headless=new", "no-sandbox", "disable-dev-shm-usage", "disable-gpu", "window-size=1400,1000"):
        options.add_argument(f"--{switch}")
    options.add_argument(f"--user-data-dir={folder / 'profile'}")
    return webdriver.Chrome(options, webdriver.ChromeService("/usr/bin/chromedriver"))


if __name__ == "__main__":
    main()
