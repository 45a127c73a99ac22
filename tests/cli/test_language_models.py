"""Language models by name or config.json, in phases, and several models at once."""

import json

import pytest

from tvm_sched.relax.decoders import decoder_variants
from tvm_sched_runtime.problem import Problem

CONFIG = {
    "model_type": "llama", "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 40,
    "intermediate_size": 48,
}  # fmt: skip


@pytest.fixture
def config(tmp_path):
    folder = tmp_path / "tiny-llama"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder / "config.json"


@pytest.mark.thorough  # the layers of the smallest by name take 15 s; a config of few goes the same way
def test_a_model_by_name(run):
    result = run("schedule", "gpt2-large", "--shape", "1x32", "-t", "v100-server", "-s", "single", "--json").json
    assert result["model"] == "gpt2-large-1x32"
    assert sum(lane["bytes"] for lane in result["lanes"] if "down" in lane["lane"]) > 4 * 774e6


def test_phases_of_a_config(run, config, tmp_path):
    problems = {}
    for phase in ("full", "prefill", "decode"):
        path = tmp_path / f"{phase}.json"
        run("problem", config, "--shape", "2x8", "--phase", phase, "-t", "a40x2", "-o", path)
        problems[phase] = Problem.load(path).graph
    cache = {phase: [t for t in g.tensors if "cached" in t.name] for phase, g in problems.items()}
    assert {phase: len(tensors) for phase, tensors in cache.items()} == {"full": 0, "prefill": 0, "decode": 2}
    assert all(t.kind == "parameter" and t.shape == (2, 4, 8, 8) for t in cache["decode"])
    assert {phase: len(graph.outputs) for phase, graph in problems.items()} == {"full": 1, "prefill": 3, "decode": 3}
    assert problems["decode"].name == "tiny-llama-decode-2x8"


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("command", "options", "offered"),
    [
        ("problem", (), False),
        ("problem", ("--rows",), True),
        ("schedule", ("-s", "heft"), False),
        ("schedule", ("-s", "heft", "--rows"), True),
        ("schedule", ("-s", "heft", "--resident", "1"), True),
        ("schedule", ("-s", "heft", "--resident", "1", "--no-rows"), False),
    ],
)
def test_parts_by_rows_are_offered_for_warm_runs(run, config, tmp_path, monkeypatch, command, options, offered):
    monkeypatch.setattr("tvm_sched.relax.variants.row_regions.LEAST_FLOPS", 0)
    monkeypatch.setattr("tvm_sched.relax.variants.row_regions.FLOPS_FOR_A_BYTE_COPIED", 0)
    ways = []

    def noted(*arguments, **named):
        graph, groups = decoder_variants(*arguments, **named)
        ways.extend(way for group in groups for way in group.alternative_names)
        return graph, groups

    monkeypatch.setattr("tvm_sched.relax.decoders.decoder_variants", noted)
    run(command, config, "--shape", "2x8", "-t", "a40x2", *options, "-o", tmp_path / "made.json")
    assert ("batch/2" in ways) == offered


def test_several_models_are_one_problem(run, config, problem_file, tmp_path):
    path = tmp_path / "both.json"
    run("problem", config, config, "--shape", "1x4", "--shape", "2x8", "-t", "a40x2", "-o", path)
    graph = Problem.load(path).graph
    assert [name.split("/")[0] for name in graph.outputs] == ["tiny-llama-1x4", "tiny-llama-2x8"]
    both = run("schedule", problem_file, config, "--shape", "1x4", "-t", "a40x2", "-s", "single", "--json").json
    assert both["model"].endswith("+tiny-llama-1x4")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gpt2-large", "-t", "p4d"], "--shape BATCHxTOKENS stands 0 times for 1 language models"),
        (["gpt2-large", "--shape", "1x", "-t", "p4d"], "or BATCHxTOKENS, e.g. 1x32"),
        (["gpt2-large", "--shape", "1x2000", "-t", "p4d"], "at most 1024"),
        (["gpt2-large", "--shape", "1x32"], "--topology"),
        (["gpt2-large", "--shape", "1x32", "--phase", "train", "-t", "p4d"], "phase is 'train'"),
        (["gpt3", "--shape", "1x32", "-t", "p4d"], "--shape 1x32 is for language models"),
        (["gpt3", "-t", "p4d"], "nor one of the language models gpt2-large"),
    ],
)
def test_what_is_wrong_is_refused(fails, arguments, message):
    assert message in fails(2, "schedule", *arguments)


def test_options_that_fit_no_model_are_refused(fails, config, problem_file):
    assert "--shape 1x4 is for" in fails(2, "schedule", problem_file, "--shape", "1x4")
    assert "--phase is for" in fails(2, "schedule", problem_file, "--phase", "decode")
    assert "--rows is for models" in fails(2, "schedule", problem_file, "-s", "heft", "--rows")
    neither = ("problem", config, "--shape", "1x4", "-t", "a40x2", "-o", config.with_name("p.json"))
    assert "--row-parts is for models" in fails(2, "schedule", problem_file, "-s", "heft", "--row-parts", "2")
    assert "--row-parts 0: a number from 1, or auto, is allowed" in fails(2, *neither, "--row-parts", "0")
    for text in ("1.5", "٣", "9" * 5000):
        assert "a number from 1, or auto, is allowed" in fails(2, *neither, "--row-parts", text)
    assert "cannot be computed in 9 parts by rows" in fails(2, *neither, "--row-parts", "9")
    assert "one of them is allowed" in fails(2, *neither, "--rows", "--no-variants")
    both = ("schedule", problem_file, config, "--shape", "1x4", "--shape", "x:1,2", "-t", "a40x2")
    assert "--shape x:1,2 is for one model" in fails(2, *both)


def test_blocks_of_a_gpu(run, fails, tmp_path):
    config = {
        "model_type": "llama", "num_hidden_layers": 1, "hidden_size": 64, "num_attention_heads": 2, "vocab_size": 100,
        "intermediate_size": 128, "rms_norm_eps": 1e-6,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    problem, schedule = tmp_path / "problem.json", tmp_path / "schedule.json"
    made = ["--shape", "1x8", "--topology", "a40x2", "--costs", "occupancy"]
    assert run("problem", tmp_path / "config.json", *made, "-o", problem).status == 0
    found = run("inspect", problem, "--json").json
    assert found["kind"] == "problem"
    product = found["demands"]["NT_matmul"]
    assert (product["memory_bound"], product["source"]) == (False, "launch")
    assert (
        run("schedule", problem, "-s", "single", "--resident", "1", "--streams", "nimble", "-o", schedule).status == 0
    )
    blocks = run("simulate", problem, schedule, "--resident", "1", "--device-model", "blocks", "--json").json
    operators = run("simulate", problem, schedule, "--resident", "1", "--json").json
    assert blocks["blocks_latency_ns"] >= operators["latency_ns"]
    assert "operators and blocks are allowed" in fails(2, "simulate", problem, schedule, "--device-model", "warps")
