"""Objects in a module's attributes: JSON is made of them where the module is saved, and nowhere else."""

import json
import pickle

import tvm
import tvm_ffi

from relax.onnx_models import small_model
from tvm_sched.relax import compile
from tvm_sched.relax.ir.attributes import PROBLEM, get_problem, leave
from tvm_sched.schedulers import solve
from tvm_sched_bench.testing import random_problem
from tvm_sched_runtime.problem import Problem
from tvm_sched_runtime.schedule import Schedule, memory_profile, native_problem, simulate, verify
from tvm_sched_runtime.schedule import indexed as schedule_index


def counted(monkeypatch, owner, name):
    calls = []
    original = getattr(owner, name)
    monkeypatch.setattr(owner, name, staticmethod(lambda *args, **kw: calls.append(1) or original(*args, **kw)))
    return calls


def count_calls(monkeypatch, owner, name):
    """Count calls of a method; what they get goes on to it."""
    calls = []
    original = getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda *args: calls.append(args) or original(*args))
    return calls


def test_a_compile_makes_builds_and_prices_each_once(monkeypatch):
    decoded = counted(monkeypatch, Problem, "from_json"), counted(monkeypatch, Schedule, "from_json")
    encoded = count_calls(monkeypatch, Problem, "to_json"), count_calls(monkeypatch, Schedule, "to_json")
    made = counted(monkeypatch, native_problem.NativeProblem, "of")
    indexed = count_calls(monkeypatch, schedule_index, "_encode")
    built = count_calls(monkeypatch, native_problem.NativeProblem, "schedule")
    priced = count_calls(monkeypatch, native_problem.NativeSchedule, "simulate")
    compile(small_model(batch=2), "cpu2", "heft", cost_model="roofline")
    assert [len(calls) for calls in decoded] == [0, 0]  # JSON is for files
    assert [len(calls) for calls in encoded] == [0, 0]
    assert len(made) == 1
    # The schedule that HEFT finds in C++ is the object that is verified, certified and lowered.
    assert len(indexed) == len(built) == 0
    assert len(priced) == 1


def test_a_schedule_from_a_file_is_indexed_and_priced_once(monkeypatch):
    problem = random_problem(3)
    schedule = Schedule.from_json(solve(problem, method="heft").to_json())
    indexed = count_calls(monkeypatch, schedule_index, "_encode")
    built = count_calls(monkeypatch, native_problem.NativeProblem, "schedule")
    priced = count_calls(monkeypatch, native_problem.NativeSchedule, "simulate")
    verify(problem, schedule)
    simulate(problem, schedule)
    memory_profile(problem, schedule)
    assert len(indexed) == len(built) == len(priced) == 1


def test_what_was_left_is_what_is_read():
    problem = random_problem(3)
    mod = leave(tvm.IRModule({}), PROBLEM, problem)
    assert get_problem(mod) is problem


def test_a_module_that_is_saved_keeps_them_as_documents():
    problem = random_problem(3)
    mod = leave(tvm.IRModule({}), PROBLEM, problem)
    loaded = tvm.ir.load_json(tvm.ir.save_json(mod))
    assert get_problem(loaded).digest == problem.digest
    assert get_problem(loaded) is get_problem(loaded)  # decoded once
    assert tvm_ffi.structural_equal(mod, loaded)
    assert tvm_ffi.structural_hash(mod) == tvm_ffi.structural_hash(loaded)
    assert not tvm_ffi.structural_equal(mod, leave(tvm.IRModule({}), PROBLEM, random_problem(4)))
    assert "tvm_sched.Document" in str(mod)
    assert json.dumps(problem.graph.name) in pickle.loads(pickle.dumps(mod)).attrs[PROBLEM].text()


def test_a_document_that_somebody_left_as_text_is_decoded():
    problem = random_problem(3)
    mod = tvm.IRModule({}).with_attr(PROBLEM, problem.to_json().decode())
    assert get_problem(mod).digest == problem.digest
