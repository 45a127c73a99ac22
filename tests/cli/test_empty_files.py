"""Each command with files that are empty or describe nothing: an error with status 2, or the result for nothing."""

import json
import re

import pytest
from typer.testing import CliRunner

from tvm_sched.cli import app

from .conftest import run_command
from .every_command import every_command

EMPTY = {"zero bytes": b"", "a line": b"\n", "an object": b"{}", "a list": b"[]", "null": b"null", "zeros": bytes(64)}
COMMANDS = """
auto {empty.onnx} -t cpu2 -o {new.d}
inspect {empty.onnx}
inspect {empty.json}
inspect {empty.so}
schedule {empty.json}
schedule {empty.onnx} -t cpu2
schedule {empty.gguf} -t cpu2
schedule {empty.safetensors} -t cpu2
schedule {problem} -s single -t {empty.toml}
schedule {problem} -s single --costs {empty.json}
schedule {problem} -s single --resident @{empty.txt}
compile {empty.onnx} -t cpu2 -o {new.so}
compile {empty.onnx} -t {empty.toml} -o {new.so}
run {empty.so}
run {empty.d}
sweep {empty.json} --vary gpus=1,2
sweep {problem} --vary gpus=1,2 -t {empty.toml}
explain {empty.json} {schedule}
explain {problem} {empty.json}
check {empty.json} {schedule} {evidence}
check {problem} {empty.json} {evidence}
check {problem} {schedule} {empty.json}
problem {empty.onnx} -t cpu2 -o {new.json}
simulate {empty.json} {schedule}
simulate {problem} {empty.json}
simulate {problem} {schedule} --measured {empty.json}
verify {empty.json} {schedule}
verify {problem} {empty.json}
generation {empty.json} {empty.json} -o {new.json}
generation {problem} {empty.json} -o {new.json}
pipeline {empty.json}
pipeline {empty.onnx} -t cpu2
plan {empty.json} -t cpu2 --for vllm -o {new.json}
plan {empty.gguf} -t cpu2 --for llama.cpp -o {new.json}
gateway {empty.json}
gateway {empty.d}
deploy {empty.json}
deploy {empty.d}
cluster replay {empty.toml} --requests poisson --count 2
cluster replay {empty.txt} --requests poisson --count 2
cluster replay {empty.csv} --requests {pods}
cluster replay {nodes} --requests {empty.csv}
cluster replay {nodes without gpus} --requests {pods}
cluster replay {nodes} --requests {pods without gpus}
cluster replay rampa-base --services {empty.toml} --requests poisson --count 2
cluster replay rampa-base --services {empty.d} --requests poisson --count 2
cluster replay rampa-base --requests {empty.csv} --policy first-fit
cluster replay rampa-base --requests {empty.txt} --policy first-fit
cluster replay rampa-base --requests poisson --count 2 --policy first-fit --faults {empty.csv}
cluster replay rampa-base --requests poisson --count 2 --policy first-fit --load-times {empty.csv}
cluster controller {empty.toml} --store {new.db}
cluster controller rampa-base --services {empty.toml} --store {new.db}
cluster submit {empty.db} service3
cluster withdraw {empty.db} r0
cluster renew {empty.db} r0
cluster drain {empty.db} rack1
cluster events {empty.db}
cluster show {empty.toml}
cluster show {empty.txt}
cluster verify {empty.toml} {allocation}
cluster verify rampa-base {empty.json}
cluster release {empty.toml} {allocation} r0
cluster release rampa-base {empty.json} r0
cluster fail {empty.toml} {allocation} rack1
cluster fail rampa-base {empty.json} rack1
cluster repair {empty.toml} {allocation} rack1
cluster repair rampa-base {empty.json} rack1
cluster defragment {empty.toml} {allocation}
cluster defragment rampa-base {empty.json}
cluster place {empty.toml} --demand same --count 2
cluster place rampa-base --services {empty.toml} --demand same --count 2
cluster place rampa-base --requests {empty.txt}
cluster place rampa-base --service service3 --running {empty.json}
cluster bound {empty.toml} --demand same --count 2
cluster bound rampa-base --services {empty.toml} --demand same --count 2
cluster check {empty.json} {empty.json}
cluster check {allocation} {empty.json}
cluster service {empty.onnx} -o {new.toml}
cluster deploy {empty.toml} {allocation} --artifacts {empty.d}
cluster deploy rampa-base {empty.json} --artifacts {empty.d}
generate {empty.so} text
generate {empty.d} text
serve {empty.so}
export-triton {empty.so} -o {new.d}
export-triton {empty.d} -o {new.d}
compare {empty.json}
compare {problem} -t {empty.toml} --schedulers single
bench list {empty.d}
bench run {empty.d} -o {new.d}
bench score {empty.d} {empty.d}
bench check {empty.d}
bench prove {empty.d}
bench table {empty.d} {empty.d} -o {new.md}
bench regal {empty.d}
doctor --topology {empty.toml}
profile {empty.onnx} -o {new.msgpack}
topology show {empty.toml}
topology check {empty.toml}
topology detect --recording {empty.json}
learn {empty.msgpack} -o {new.msgpack}
learn --vidur {empty.d} -o {new.msgpack}
""".strip().splitlines()
WITHOUT_FILES = {
    *("cache clear", "cache path", "cache show", "cluster list", "schedulers", "schema", "topology list"),
    *("request", "rollout", "status", "undeploy"),  # of a deployment, which has to run
}
TABLES = {
    "nodes": "cpu_milli,memory_mib,gpu,model\n1000,1000,1,V100\n",
    "nodes without gpus": "cpu_milli,memory_mib,gpu,model\n1000,1000,0,V100\n",
    "pods": "cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n1,1,1,500,\n",
    "pods without gpus": "cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n1,1,0,0,\n",
}
THOROUGH = re.compile(r".*\.(onnx|gguf|safetensors)|doctor|learn|.* poisson|cluster (place|bound) rampa|bench|profile")


