"""The command `tvm-sched-check`, in a Python that has the checker and the standard library alone."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import tvm_sched_check
from checker.cases import fan, files_of
from tvm_sched.schedulers import solve


@pytest.fixture
def alone(tmp_path):
    """Run the command in a Python that has the checker and the standard library alone."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "tvm_sched_check").symlink_to(Path(tvm_sched_check.__file__).parent)
    start = f"import runpy, sys; sys.path.insert(0, {str(tmp_path / 'site')!r}); sys.argv[0] = 'tvm-sched-check'; "

    def call(*arguments, before=""):
        code = start + f"exec({before!r}); runpy.run_module('tvm_sched_check', run_name='__main__')"
        command = [sys.executable, "-I", "-S", "-c", code, *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    return call


def test_the_checker_stands_alone(folder, alone):
    files = files_of(fan(10), solve(fan(10), method="single"))
    files.check(folder)
    done = alone(*(folder / f"{name}.json" for name in ("problem", "schedule", "evidence")))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "latency 400 ns, replayed"


@pytest.mark.parametrize("what", [["pipelines"], ["partitions"], ["clusters"], ["plans"], []])
def test_the_command_names_the_file_that_is_wrong(alone, tmp_path, what):
    done = alone(*what, *[tmp_path / "none.json"] * {"partitions": 2, "clusters": 2, "plans": 1}.get("".join(what), 3))
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(r"refused: .*none\.json: cannot be read as JSON .*\n", done.stderr)


@pytest.mark.parametrize("arguments", [[], ["clusters"], ["clusters", "a", "b", "c"], ["a", "b"]])
def test_a_wrong_number_of_files_shows_the_usage(alone, arguments):
    done = alone(*arguments)
    assert done.returncode == 2
    assert "tvm-sched-check pipelines problem.json plan.json evidence.json" in done.stderr


PRESS = """
import os, signal
class Press:
    def find_spec(self, name, *rest):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Press())
"""


@pytest.mark.parametrize("module", ["command", "document", "verdict", "replay"])
def test_ctrl_c_while_modules_are_imported(alone, module):
    done = alone("a", "b", "c", before=PRESS.format(module=f"tvm_sched_check.{module}"))
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


def test_ctrl_c_while_files_are_checked(alone):
    before = "import os, signal, json; json.loads = lambda *a, **k: os.kill(os.getpid(), signal.SIGINT)"
    done = alone(__file__, __file__, __file__, before=before)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")
