"""One way from a method to an answer: of any kind, with every rule checked and no word of the method's taken."""

import pytest

from tvm_sched.certify import Proof, answer_of, final_status, run_method
from tvm_sched.registry import Method, NoOptions
from tvm_sched_runtime.errors import InputError, ScheduleError, SchedulerError


def method(function):
    return Method("guesser", "guess", function, NoOptions, "Guesses.")


def certified(answer, verify=lambda answer: None):
    run = lambda function, options: function(options)  # noqa: E731
    guesser = method(lambda options: answer)
    found = run_method(guesser, None, (int, type(None)), run)
    with answer_of(guesser):
        verify(found.answer)
    return found


def test_what_was_found_is_handed_on_with_who_made_it():
    found = certified(3)
    assert (found.answer, found.method, found.options) == (3, "guess", NoOptions())
    assert found.seconds >= 0


def test_an_answer_of_another_kind_is_refused():
    with pytest.raises(SchedulerError, match="guesser 'guess' returned a str; a int or NoneType is expected"):
        certified("three")


def test_an_answer_that_breaks_a_rule_is_the_methods_fault():
    def verify(answer):
        raise ScheduleError("it is odd")

    with pytest.raises(SchedulerError, match="the answer of guesser 'guess' breaks a rule: it is odd"):
        certified(3, verify)


def test_options_that_are_wrong_are_the_callers_fault():
    with pytest.raises(InputError, match="has no option 'speed'"):
        run_method(method(lambda options: 3), {"speed": 1}, int, lambda f, o: f(o))


@pytest.mark.parametrize(
    ("claimed", "cost", "status"),
    [
        ("no better found", 100, "optimal"),
        ("time limit", 101, "optimal"),
        ("time limit", 102, "time limit"),
        ("interrupted", 102, "interrupted"),
        ("optimal", 102, "no better found"),
    ],
)
def test_what_is_optimal_is_judged_by_the_bound(claimed, cost, status):
    assert final_status(claimed, cost, Proof(100, "sums", optimal=101)) == status


def test_a_bound_above_the_cost_is_a_fault_of_ours():
    assert final_status("", 100, Proof(100.05, "sums", 100, rounding=1e-3)) == "optimal"
    with pytest.raises(SchedulerError, match=r"bound 'sums' \(100.2\) exceeds a cost of 100: please report this"):
        final_status("", 100, Proof(100.2, "sums", 100, rounding=1e-3))
