"""Programs of PyTorch that several threads import at once."""

from threading import Event, Lock, Thread

import pytest

torch = pytest.importorskip("torch")


class Announced:
    """A lock that says when somebody comes to it."""

    def __init__(self):
        self.lock, self.reached = Lock(), Event()

    def __enter__(self):
        self.reached.set()
        self.lock.acquire()

    def __exit__(self, *_):
        self.lock.release()


def test_threads_leave_pytorchs_functions_as_they_were(monkeypatch):
    """The second thread comes while the first has replaced the function, which it must not take for PyTorch's own."""
    import torch._export.utils as utils

    from tvm_frontends.torch import convert_program

    before, lock = utils._materialize_cpp_cia_ops, Announced()
    monkeypatch.setattr(convert_program, "_LOOK_UP", lock)
    programs = [torch.export.export(torch.nn.Linear(3, k + 2), (torch.ones(1, 3),)) for k in range(2)]
    second = Thread(target=convert_program.decomposed, args=(programs[1],))
    with convert_program._operators_looked_up_once():
        assert utils._materialize_cpp_cia_ops is not before
        lock.reached.clear()
        second.start()
        assert lock.reached.wait(60)
    second.join()
    assert utils._materialize_cpp_cia_ops is before
    convert_program.decomposed(programs[0])
    assert utils._materialize_cpp_cia_ops is before