@pytest.fixture(scope="module")
def files(tmp_path_factory, problem, schedule_text):
    """Files that are right, by what they hold."""
    folder = tmp_path_factory.mktemp("right")
    made = {name: folder / f"{name}.json" for name in ("problem", "schedule", "evidence", "allocation")}
    problem.save(made["problem"])
    made["schedule"].write_text(schedule_text)
    made["evidence"].write_text("{}")
    made["allocation"].write_text(
        json.dumps({"format": "tvm_sched.allocation", "version": 1, "cluster": "", "placements": []})
    )
    for name, text in TABLES.items():
        made[name] = folder / f"{name.replace(' ', '-')}.csv"
        made[name].write_text(text)
    return made


def fill(command, content, files, folder):
    """Return the arguments of a command, whose empty files have this content."""

    def file(field):
        name, _, ending = field.partition(".")
        if field in files:
            return files[field]
        path = folder / (name if ending == "d" else field)
        if ending == "d" and name == "empty":
            path.mkdir(exist_ok=True)
        elif name == "empty":
            path.write_bytes(content)
        return path

    parts = re.sub(r"\{([^}]*)\}", lambda match: str(file(match[1])).replace(" ", "\0"), command).split()
    return [part.replace("\0", " ") for part in parts]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "command",
    [pytest.param(each, marks=[pytest.mark.thorough] if THOROUGH.match(each) else []) for each in COMMANDS],
)
@pytest.mark.filterwarnings("ignore")
def test_a_command_with_an_empty_file(command, files, tmp_path):
    for kind, content in EMPTY.items():
        result = run_command(*fill(command, content, files, tmp_path))
        assert result.exception is None or isinstance(result.exception, SystemExit), (kind, result.exception)
        assert result.status in (0, 2), (kind, result.stdout, result.stderr)
        assert "Traceback" not in result.stderr, kind
        if result.status:
            assert result.stderr.strip(), kind
        if "{empty." not in command or ".d}" in command:
            break  # no content


def test_each_command_that_reads_files_is_here():
    tried = {name for name in every_command() for command in COMMANDS if command.startswith(f"{name} ")}
    assert tried | WITHOUT_FILES == set(every_command())


def test_nodes_without_gpus_are_refused(files):
    done = CliRunner().invoke(
        app, ["cluster", "replay", str(files["nodes without gpus"]), "--requests", str(files["pods"])]
    )
    assert done.exit_code == 2
    assert "none of the 1 nodes has a GPU" in " ".join(done.stderr.split())


def test_a_table_of_faults_needs_its_columns(fails, tmp_path):
    (tmp_path / "f.csv").write_text("{}")
    asked = ("cluster", "replay", "rampa-base", "--requests", "poisson", "--count", "1", "--faults", tmp_path / "f.csv")
    assert "the columns time, event, part are expected in the first line" in " ".join(fails(2, *asked).split())


@pytest.mark.parametrize("commands", ["schedule -s single", "schedule", "compare --schedulers single,heft", "pipeline"])
def test_a_problem_without_operators(run, problem, tmp_path, commands):
    data = json.loads(problem.to_json())
    data["graph"] = {"name": "none", "operators": [], "tensors": [], "outputs": []}
    data["costs"] |= {"operator_ns": [], "direct_ns": []}
    (tmp_path / "p.json").write_text(json.dumps(data))
    name, *options = commands.split()
    assert run(name, tmp_path / "p.json", *options).stdout
