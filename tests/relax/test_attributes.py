"""Documents in a module's attributes: each is encoded once and decoded never within a process."""

import tvm

from relax.onnx_models import small_model
from tvm_sched.problem import Problem
from tvm_sched.relax import attributes, compile
from tvm_sched.relax.attributes import PROBLEM, get_problem, leave
from tvm_sched.schedule import Schedule, native
from tvm_sched.testing import random_problem


def counted(monkeypatch, owner, name):
    calls = []
    original = getattr(owner, name)
    monkeypatch.setattr(owner, name, staticmethod(lambda *args, **kw: calls.append(1) or original(*args, **kw)))
    return calls


def test_a_compile_decodes_nothing_and_makes_one_problem(monkeypatch):
    decoded = counted(monkeypatch, Problem, "from_json"), counted(monkeypatch, Schedule, "from_json")
    made = counted(monkeypatch, native.NativeProblem, "of")
    compile(small_model(batch=2), "cpu2", "heft", cost_model="roofline")
    assert [len(calls) for calls in decoded] == [0, 0]
    assert len(made) == 1


def test_what_was_left_is_what_is_read():
    problem = random_problem(3)
    mod = leave(tvm.IRModule({}), PROBLEM, problem)
    assert get_problem(mod) is problem


def test_a_document_that_somebody_else_left_is_decoded():
    problem = random_problem(3)
    mod = tvm.IRModule({}).with_attr(PROBLEM, problem.to_json().decode())
    attributes._objects.clear()
    assert get_problem(mod).digest == problem.digest
