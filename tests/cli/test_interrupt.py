"""What Ctrl-C leaves: the results until then, and the exit status 130."""

import pytest

from tvm_sched.cli import compare as compare_command
from tvm_sched.cli import interrupt
from tvm_sched.report.measurement import measure
from tvm_sched_bench.testing import random_problem

from .conftest import run_command


@pytest.fixture
def problem_file(tmp_path):
    random_problem(1, 12, devices=2, memory="generous").save(tmp_path / "p.json")
    return tmp_path / "p.json"


@pytest.fixture
def after(monkeypatch):
    """Let Ctrl-C seem to have been pressed while a method searched that answered it with its best schedule."""

    def act(module, number):
        asked = iter(range(number + 1))
        monkeypatch.setattr(module, "was_interrupted", lambda: next(asked) == number)

    return act


def test_compare_shows_what_is_there(problem_file, after):
    after(compare_command, 1)
    result = run_command("compare", problem_file, "--schedulers", "heft,pipelined,sortinghat")
    assert result.status == 130
    assert "interrupted; 2 of 3 schedules are there" in result.stderr
    assert "heft" in result.stdout
    assert "pipelined" in result.stdout
    assert "sortinghat" not in result.stdout


def test_compare_without_a_schedule_says_so(problem_file, monkeypatch):
    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(compare_command, "solve_here", interrupted)
    result = run_command("compare", problem_file, "--schedulers", "single")
    assert (result.status, result.stdout) == (130, "")
    assert "interrupted; nothing was saved" in result.stderr


def test_compare_shows_the_finished_methods_if_ctrl_c_ends_one_that_answers_nothing(problem_file, monkeypatch):
    solve = compare_command.solve_here

    def end_the_second(out, problem, workload, scheduler, options):
        if scheduler != "heft":
            out.interrupted()  # as the thread does that ends the process
            raise KeyboardInterrupt
        return solve(out, problem, workload, scheduler, options)

    monkeypatch.setattr(compare_command, "solve_here", end_the_second)
    result = run_command("compare", problem_file, "--schedulers", "heft,pipelined")
    assert result.stdout.count("heft") == 2  # before the process would end, and here
    assert "pipelined" not in result.stdout


def test_a_replay_ends_though_a_search_answered_the_signal(monkeypatch):
    monkeypatch.setattr(interrupt, "_asked", True)
    how = ("--requests", "poisson", "--offered", "240", "--count", "60")
    result = run_command("cluster", "replay", "rampa-base", *how, "--policy", "first-fit", "--policy", "best-fit")
    assert result.status == 130
    assert "Interrupted: the figures are of the time until then." in result.stdout
    assert "first-fit" in result.stdout
    assert "best-fit" not in result.stdout


class Counted:
    """A module of which each run takes a second longer than the one before."""

    emulated = True
    plan = None

    def __init__(self):
        self.runs = 0

    def configure(self, **options):
        pass

    def run_times(self):
        self.runs += 1

    def latency(self):
        return float(self.runs)

    def timeline(self):
        return {"plan": "p", "of": self.runs}

    def plans(self):
        return [{"name": "p"}]

    def plan_of_run(self, name):
        return {"name": name}

    def info(self):
        return {}


@pytest.mark.parametrize("place", [0, 2, 3, 5])
def test_runs_until_ctrl_c_are_summarised(place, monkeypatch):
    from tvm_sched.report import measurement

    monkeypatch.setattr(measurement, "planned_timeline", lambda plan, problem: None)
    monkeypatch.setattr(measurement, "measured_timeline", lambda fastest, problem: fastest)

    def press(what, done, total):
        if done == place:
            raise KeyboardInterrupt

    if place < 3:  # two warm up
        with pytest.raises(KeyboardInterrupt):
            measure(Counted(), [], 2, 10, press, times_only=True)
        return
    measured = measure(Counted(), [], 2, 10, press, times_only=True)
    assert (measured.statistics.repeat, measured.statistics.min) == (place - 2, 3.0)
    assert measured.timeline == {"plan": "p", "of": 3}


def test_a_sweep_without_a_row_writes_nothing(problem_file, tmp_path, monkeypatch):
    from tvm_sched import sweep

    monkeypatch.setattr(sweep, "run", lambda *arguments: ([], False))
    report = tmp_path / "sweep.html"
    result = run_command("sweep", problem_file, "--vary", "bandwidth=1,2", "--report", report)
    assert (result.status, result.stdout, report.exists()) == (130, "", False)
    assert "interrupted; nothing was saved" in result.stderr
