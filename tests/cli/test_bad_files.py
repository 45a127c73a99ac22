"""Files that no program wrote: status 2, the file's name, and what is wrong with it."""

import json

import msgspec
import pytest

from onnx_text import onnx_model
from tvm_sched_runtime.errors import ScheduleError
from tvm_sched_runtime.schedule import simulate
from user_errors_cases import FOREIGN

DEEP = "[" * 100_000
LATIN = b'{"format": "tvm_sched.problem", "name": "\xe9"}'


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("deep.json", DEEP.encode(), "nested too deeply"),
        ("objects.json", b'{"a":' * 100_000, "nested too deeply"),
        ("latin.json", LATIN, "no text in UTF-8"),
        ("zeros.json", bytes(100), "not a JSON document"),
    ],
)
@pytest.mark.parametrize("command", ["schedule {file}", "simulate {problem} {file}", "verify {problem} {file}"])
def test_no_document(fails, problem_file, tmp_path, name, content, words, command):
    file = tmp_path / name
    file.write_bytes(content)
    message = " ".join(fails(2, *command.format(file=file, problem=problem_file).split()).split())
    assert words in message
    assert name in message


@pytest.mark.parametrize("content", [f"a = {DEEP}".encode(), b'name = "\xe9"'])
def test_no_topology(fails, tmp_path, content):
    file = tmp_path / "machine.toml"
    file.write_bytes(content)
    assert "machine.toml: not a TOML document" in fails(2, "topology", "check", file)


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("shape", [1 << 40, 1 << 40], "at most 9007199254740992 elements are allowed"),
        ("shape", [-1], "extents are 0 or more"),
        ("dtype", "float0", "has dtype 'float0'; allowed are such as float32"),
        ("dtype", "float32x4", "has dtype 'float32x4'"),
    ],
)
def test_tensors_that_cannot_be(fails, problem_file, field, value, words):
    data = json.loads(problem_file.read_text())
    data["graph"]["tensors"][0][field] = value
    problem_file.write_text(json.dumps(data))
    message = fails(2, "schedule", problem_file, "-s", "single")
    assert words in message
    assert problem_file.name in message


def test_a_stream_below_zero(fails, problem_file, schedule_file):
    data = json.loads(schedule_file.read_text())
    data["placements"][0]["stream"] = -1
    schedule_file.write_text(json.dumps(data))
    assert "has stream -1; 0 to 2147483647 is allowed" in fails(2, "simulate", problem_file, schedule_file)


@pytest.mark.parametrize("option", ["problem", "output"])
def test_a_name_that_is_too_long(fails, problem_file, tmp_path, option):
    name = tmp_path / ("n" * 300 + ".json")
    arguments = [name] if option == "problem" else [problem_file, "-s", "single", "-o", name]
    assert "nnn.json: File name too long" in fails(2, "schedule", *arguments).replace("\n", "")


def test_the_longest_name_that_there_can_be(run, problem_file, tmp_path):
    name = tmp_path / ("n" * 250 + ".json")
    run("schedule", problem_file, "-s", "single", "-o", name)
    assert name.exists()


def test_names_are_no_emoji(fails, problem_file):
    data = json.loads(problem_file.read_text())
    data["graph"]["tensors"][0]["name"] = ":a:"
    data["graph"]["tensors"][0]["size"] = -1
    problem_file.write_text(json.dumps(data))
    assert "':a:'" in fails(2, "schedule", problem_file)


@pytest.mark.slow
def test_a_model_of_a_shape_beyond_all_memory(fails, tmp_path):
    onnx = pytest.importorskip("onnx")
    kind = f"float[{1 << 40}, {1 << 40}]"
    onnx.save(onnx_model(f"({kind} x) => ({kind} y) {{ y = Relu(x) }}"), tmp_path / "huge.onnx")
    message = fails(2, "schedule", tmp_path / "huge.onnx", "-t", "cpu1", "-s", "single")
    assert "huge.onnx: input 'x' has the shape [1099511627776, 1099511627776]; at most" in message


@pytest.mark.parametrize(
    ("old", "new"),
    [(None, b""), (None, bytes(200)), (b"MatMul", b"MatNul"), (b"Relu", b"Gemm"), (b"two", b"\xff\xff\xff")],
)
def test_damaged_onnx_files(fails, model_file, old, new):
    model_file.write_bytes(new if old is None else model_file.read_bytes().replace(old, new))
    message = fails(2, "compile", model_file, "-t", "cpu1", "-s", "single", "-o", model_file.with_suffix(".so"))
    assert "error: " in message
    assert "two.onnx" in message
    assert not FOREIGN.search(message)


def test_simulate_notices_another_problem(problem):
    from tvm_sched.schedulers import solve

    schedule = msgspec.structs.replace(solve(problem, method="single"), problem="0" * 16)
    with pytest.raises(ScheduleError, match=r"made for problem '0000000000000000', and this is .*other_problem=True"):
        simulate(problem, schedule)
    assert simulate(problem, schedule, other_problem=True).latency_ns > 0
