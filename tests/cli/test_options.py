"""Options over all commands: one spelling for one thing, few parameters of a function, commands listed by task."""

import ast
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

import tvm_sched.cli
import tvm_sched_bench.cli
import tvm_sched_cluster.cli
import tvm_sched_language.cli
import tvm_sched_plans.cli
from tvm_sched.cli import app
from tvm_sched.cli.attached_commands import PANELS
from tvm_sched.relax.options import CompileOptions

from .conftest import run_command
from .every_command import every_command

MEANINGS = {
    "--address": "Ray cluster",
    "--admin-port": "port of administration",
    "--admin-token-file": "tokens of administrators",
    "--against": "artifact to compare with",
    "--allocator": "method that places services",
    "--alone": "also each model alone",
    "--also": "further models of the same command",
    "--anchors": "most sizes with a schedule of their own",
    "--artifact": "folder of a compiled pipeline",
    "--artifacts": "folder of compiled pipelines that are kept",
    "--backend": "what runs kernels",
    "--batch": "sequences at once",
    "--batch-delay": "how long a request waits for others",
    "--bounds": "bounds of a replay",
    "--cache-dtype": "number format of keys and values",
    "--carry": "output of the prefill that the decode takes",
    "--chat": "prompts are messages",
    "--cluster": "cluster whose kinds of GPU count",
    "--constant": "frozen input",
    "--context": "tokens of a sequence",
    "--contiguous": "ask for contiguous submodels",
    "--costs": "latencies",
    "--count": "random requests",
    "--cuda": "GPUs are needed",
    "--debug": "traceback of an error",
    "--decode-on": "devices of the decode",
    "--defragment": "whether the controller moves services",
    "--defragment-every": "time between defragmentations",
    "--demand": "kind of random requests",
    "--device": "device to measure",
    "--device-model": "what runs on a GPU",
    "--drain-delay": "time that a server is not ready before it ends",
    "--drain-timeout": "time until unanswered requests are given up",
    "--dry-run": "decide and change nothing",
    "--dtype": "number format of weights",
    "--each": "each problem by itself",
    "--emulation-scale": "slow-down of emulated devices",
    "--evidence": "what the lower bound rests on",
    "--factor": "distance from the best that is aimed at",
    "--faults": "failures and repairs of a replay",
    "--for": "other runtime",
    "--free": "memory that is free now",
    "--from-text": "output of nvidia-smi",
    "--generate": "compile a language model for text",
    "--given": "splits to compare with",
    "--gpus": "GPU of each device of an artifact",
    "--graph": "CUDA graph",
    "--grpc-port": "port of gRPC",
    "--host": "address that a server listens on",
    "--http": "address of the controller",
    "--in-run-only": "no kernels alone",
    "--input": "value of an input",
    "--instances": "runs at once",
    "--interval": "time between passes of the controller",
    "--iterations": "end of searches for multipliers",
    "--json": "one JSON document",
    "--keep": "store better solutions",
    "--keep-bounds": "store better bounds",
    "--last": "how many events",
    "--latency-ceiling": "most latency",
    "--launch-order": "order in which kernels start",
    "--libraries": "folders of libraries",
    "--lifetime": "how long a service stays",
    "--limits": "what would fit",
    "--link-mtbf": "time between failures of a link",
    "--load-bandwidth": "bandwidth of loading onto a GPU",
    "--load-times": "measured load times",
    "--max-connections": "open connections",
    "--max-request-bytes": "size of a request",
    "--max-tokens": "most tokens of a text",
    "--max-total-bytes": "size of all requests",
    "--measure": "measure on this machine",
    "--measured": "timeline that was measured",
    "--measurements": "also measured times",
    "--method": "name of the method of solutions",
    "--methods": "names of methods of several kinds",
    "--moves": "services that move",
    "--moves-per-hour": "moves an hour",
    "--mtbf": "time between failures",
    "--mttr": "time to a repair",
    "--name": "name of what is made",
    "--networks": "random networks",
    "--new-tokens": "generated tokens",
    "--no-cache": "nothing from the cache",
    "--no-follow-links": "links out of a folder",
    "--no-grpc": "no gRPC",
    "--note": "remark",
    "--objective": "what several models minimise",
    "--offered": "services of a replay at once",
    "--once": "one pass of the controller",
    "--only": "some instances",
    "--option": "option of a method",
    "--otlp-endpoint": "where spans go",
    "--output": "where the result goes",
    "--overhead": "memory of another runtime",
    "--pairs": "kernels in parallel",
    "--parameter-file": "file of the parameters",
    "--parameters": "where parameters are",
    "--partitioner": "method that cuts into stages",
    "--phase": "phase of a language model",
    "--pieces": "lengths of the plans for prompts",
    "--pin": "servers of the placement",
    "--policy": "policies of a replay",
    "--port": "port of HTTP",
    "--precision": "number format of products",
    "--preempt": "whether services may be ended for others",
    "--prefill-on": "devices of the prefill",
    "--price": "price of a device an hour",
    "--priority": "priority of a service",
    "--processor": "processors that run the artifact",
    "--published": "published latencies",
    "--queue": "requests that may wait",
    "--quota": "most GPUs of a kind of service",
    "--receive-timeout": "time to send a request",
    "--recording": "recorded machine",
    "--repeat": "how often",
    "--replicas": "copies of a service",
    "--report": "HTML report",
    "--requests": "file of requests",
    "--resident": "parameters that are on the devices",
    "--robust": "statistic of draws of the latencies",
    "--row-parts": "parts in which the whole model is computed",
    "--rows": "split by rows",
    "--running": "what runs already",
    "--runs": "replays with seeds of their own",
    "--samples": "draws of uncertain times",
    "--save-recording": "where a recording goes",
    "--scale-lifetimes": "factor of the lifetimes of a file",
    "--scheduler": "method that schedules",
    "--schedulers": "names of schedulers",
    "--seed": "random seed",
    "--seeds": "runs with a seed each",
    "--sequences": "texts at once",
    "--service": "request for a service",
    "--services": "file of services",
    "--shape": "shapes of inputs",
    "--shared-memory": "clients may name shared memory",
    "--slack": "how unequal acceptance may be",
    "--stage-order": "order of operators inside stages",
    "--stages": "most stages",
    "--state": "input kept from run to run",
    "--steps": "decode steps",
    "--stop-after": "last pass of the compiler",
    "--storage": "file on the storage to measure",
    "--store": "file of the controller",
    "--streams": "how operators share streams",
    "--target": "latency to reach",
    "--temperature": "how tokens are drawn",
    "--tensor-parallel": "devices that compute each layer together",
    "--threads": "threads of CPU devices",
    "--throughput-floor": "least throughput",
    "--time-limit": "time of a method",
    "--timeline": "file of a timeline",
    "--timeout": "time until a deployment or request answers",
    "--times-only": "no values",
    "--tls-certificate": "certificate of a server",
    "--tls-key": "key of a certificate",
    "--token-file": "tokens of clients",
    "--tokens": "numbers of tokens in place of texts",
    "--top-k": "how many tokens are drawn from",
    "--top-p": "probability of the tokens that are drawn from",
    "--topology": "machine",
    "--trace": "Chrome trace",
    "--tuned": "schedules of TVM's tuner",
    "--variants": "alternatives of fused kernels",
    "--vary": "what varies",
    "--verify": "check of the parameter file",
    "--vidur": "folder of vidur's profiles",
    "--warm-up": "runs that are not measured",
    "--watchdog": "time without a finished step",
    "--weights": "weights of models",
    "--windows": "parts of the time",
    "--workers": "workers of a search",
}
"""What each option means, in every command that has it."""
SHORT = {"-o": "--output", "-t": "--topology", "-s": "--scheduler", "-a": "--allocator", "-k": "--stages"}


