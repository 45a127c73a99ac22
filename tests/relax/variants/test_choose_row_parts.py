"""The number of parts by rows: that with the fastest quick schedule of those in which the model can be computed."""

import numpy as np
import pytest

from parallel_models import CONFIG, decoder, given
from tvm_sched.relax import compile
from tvm_sched.relax.lower.kernel_libraries.kernel_library import VARIABLE
from tvm_sched.relax.passes import problem_passes
from tvm_sched.relax.variants import choose_row_parts
from tvm_sched.relax.variants.choose_row_parts import with_best_parts
from tvm_sched_runtime.errors import InfeasibleError, InputError, UnsplittableError
from tvm_sched_runtime.problem import Bus, Costs, Device, Operator, OpGraph, Problem, Tensor, Topology


def problem(nanoseconds):
    """One operator that takes this long."""
    graph = OpGraph("one", (Operator("o", "", ("x",), ("y",)),), (Tensor("x", 50, "input"), Tensor("y", 50)), ("y",))
    machine = Topology("one", (Device("gpu0", 1000, 1e12, {"float32": 1e12}, bus="pcie0"),), (Bus("pcie0", 1e12),))
    return Problem(graph, machine, Costs(np.full((1, 1), nanoseconds)))


def chosen(latencies, devices, tried=None):
    def make(parts):
        if tried is not None:
            tried.append(parts)
        if parts not in latencies:
            raise UnsplittableError(f"the model cannot be computed in {parts} parts by rows")
        return parts

    return with_best_parts(make, lambda parts: problem(latencies[parts]), devices)


@pytest.mark.parametrize(
    ("latencies", "devices", "tried", "best"),
    [
        ({1: 900, 2: 700, 4: 800, 8: 600}, 4, [1, 2, 4, 8], 8),
        ({1: 900, 2: 700, 4: 800, 8: 600}, 2, [1, 2, 4], 2),
        ({1: 900, 2: 700, 4: 800, 8: 600}, 64, [1, 2, 4, 8], 8),
        ({1: 500, 2: 500}, 2, [1, 2, 4], 1),  # the smallest of equal ones; four parts are impossible
        ({1: 900, 4: 100}, 4, [1, 2], 1),  # nothing is tried after an impossible number
        ({1: 900, 2: 100}, 1, [1], 1),
    ],
)
def test_the_number_of_the_fastest_schedule(latencies, devices, tried, best):
    calls = []
    assert chosen(latencies, devices, calls) == best
    assert calls == tried


@pytest.mark.parametrize(("infeasible", "best"), [({100}, 4), ({900}, 2), ({100, 800, 900}, 1)])
def test_parts_that_do_not_fit_into_memory_are_left_out(monkeypatch, infeasible, best):
    def limited(problem, *arguments, **named):
        if problem.costs.operator_ns[0, 0] in infeasible:
            raise InfeasibleError("memory does not suffice")
        return solve(problem, *arguments, **named)

    solve = choose_row_parts.solve
    monkeypatch.setattr(choose_row_parts, "solve", limited)
    assert chosen({1: 900, 2: 100, 4: 800}, 2) == best


def test_other_errors_are_raised():
    """An error of parts alone must not pass for a model that cannot be cut."""

    def make(parts):
        if parts > 1:
            raise InputError("no such cost model")
        return parts

    with pytest.raises(InputError, match="no such cost model"):
        with_best_parts(make, lambda parts: problem(100), 2)


def test_an_error_of_the_whole_model_is_raised():
    with pytest.raises(InputError, match="in 1 parts"):
        chosen({2: 100}, 2)


def test_ctrl_c_ends_the_choice(monkeypatch):
    whole = choose_row_parts.solve(problem(900))
    interrupted = whole.replace(certificate=whole.certificate.__class__(900, 900, "", "interrupted"))
    monkeypatch.setattr(choose_row_parts, "solve", lambda *_, **__: interrupted)
    with pytest.raises(KeyboardInterrupt):
        chosen({1: 900, 2: 100}, 2)


@pytest.mark.thorough
def test_compile_chooses_for_emulated_gpus(monkeypatch):
    monkeypatch.setenv(VARIABLE, "")
    compiled = compile(decoder(), "cpu2", "heft", row_parts="auto", cost_model="roofline")
    assert compiled.run(given(decoder)).shape == (2, 5, CONFIG.vocab)


def test_a_model_with_kernels_of_libraries_stays_whole():
    compiled = compile(decoder(), "cpu2", "heft", row_parts="auto", cost_model="roofline")
    assert compiled.run(given(decoder)).shape == (2, 5, CONFIG.vocab)


@pytest.mark.parametrize("parts", [0, -1, True, "2", "best"])
def test_other_values_are_refused(parts):
    with pytest.raises(InputError, match=r"row_parts is .*; a number from 1, or 'auto', is allowed"):
        compile(decoder(), "cpu2", "heft", row_parts=parts)


def test_all_numbers_are_tried_by_the_passes():
    from tvm_sched.relax.options import CompileOptions

    (choose,) = problem_passes(CompileOptions.of("v100-server", row_parts="auto"))
    assert choose.info.name == "tvm_sched.ChooseRowParts"
