"""Standard output taken aside, by one thread and by several."""

import os
import threading

from tvm_sched.schedulers.console import stdout_aside


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