ALL = every_command()


def options(command):
    return [p for p in command.params if p.param_type_name == "option"]


def test_each_option_has_one_meaning_and_each_meaning_one_option():
    used = {flag for command in ALL.values() for p in options(command) for flag in p.opts if flag.startswith("--")}
    assert used == set(MEANINGS)
    assert len(set(MEANINGS.values())) == len(MEANINGS)


def test_short_forms_are_the_same_everywhere():
    for name, command in ALL.items():
        for parameter in options(command):
            short = [flag for flag in parameter.opts if not flag.startswith("--")]
            (long,) = (flag for flag in parameter.opts if flag.startswith("--"))
            assert short == [key for key, value in SHORT.items() if value == long], (name, parameter.opts)


def test_every_option_says_what_it_is():
    for name, command in ALL.items():
        assert all(p.help for p in options(command)), name
        assert not any("tvm_sched." in p.help for p in options(command)), name


def test_an_option_of_the_api_has_its_default_choices_and_description():
    found = {parameter.name: parameter for parameter in options(ALL["compile"])}
    assert found["precision"].metavar == "float32|bfloat16|tf32"
    assert found["precision"].default == CompileOptions(topology="cpu1").precision
    assert "float32" in found["precision"].help
    assert found["variants"].secondary_opts == ["--no-variants"]


