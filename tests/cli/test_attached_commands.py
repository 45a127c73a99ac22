"""Commands that other distributions bring: there where these are installed, and a message where they are not."""

import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest
import typer

from tvm_sched import registry
from tvm_sched.cli.attached_commands import COMMAND_SETS
from tvm_sched.cli.registration import command
from tvm_sched.worker_pool import EXECUTORS


@pytest.fixture
def installed(monkeypatch):
    """Make only these entry points be installed, by group."""

    def make(**points):
        def entry_points(group):
            return [
                EntryPoint(name, f"{__name__}:{value}", group) for name, value in points.get(group[10:], {}).items()
            ]

        monkeypatch.setattr(registry, "entry_points", entry_points)
        for each in (COMMAND_SETS, EXECUTORS):
            monkeypatch.setattr(each, "entries", {})
            monkeypatch.setattr(each, "_loaded", False)

    return make


def greeting(app: typer.Typer) -> None:
    @command(app, "greet")
    def greet(out):
        """Say a word."""
        out.show("good day")


def test_a_command_of_another_distribution(installed, run):
    installed(commands={"greeting": "greeting"})
    assert run("greet").stdout.strip() == "good day"
    assert "Say a word." in run("--help").stdout


@pytest.mark.parametrize(
    ("name", "distribution"),
    [
        ("bench", "tvm-sched-bench"),
        *((name, "tvm-sched-cluster") for name in ("cluster", "deploy", "status", "request", "undeploy")),
        ("plan", "tvm-sched-plans"),
    ],
)
def test_without_the_distribution_the_message_names_it(installed, fails, run, name, distribution):
    installed()
    assert f"pip install {distribution}" in " ".join(fails(2, name).replace("│", " ").split())
    assert f"│ {name} " not in run("--help").stdout


def test_a_distribution_that_cannot_be_loaded_stops_no_other_command(installed, run):
    installed(commands={"broken": "NOSUCH"})
    with pytest.warns(RuntimeWarning, match="set of commands 'broken' of entry point .* cannot be loaded"):
        assert "compile" in run("--help").stdout
    assert run("schedulers").stdout


def test_workers_that_no_package_offers(installed, fails, problem_file):
    installed()
    message = fails(2, "compare", problem_file, "--schedulers", "single", "--workers", "none:auto")
    assert "no installed package offers workers of the kind 'none'" in message
    assert "pip install tvm-sched-cluster" in message


def test_commands_of_ours_look_for_no_others():
    script = (
        "import sys; from typer.testing import CliRunner; from tvm_sched.cli import app;"
        "assert CliRunner().invoke(app, ['cache', 'path']).exit_code == 0;"
        "sys.exit(bool({'tvm_sched_bench', 'tvm_sched_cluster', 'tvm_sched_plans'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
