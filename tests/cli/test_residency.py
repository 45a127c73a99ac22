"""``--resident`` of `schedule`, `simulate`, `compare` and `verify`."""

import msgspec
import pytest

from tvm_sched.resident_texts import parse_requests
from tvm_sched_bench.testing import random_problem
from tvm_sched_bench.testing.variant_problems import random_variants
from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.schedule import Schedule

from .conftest import run_command


@pytest.fixture(scope="module")
def generous(tmp_path_factory):
    """A problem in which several methods have something to load, with variants."""
    path = tmp_path_factory.mktemp("resident") / "p.json"
    random_variants(random_problem(0, 12, 3, memory="generous", style="bus"), 0).save(path)
    return path


@pytest.mark.parametrize("resident", ["1", "0.5", "0:1,1:9"])
def test_a_schedule_says_for_which_runs_it_is_and_is_priced_for_them(run, generous, tmp_path, resident):
    file = tmp_path / "s.json"
    made = run(
        "schedule", generous, "-s", "anytime", "--option", "work=0.2", "--resident", resident, "-o", file, "--json"
    )
    simulated = run("simulate", generous, file, "--json")
    assert simulated.json["latency_ns"] == made.json["latency_ns"]
    assert simulated.json["requests"] == made.json["requests"] != []
    assert run("verify", generous, file).status == 0
    assert "resident" in run("schedule", generous, "-s", "heft", "--resident", resident).stdout
    cold = run("simulate", generous, file, "--resident", "0", "--json").json
    assert cold["requests"] == []
    assert cold["latency_ns"] >= min(request["latency_ns"] for request in made.json["requests"])


def test_compare_prices_all_for_the_same_runs(run, generous):
    found = run(
        "compare",
        generous,
        "--schedulers",
        "single,heft,peft,anytime",
        "--option",
        "work=0.2",
        "--resident",
        "1",
        "--json",
    ).json
    latency = {each["scheduler"]: each["latency_ns"] for each in found["schedulers"]}
    assert max(latency.values()) == latency["single"]
    cold = run("compare", generous, "--schedulers", "single", "--json").json
    assert cold["schedulers"][0]["latency_ns"] > latency["single"]
    assert found["references"][0]["latency_ns"] < cold["references"][0]["latency_ns"]


def test_names_come_from_the_line_or_a_file(run, generous, tmp_path):
    schedule = tmp_path / "s.json"
    run("schedule", generous, "-s", "heft", "--resident", "1", "-o", schedule, "--no-variants")
    names = Schedule.load(schedule).certificate.requests[0].resident
    (tmp_path / "names.txt").write_text("\n".join(names) + "\n")
    by_file = run("schedule", generous, "-s", "heft", "--resident", f"@{tmp_path / 'names.txt'}", "--json").json
    by_line = run("schedule", generous, "-s", "heft", "--resident", ",".join(names), "--json").json
    assert by_file["requests"] == by_line["requests"]
    assert by_line["requests"][0]["resident"] == list(names)


def test_a_false_certificate_of_a_request_is_refused(run, generous, tmp_path):
    file = tmp_path / "s.json"
    run("schedule", generous, "-s", "heft", "--resident", "1", "-o", file)
    schedule = Schedule.load(file)
    request = msgspec.structs.replace(schedule.certificate.requests[0], latency_ns=1)
    schedule.replace(certificate=msgspec.structs.replace(schedule.certificate, requests=(request,))).save(file)
    result = run_command("verify", generous, file)
    assert result.status == 2
    assert "request 1" in result.stdout


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1.5", "a fraction from 0 to 1"),
        ("nan", "a fraction from 0 to 1"),
        ("a,,b", "a name is empty"),
        ("no-such-parameter", "no-such-parameter"),
        ("0:0,1:0", "weights"),
        ("0:1,2:1", "a fraction from 0 to 1"),
        ("@/no/such/file", "cannot be read"),
        ("0:1e,1:1", "is not a number"),
    ],
)
def test_what_cannot_be_resident_is_refused_in_a_line(generous, text, message):
    result = run_command("schedule", generous, "-s", "heft", "--resident", text)
    assert result.status == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_names_with_colons_are_names():
    assert parse_requests("weight:0,bias:1") == ["weight:0", "bias:1"]
    assert parse_requests("0:1,1:9") == [(0.0, 1.0), (1.0, 9.0)]
    with pytest.raises(InputError):
        parse_requests("")
