"""What `make test` makes of failed tests: noise, faults, and tests that hang."""

import subprocess
import sys
from pathlib import Path

import pytest

import run_tests

TESTS = Path(run_tests.__file__).parent
CASES = """
import pathlib, time, pytest

HERE = pathlib.Path(__file__).parent

@pytest.mark.parametrize("name", ["a@b", "c"])
def test_noise(name):
    seen = HERE / f"seen-{name}"
    first = not seen.exists()
    seen.touch()
    assert not first, "no time left"

def test_fault():
    assert 1 == 2

def test_right():
    pass

@pytest.mark.skip(reason="not here")
def test_skipped():
    pass

def test_hangs():
    time.sleep(60)
"""


def run_folder(folder, *arguments, known=()):
    """Run `tests/run_tests.py` over `CASES` in a folder; return status, output and the tests that it noted."""
    (folder / "test_it.py").write_text(CASES)
    noisy = folder / "noisy.txt"
    noisy.write_text("# noted before\n" + "".join(f"2026-01-01 {name}\n" for name in known))
    driver = (
        f"import sys, pathlib; sys.path.insert(0, {str(TESTS)!r}); import run_tests; "
        f"run_tests.ROOT = pathlib.Path({str(folder)!r}); run_tests.NOISY = run_tests.ROOT / 'noisy.txt';"
        f"sys.exit(run_tests.main({[*arguments]!r}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", driver], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    return done.returncode, done.stdout, [line.split()[1] for line in noisy.read_text().splitlines()[1:]]


def test_what_passes_alone_is_listed_and_counts_as_passed(tmp_path):
    status, output, noted = run_folder(tmp_path, "-n", "1", "-k", "noise or right or skipped")
    assert status == 0, output
    assert noted == ["test_it.py::test_noise[a@b]", "test_it.py::test_noise[c]"]
    assert "passed only alone: 2" in output
    assert "test_it.py::test_noise[c]: AssertionError: no time left" in output
    assert output.splitlines()[-1] == "3 passed, 0 failed, 1 skipped"


@pytest.mark.thorough
def test_what_fails_alone_is_red(tmp_path):
    status, output, noted = run_folder(tmp_path, "-k", "fault or noise or right")
    assert status == 1
    assert output.splitlines()[-1] == "3 passed, 1 failed, 0 skipped"
    assert "test_it.py::test_fault: assert 1 == 2" in output
    assert len(noted) == 2


@pytest.mark.thorough
def test_a_test_that_was_noted_before_gets_no_second_run(tmp_path):
    name = "test_it.py::test_noise[c]"
    status, output, noted = run_folder(tmp_path, "-k", "noise", known=[name])
    assert status == 1
    assert f"{name}: AssertionError: no time left (in noisy.txt: repair it)" in output
    assert noted == [name, "test_it.py::test_noise[a@b]"]


def test_many_failures_are_not_noise(tmp_path, monkeypatch, capsys):
    errors = {f"test_a.py::test[{n}]": "error" for n in range(run_tests.MOST + 1)}
    monkeypatch.setattr(run_tests, "passes_alone", lambda name: pytest.fail(name))
    assert run_tests.settle(errors) == ({}, errors)


@pytest.mark.thorough
@pytest.mark.slow
def test_a_test_that_hangs_shows_its_stack_and_is_red(tmp_path):
    limit = ("-o", "faulthandler_timeout=2", "-o", "faulthandler_exit_on_timeout=true")
    (tmp_path / "pytest.ini").write_text("[pytest]\nfaulthandler_timeout = 2\nfaulthandler_exit_on_timeout = true\n")
    status, output, noted = run_folder(tmp_path, "-n", "1", *limit, "-k", "hangs or right")
    assert status == 1
    assert noted == []
    assert "Timeout" in output
    assert "in test_hangs" in output
    assert output.splitlines()[-1] == "1 passed, 1 failed, 0 skipped"


def test_the_noted_tests_are_there():
    for name in run_tests.noisy():
        path, _, test = name.partition("::")
        assert test.split("[")[0] in (TESTS.parent / path).read_text(), (
            f"{name} is gone: remove it from {run_tests.NOISY.name}"
        )
