"""Run pytest, then each failed test once more, alone: ``python tests/run_tests.py [arguments of pytest]``.

On a busy machine one test in thousands fails for want of time or memory. A test that is green when it runs alone counts as
passed, and is listed under "passed only alone" with its first error. It is also added to `NOISY`: a test of that list gets
no second run, but is to be repaired, and its line removed with the repair. A test that fails alone, more than `MOST`
failures, an error of collection and an interrupt are red, as in pytest.
"""

from __future__ import annotations

import datetime
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
NOISY = Path(__file__).with_name("passed_only_alone.txt")
"""Tests that failed beside others and were green alone, one a line: the date, then the test."""
LONGEST = 1800
"""Seconds after which a test hangs where thorough ones run, too; elsewhere pyproject.toml says it."""
MOST = 20
"""Failed tests up to which each runs once more; where more fail, it is not noise."""


class Failures:
    """Plugin of the process that reports: the first error of each failed test, and which tests passed and were skipped."""

    def __init__(self) -> None:
        self.errors: dict[str, str] = {}
        self.passed: set[str] = set()
        self.skipped: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note how a test ended: a failure in its setup, call or teardown, and else its call."""
        name = without_group(report.nodeid)
        if report.failed:
            self.errors.setdefault(name, first_error(report))
        elif report.skipped:
            self.skipped.add(name)
        elif report.when == "call":
            self.passed.add(name)


def without_group(name: str) -> str:
    """Return a test's name without the group that xdist appends (``test_a.py::test_b[1]@group``)."""
    head, at, group = name.rpartition("@")
    return head if at and "]" not in group and "/" not in group else name


def first_error(report: pytest.TestReport) -> str:
    """Return the line that says why a test failed."""
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash else str(report.longrepr or "").strip()
    return (text.splitlines() or ["no error"])[0][:200]


def noisy() -> set[str]:
    """Return the tests that get no second run."""
    lines = NOISY.read_text().splitlines() if NOISY.exists() else []
    return {line.split(maxsplit=1)[1] for line in lines if line.strip() and not line.startswith("#")}


def passes_alone(name: str) -> bool:
    """Run one test in a process of its own."""
    print(f"\n== once more, alone: {name}", flush=True)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", name]
    return subprocess.run(command, cwd=ROOT).returncode == 0


def settle(errors: dict[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Run failed tests once more; return those that passed only alone, and those that stay red, with their first errors."""
    if len(errors) > MOST:
        print(f"\n{len(errors)} tests failed, more than {MOST}: none runs once more")
        return {}, errors
    known = noisy()
    alone = {name: error for name, error in errors.items() if name not in known and passes_alone(name)}
    return alone, {name: error for name, error in errors.items() if name not in alone}


def main(arguments: list[str]) -> int:
    """Run the tests; return pytest's status, 0 if all that failed passed alone."""
    failures = Failures()
    sys.path.insert(
        0, str(ROOT)
    )  # as `python -m pytest` does; processes that tests start import their modules from there
    if os.environ.get("TVM_SCHED_THOROUGH", "0") != "0":
        arguments = ["-o", f"faulthandler_timeout={LONGEST}", *arguments]
    status = int(pytest.main(arguments, plugins=[failures]))
    if status != pytest.ExitCode.TESTS_FAILED or not failures.errors:
        for name, error in failures.errors.items():  # pytest lists none after an error of its own, or an interrupt
            print(f"failed: {name}: {error}")
        return status
    known = noisy()
    alone, red = settle(failures.errors)
    if alone:
        print(f"\n== passed only alone: {len(alone)} (added to {NOISY.relative_to(ROOT)}; repair them)")
        with NOISY.open("a") as file:
            for name, error in alone.items():
                print(f"{name}: {error}")
                file.write(f"{datetime.date.today()} {name}\n")
    if red:
        print(f"\n== failed: {len(red)}")
        for name, error in red.items():
            again = f" (in {NOISY.name}: repair it)" if name in known else ""
            print(f"{name}: {error}{again}")
    passed = failures.passed - failures.errors.keys() | alone.keys()
    print(f"\n{len(passed)} passed, {len(red)} failed, {len(failures.skipped)} skipped")
    return int(pytest.ExitCode.TESTS_FAILED if red else pytest.ExitCode.OK)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
