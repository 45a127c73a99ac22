"""What `solve` does with schedulers that are wrong."""

import msgspec
import pytest

from tvm_sched import registry
from tvm_sched.pipeline.partitioner_registry import PARTITIONERS
from tvm_sched.schedulers import get, names, register, solve
from tvm_sched.schedulers.scheduler_registry import SCHEDULERS
from tvm_sched_bench.testing import random_problem
from tvm_sched_runtime.errors import InputError, SchedulerError
from tvm_sched_runtime.schedule import Certificate, Schedule


@pytest.fixture(autouse=True)
def clean_registry(monkeypatch):
    monkeypatch.setattr(SCHEDULERS, "entries", dict(SCHEDULERS.entries))


def test_names_and_unknown_names():
    assert {"single", "anytime"} <= set(names())
    assert get("anytime").summary
    with pytest.raises(InputError, match="no scheduler 'fastest'; there are"):
        get("fastest")


def test_a_name_is_taken_once():
    with pytest.raises(InputError, match="'single' is registered already"):

        @register("single")
        def other(problem, workload, options):
            """Another."""


def test_an_answer_that_breaks_a_rule_is_the_schedulers_fault():
    @register("forgetful")
    def forgetful(problem, workload, options):
        """Schedules nothing."""
        return Schedule(problem.digest, ())

    with pytest.raises(SchedulerError, match="scheduler 'forgetful' breaks a rule"):
        solve(random_problem(0), method="forgetful")


def test_a_method_goes_before_an_old_name_of_another(recwarn):
    @register("exact")
    def exact(problem, workload, options):
        """A plug-in's."""

    assert get("exact").function is exact
    assert not [warning for warning in recwarn if issubclass(warning.category, DeprecationWarning)]


@pytest.mark.parametrize("registered", [SCHEDULERS, PARTITIONERS])
def test_integers_that_no_method_takes_are_refused(registered):
    for method in map(registered.get, registered.names()):
        for key, value in msgspec.structs.asdict(method.read_options(None)).items():
            if type(value) is int:
                with pytest.raises(InputError, match=f"{key} is .* allowed"):
                    method.read_options({key: 2**63})
            if key == "seed" and method.name != "slicegraph":  # which looks at its options when it runs
                with pytest.raises(InputError, match="seed is 2147483648; 0 to 2147483647 are allowed"):
                    method.read_options({"seed": 2**31})


@pytest.mark.parametrize("options", [get("heft").options(), get("single").options(), 3])
def test_options_of_another_method_are_refused(options):
    with pytest.raises(InputError, match=r"options of scheduler 'anytime' are a \w+; a mapping or AnytimeOptions is"):
        solve(random_problem(0), method="anytime", options=options)


def test_an_answer_that_is_no_schedule():
    @register("mute")
    def mute(problem, workload, options):
        """Returns nothing."""

    with pytest.raises(SchedulerError, match="returned a NoneType"):
        solve(random_problem(0), method="mute")


def test_a_broken_entry_point_is_named_and_does_no_harm(monkeypatch):
    class Broken:
        name, value = "broken", "nowhere:at_all"

        def load(self):
            raise ImportError("no module named nowhere")

    monkeypatch.setattr(registry, "entry_points", lambda group: [Broken()])
    monkeypatch.setattr(SCHEDULERS, "installed_loaded", False)
    with pytest.warns(RuntimeWarning, match="'broken' of entry point 'nowhere:at_all' cannot be loaded"):
        assert "anytime" in names()


def test_the_certificate_is_not_the_schedulers_word():
    schedule = solve(random_problem(1), method="anytime", options={"work": 0.1})
    boasting = msgspec.structs.replace(schedule, certificate=Certificate(1, 1, "boast", "optimal"))

    @register("boasting")
    def boast(problem, workload, options):
        """Another one's answer."""
        return boasting

    certificate = solve(random_problem(1), method="boasting").certificate
    assert certificate.latency_ns > certificate.lower_bound_ns
    assert certificate == msgspec.structs.replace(schedule.certificate, status="no better found")
