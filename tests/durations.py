"""Which tests are quick enough for ``make test-fast``, by the CPU seconds that they took, and how these are measured.

`LONG` lists each test function whose first case took more than `QUICK` seconds with the fixtures it needs, shared ones
too; a test that is not there has not been measured, or is quick. ``pytest --write-durations`` writes it anew for the
tests that run.
"""

import os
import re
import time
from pathlib import Path

import pytest

QUICK = 0.3
"""CPU seconds, of this process and those that it has waited for, within which a test is quick."""
LONG = Path(__file__).with_name("durations.txt")


def function(item_or_id):
    """A test without its parameters, and without the group that xdist puts behind it."""
    return re.split(r"[\[@]", getattr(item_or_id, "nodeid", item_or_id))[0]


def first_cases(items):
    """One case of each test function, the first of those collected."""
    return list({function(item): item for item in reversed(items)}.values())[::-1]


def read_long():
    """CPU seconds of the tests that are listed."""
    return {name: float(seconds) for seconds, name in map(str.split, LONG.read_text().splitlines())}


def quick(items):
    """One case of each test that is quick and not marked slow; where a folder has none, its quickest."""
    known, chosen, left = read_long(), [], {}
    for item in first_cases(items):
        seconds = known.get(function(item), 0.0)
        if seconds == 0.0 and not item.get_closest_marker("slow"):
            chosen.append(item)
        else:
            left.setdefault(item.path.parent, []).append((seconds or QUICK, item.nodeid, item))
    there = {item.path.parent for item in chosen}
    return [*chosen, *(min(rest)[2] for folder, rest in left.items() if folder not in there)]


def is_there(name):
    """Whether a test function still exists."""
    path, _, test = name.partition("::")
    file = LONG.parents[1] / path
    return file.is_file() and re.search(rf"^\s*def {test}\(", file.read_text(), re.MULTILINE) is not None


class Meter:
    """Plugin that measures the first case of each test, and writes `LONG` in the process that reports."""

    def __init__(self):
        self.shared = {}  # seconds of fixtures that several tests share, by their definition
        self.spent_on_shared = 0.0
        self.measured = {}
        self.first = set()

    @staticmethod
    def now():
        times = os.times()
        return time.process_time() + times.children_user + times.children_system

    def pytest_collection_finish(self, session):
        self.first = {item.nodeid for item in first_cases(session.items)}

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef):
        begin, clock = self.now(), time.monotonic()
        result = yield
        if fixturedef.scope != "function":
            self.shared[fixturedef] = time.monotonic() - clock  # what is started for several tests is not waited for
            self.spent_on_shared += self.now() - begin
        return result

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item):
        item.stash[self] = self.now() - self.spent_on_shared
        return (yield)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_makereport(self, item, call):
        if call.when == "teardown" and item.nodeid in self.first:
            definitions = [each[-1] for each in item._fixtureinfo.name2fixturedefs.values()]
            own = self.now() - self.spent_on_shared - item.stash[self]
            item.user_properties.append(("cpu_seconds", own + sum(self.shared.get(each, 0) for each in definitions)))

    def pytest_runtest_logreport(self, report):
        if report.when == "teardown":
            self.measured.update(
                (function(report.nodeid), s) for key, s in report.user_properties if key == "cpu_seconds"
            )

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session):
        if hasattr(session.config, "workerinput") or not self.measured:
            return
        kept = {name: seconds for name, seconds in read_long().items() if name not in self.measured}
        long = {
            name: seconds for name, seconds in {**kept, **self.measured}.items() if seconds > QUICK and is_there(name)
        }
        LONG.write_text("".join(f"{seconds:.1f} {name}\n" for name, seconds in sorted(long.items())))
