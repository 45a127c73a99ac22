"""Prefill and decode as one problem, from a language model or from two files."""

import json

import pytest

from tvm_sched_runtime.problem import Problem
from tvm_sched_runtime.schedule import Schedule

from .conftest import run_command

CONFIG = {
    "model_type": "llama", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 40,
    "intermediate_size": 48,
}  # fmt: skip


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny-llama")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder / "config.json"


@pytest.fixture(scope="module")
def phases(config, tmp_path_factory):
    """Problem files of the two phases."""
    folder = tmp_path_factory.mktemp("phases")
    for phase in ("prefill", "decode"):
        result = run_command(
            "problem", config, "--shape", "2x8", "--phase", phase, "-t", "a40x2", "-o", folder / f"{phase}.json"
        )
        assert result.status == 0, result.stderr
    return folder / "prefill.json", folder / "decode.json"


def test_a_language_model_from_prefill_to_the_third_token(run, config, tmp_path):
    path, plan = tmp_path / "generation.json", tmp_path / "plan.json"
    made = run("generation", config, "--shape", "2x8", "-t", "a40x2", "--steps", "2", "-o", path, "--json").json
    graph = Problem.load(path).graph
    assert made["operators"] == len(graph.operators)
    assert graph.models == ("prefill", "decode", "decode.2")
    parameters = [tensor.name for tensor in graph.tensors if tensor.kind == "parameter"]
    assert not [name for name in parameters if "cached" in name or name.startswith("decode/")]
    said = run("schedule", path, "--option", "work=0.1", "-o", plan, "--json").json
    ends = [part["latency_ns"] for part in said["models"]]
    assert ends == sorted(ends)
    assert ends[-1] == said["latency_ns"] == sum(part["takes_ns"] for part in said["models"])
    assert run("verify", path, plan, "--json").json["feasible"]


def test_decode_elsewhere_has_the_cache_copied(run, phases, tmp_path):
    path, plan = tmp_path / "generation.json", tmp_path / "plan.json"
    run("generation", *phases, "--prefill-on", "gpu0", "--decode-on", "gpu1", "-o", path)
    problem = Problem.load(path)
    run("schedule", path, "--option", "work=0.1", "-o", plan)
    schedule = Schedule.load(plan)
    assert {(p.operator.split("/")[0], p.device) for p in schedule.placements} == {
        ("prefill", "gpu0"),
        ("decode", "gpu1"),
    }
    sizes = {tensor.name: (tensor.size, tensor.kind) for tensor in problem.graph.tensors}
    copied = [sizes[t.tensor] for t in schedule.transfers if t.kind == "copy"]
    assert (
        sum(size for size, kind in copied if kind == "activation") == 2 * 2 * 2 * 8 * 32 * 4 + 2 * 4
    )  # and the tokens


def test_what_is_carried_may_be_named(run, fails, phases, tmp_path):
    path = tmp_path / "generation.json"
    prefill, decode = (Problem.load(phase).graph for phase in phases)
    cached = [tensor.name for tensor in decode.tensors if "cached" in tensor.name]
    named = [part for pair in zip(prefill.outputs[1:], cached, strict=True) for part in ("--carry", "=".join(pair))]
    run("generation", *phases, *named, "-o", path)
    by_names = Problem.load(path).digest
    run("generation", *phases, "-o", path)
    assert Problem.load(path).digest == by_names
    assert "expected OUTPUT=TENSOR" in fails(2, "generation", *phases, "--carry", "x", "-o", path)
    assert "stands for" in fails(2, "generation", *phases, "--carry", "a=b", "--carry", "c=b", "-o", path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--steps", "0"], "steps is 0"),
        (["--decode-on", "gpu0,"], "a name is empty"),
        (["--decode-on", "gpu9"], "no device 'gpu9'"),
    ],
)
def test_wrong_options_are_refused(fails, phases, tmp_path, options, message):
    assert message in fails(2, "generation", *phases, *options, "-o", tmp_path / "generation.json")


def test_wrong_sources_are_refused(fails, phases, tmp_path):
    output = ("-o", tmp_path / "generation.json")
    assert "two problem files" in fails(2, "generation", phases[0], *output)
    assert "no cache could be carried over" in fails(2, "generation", phases[0], phases[0], *output)
    assert "4 are there" in fails(2, "generation", *phases, *phases, *output)
