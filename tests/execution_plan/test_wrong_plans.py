"""Plans that the reader refuses, whoever wrote them; the C++ tests have more of its rules."""

import pytest
from runtime_plans import PlanBuilder

from tvm_sched_runtime.runtime import make_module


def plan(name="plan"):
    """One kernel reads an argument and a copied parameter, and writes the output."""
    made = PlanBuilder(name)
    x, w, out = made.argument("x", [4]), made.parameter("w", [4]), made.output([4])
    local = made.arena(0, [4])
    made.copy(w, local)
    made.kernel(0, "f", [x, local], [out], waits=[0])
    return made.plan


def other_type(made):
    made["buffers"][3]["dtype"] = "int32"


def writes_parameter(made):
    made["steps"][1]["outputs"].append(1)


def waits_for_later(made):
    made["steps"][0]["waits"] = [1]


def waits_for_itself(made):
    made["steps"][1]["waits"] = [1]


def two_writers(made):
    made["steps"].append({**made["steps"][1], "name": "again"})


def no_writer(made):
    made["steps"][1]["outputs"] = [3]


def takes_centuries(made):
    for step in made["steps"]:
        step["duration_ns"] = 1 << 62


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (other_type, r"a copy's buffers must agree, found float32\[4\] and int32\[4\]"),
        (writes_parameter, "a step must not write arguments, parameters and states"),
        (waits_for_later, "the first step has no step to wait for"),
        (waits_for_itself, "the steps before this one"),
        (two_writers, "exactly one step must write it"),
        (takes_centuries, "the durations of all steps together are more than 146 years"),
        (no_writer, "no step writes it; exactly one step must"),
    ],
)
def test_a_wrong_plan_is_refused(change, message):
    made = plan()
    make_module([made], {})
    change(made)
    with pytest.raises(ValueError, match=message):
        make_module([made], {})


def test_plans_of_an_artifact_differ_in_name_and_arguments():
    with pytest.raises(ValueError, match='two plans have the name "plan"'):
        make_module([plan(), plan()], {})
    with pytest.raises(ValueError, match='"plan" and "other" take arguments of the same shapes and dtypes'):
        make_module([plan(), plan("other")], {})
    with pytest.raises(ValueError, match="an artifact has at least one plan"):
        make_module([], {})
