"""The start of the command: Ctrl-C while modules are imported."""

import subprocess
import sys

import pytest

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


def test_a_job_for_which_a_script_ignores_the_signal_goes_on():
    done = pressed("typer", "signal.signal(signal.SIGINT, signal.SIG_IGN)")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("tvm-sched ")


PRESSED_WHILE_A_COMMAND_BEGINS = """
import os, signal, sys
from tvm_sched.starting import main

class Press:
    def find_spec(self, name, *rest):
        if name == "tvm_sched.problem":
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