@pytest.mark.parametrize(
    "package",
    [tvm_sched.cli, tvm_sched_bench.cli, tvm_sched_cluster.cli, tvm_sched_language.cli, tvm_sched_plans.cli],
    ids=lambda package: package.__name__,
)
def test_no_function_has_more_than_ten_parameters(package):
    file = Path(package.__file__)
    for path in file.parent.glob("*.py") if file.name == "__init__.py" else [file]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                given = node.args
                count = len([*given.posonlyargs, *given.args, *given.kwonlyargs])
                assert count <= 10, f"{path.name}: {node.name} has {count} parameters"


def test_help_groups_the_commands_by_task_and_names_the_first_five():
    shown = run_command("--help").stdout
    places = [shown.index(f"─ {panel} ─") for panel in PANELS]
    assert places == sorted(places)
    assert "─ Commands ─" not in shown, "every command belongs to a task"
    first = shown[places[0] : places[1]]
    assert re.findall(r"│ (\w+) ", first) == ["auto", "inspect", "schedule", "compile", "run"]


def test_without_arguments_it_says_what_to_try():
    shown = CliRunner().invoke(app, [], prog_name="tvm-sched")
    assert shown.exit_code == 0
    tried = [line.split()[1:] for line in shown.stdout.splitlines() if line.startswith("  tvm-sched ")]
    assert [words[0] for words in tried] == ["auto", "schedule", "sweep", "doctor"]
    for command, *rest in tried:
        known = {flag for parameter in options(ALL[command]) for flag in parameter.opts}
        assert {word for word in rest if word.startswith("-")} <= known


@pytest.mark.parametrize("command", ["compile", "plan", "schedule", "problem", "profile", "pipeline", "inspect"])
def test_shapes_are_given_in_the_same_way(command):
    assert "--shape" in {flag for parameter in options(ALL[command]) for flag in parameter.opts}


@pytest.mark.parametrize(
    "arguments",
    [
        ("compile", "m.onnx", "-t", "cpu2", "-o", "m.so", "--streams", "seven"),
        ("compile", "m.onnx", "-t", "cpu2", "-o", "m.so", "--threads", "many"),
        ("compile", "m.onnx", "-t", "cpu2", "-o", "m.so", "--precision", "float7"),
        ("plan", "llama-2-7b", "-t", "p4d", "--for", "vllm", "--shape", "1xmany"),
        ("schedule", "m.onnx", "--input-shape", "x:1"),
        ("run", "m.so", "--resident", "2"),
        ("bench", "run", "suite", "-o", "out", "--seconds", "1"),
    ],
)  # fmt: skip
def test_wrong_input_ends_with_status_2(arguments):
    result = run_command(*arguments)
    assert result.status == 2
    assert "Traceback" not in result.stderr
