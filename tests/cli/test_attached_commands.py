"""Commands that other distributions bring: there where these are installed, and a message where they are not."""

import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from typing import Annotated

import pytest
import typer

from tvm_sched import registry
from tvm_sched.cli.attached_commands import COMMAND_SETS, COMPILERS
from tvm_sched.cli.registration import command
from tvm_sched.worker_pool import EXECUTORS
from tvm_sched_runtime.errors import InputError


@pytest.fixture
def installed(monkeypatch):
    """Make only these entry points be installed, by group."""

    def make(**points):
        def entry_points(group):
            return [
                EntryPoint(name, f"{__name__}:{value}", group) for name, value in points.get(group[10:], {}).items()
            ]

        monkeypatch.setattr(registry, "entry_points", entry_points)
        for each in (COMMAND_SETS, COMPILERS, EXECUTORS):
            monkeypatch.setattr(each, "entries", {})
            monkeypatch.setattr(each, "installed_loaded", False)

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
        ("generate", "tvm-sched-language"),
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


@dataclass(frozen=True)
class Odd:
    """Options of a compiler of another package."""

    odd: Annotated[bool, typer.Option("--odd", help="Compile in an odd way.")] = False

    def options_for(self, model):
        return {"odd": True} if self.odd else None

    def compile(self, model, options, progress):
        raise InputError(f"{model.name} for {options.topology.name} is even")


def test_a_compiler_of_another_distribution(installed, fails, problem_file, tmp_path):
    installed(compilers={"odd": "Odd"})
    asked = ("compile", problem_file, "-t", "cpu1", "-o", tmp_path / "m.so", "--odd")
    assert f"{problem_file.name} for cpu1 is even" in fails(2, *asked)
    assert "--odd gives the plans and states itself" in fails(2, *asked, "--shape", "1x8")
    assert "--generate is part of tvm-sched-language, which is not installed" in fails(2, *asked, "--generate")


def test_commands_of_ours_look_for_no_others():
    script = (
        "import sys; from typer.testing import CliRunner; from tvm_sched.cli import app;"
        "assert CliRunner().invoke(app, ['cache', 'path']).exit_code == 0;"
        "others = {'tvm_sched_bench', 'tvm_sched_cluster', 'tvm_sched_language', 'tvm_sched_plans'};"
        "sys.exit(bool(others & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
