"""The start of the commands: Ctrl-C while modules are imported."""

import subprocess
import sys
from pathlib import Path

import pytest

import tvm_sched

PRESSED_WHILE_IMPORTING = """
import os, signal, sys
from tvm_sched.starting import main

class Press:
    def find_spec(self, name, *rest):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Press())
{before}
sys.argv = ["tvm-sched", "--version"]
main()
"""


def pressed(module, before=""):
    code = PRESSED_WHILE_IMPORTING.format(module=module, before=before)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


def test_ctrl_c_while_modules_are_imported_ends_without_a_traceback():
    for module in ("tvm_sched.cli", "typer"):
        done = pressed(module)
        assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted; nothing was saved\n")


def test_little_is_imported_before_ctrl_c_is_handled():
    """What `signal` imports by itself takes a millisecond, `typing` and what it imports several."""
    code = "import sys; import tvm_sched.starting; print('typing' in sys.modules, 're' in sys.modules)"
    start = f"import sys; sys.path.insert(0, {str(Path(tvm_sched.__file__).parents[1])!r}); "
    done = subprocess.run([sys.executable, "-I", "-S", "-c", start + code], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("False False\n", "")


def test_ctrl_c_while_the_runtime_command_imports_a_command():
    code = PRESSED_WHILE_IMPORTING.format(module="tvm_sched_serve.command", before="")
    code = code.replace("tvm_sched.starting", "tvm_sched_runtime.run_artifact").replace("--version", "serve")
    code = code.replace("\nmain()", "\nsys.exit(main())")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


PRESSED_BEFORE_THE_COMMAND_IS_FOUND = """
import os, signal, sys
from tvm_sched import cli
from tvm_sched.starting import main

class Press(type(cli.app)):
    def __call__(self, *arguments, **named):
        os.kill(os.getpid(), signal.SIGINT)
        super().__call__(*arguments, **named)

cli.app.__class__ = Press
sys.argv = ["tvm-sched", "schedule", "none.json"]
main()
"""


def test_ctrl_c_before_the_command_is_found_says_so():
    done = subprocess.run([sys.executable, "-c", PRESSED_BEFORE_THE_COMMAND_IS_FOUND], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted; nothing was saved\n")


def test_a_job_for_which_a_script_ignores_the_signal_goes_on():
    done = pressed("typer", "signal.signal(signal.SIGINT, signal.SIG_IGN)")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("tvm-sched ")


PRESSED_WHILE_A_COMMAND_BEGINS = """
import os, signal, sys
from tvm_sched.starting import main

class Press:
    def find_spec(self, name, *rest):
        if name == "tvm_sched_runtime.problem":
            {press}
            os.kill(os.getpid(), signal.SIGINT)
            while True:  # until KeyboardInterrupt
                pass

sys.meta_path.insert(0, Press())
sys.argv = ["tvm-sched", "schedule", "none.json"]
main()
"""
IN_A_CLASS = """
            class Name:
                def __set_name__(self, owner, name):
                    os.kill(os.getpid(), signal.SIGINT)
                    while True:  # until KeyboardInterrupt
                        pass
            class Made:
                name = Name()
"""


@pytest.mark.parametrize("press", ["", IN_A_CLASS])
def test_ctrl_c_while_a_command_makes_its_options_says_so(press):
    code = PRESSED_WHILE_A_COMMAND_BEGINS.format(press=press)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted; nothing was saved\n")
