"""Standard output taken aside by one thread and by several, and solvers in threads."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from tvm_sched.schedulers.common.solver_runs import solve_in_thread, stdout_aside


def test_what_is_printed_inside_goes_to_standard_error(capfd):
    with stdout_aside():
        os.write(1, b"solver")
    os.write(1, b"result")
    assert capfd.readouterr() == ("result", "solver")


def test_the_last_of_several_threads_gives_it_back(capfd):
    inside, leave = threading.Event(), threading.Event()

    def other():
        with stdout_aside():
            inside.set()
            leave.wait(10)
            os.write(1, b"second")

    thread = threading.Thread(target=other)
    with stdout_aside():
        thread.start()
        assert inside.wait(10)
    leave.set()
    thread.join()
    os.write(1, b"result")
    assert capfd.readouterr() == ("result", "second")


def test_what_c_prints_into_a_pipe_goes_to_standard_error():
    """C keeps it until the buffer is full or the process ends, when standard output has long been given back."""
    code = (
        "import ctypes\nfrom tvm_sched.schedulers.common.solver_runs import stdout_aside\n"
        "c = ctypes.CDLL(None)\nc.printf(b'before ')\n"
        "with stdout_aside():\n    c.printf(b'solver')\nprint('result')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert (done.stdout, done.stderr) == ("before result\n", "solver")


def test_an_interrupt_stops_the_solver_and_waits_for_it():
    stopped, ended = threading.Event(), []

    def solve():
        signal.raise_signal(signal.SIGINT)
        ended.append(stopped.wait(60))

    with pytest.raises(KeyboardInterrupt):
        solve_in_thread(solve, stopped.set)
    assert ended == [True]


def test_an_error_of_a_solver_reaches_its_caller():
    with pytest.raises(ZeroDivisionError):
        solve_in_thread(lambda: 1 // 0)
