"""`compile --generate` and `generate`, and the same with the runtime's command."""

import json

import pytest

from cli.conftest import run_command
from tvm_sched_bench.testing.language_models import save_model, save_tokenizer
from tvm_sched_runtime.run_artifact import main as run_artifact

pytest.importorskip("torch")
pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = save_model("llama", tmp_path_factory.mktemp("llama"), vocab_size=259)
    save_tokenizer(made, "{{ messages[0].content }}!")
    return made


@pytest.fixture(scope="module")
def artifact(folder, tmp_path_factory):
    path = tmp_path_factory.mktemp("artifact") / "model.so"
    result = run_command(
        "compile", folder, "--generate", "-t", "cpu2", "--context", 96, "--pieces", "8,32", "--sequences", 2, "--costs",
        "roofline", "-o", path, "--no-cache", "--json",
    )  # fmt: skip
    assert result.status == 0, result.stderr
    assert len(result.json["plans"]) == 4, "one and two rows, and pieces of 8 and 32"
    return path


def test_text_is_printed_as_it_comes_and_as_json(run, artifact):
    options = ("--max-tokens", 12, "--temperature", 0.7, "--top-p", 0.9, "--top-k", 50, "--seed", 1)
    plain = run("generate", artifact, "Once upon", *options)
    found = run("generate", artifact, "Once upon", *options, "--json").json["texts"]
    assert plain.stdout == found[0]["text"] + "\n"
    assert "9 tokens of prompt" in plain.stderr
    several = run("generate", artifact, "Once upon", "a", *options, "--json").json["texts"]
    assert several[0]["tokens"] == found[0]["tokens"]
    assert len(several) == 2
    assert run("generate", artifact, "Once upon", "a", *options).stdout.startswith(f"1: {several[0]['text']}\n2: ")


def test_the_runtime_command_does_the_same(run, artifact, capsys):
    options = ("--max-tokens", "6", "--seed", "1")
    expected = run("generate", artifact, "1,5,9", "--tokens", *options).stdout
    capsys.readouterr()
    assert run_artifact(["generate", str(artifact), "1,5,9", "--tokens", *options]) == 0
    assert capsys.readouterr().out == expected
    assert run_artifact(["generate", str(artifact), "Hi", "--chat", *options, "--json"]) == 0
    (text,) = json.loads(capsys.readouterr().out)["texts"]
    assert text["prompt_tokens"] == 3, "the template adds a letter"
    assert run_artifact(["generate", str(artifact), "", *options]) == 0, "the first token is the model's"
    assert run_artifact(["generate", str(artifact), "x", "--top-p", "2"]) == 2
    assert "top_p is 2.0" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--context", 64), "--context is for language models: give --generate, too"),
        (("--decode-on", "cpu0"), "--decode-on is for language models: give --generate, too"),
        (("--generate", "--shape", "1x8"), "--generate gives the plans and states itself"),
        (("--generate", "--pieces", "a"), "--pieces a: numbers with commas between are allowed"),
        (("--generate", "--weights", "int3"), "weights is 'int3'; allowed are float32"),
    ],
)
def test_wrong_options_of_compile_are_told(folder, tmp_path, arguments, message):
    result = run_command("compile", folder, "-t", "cpu1", "-o", tmp_path / "m.so", *arguments)
    assert result.status == 2
    assert message in " ".join(result.stderr.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("1,x", "--tokens"), "--tokens: a prompt is numbers with commas between"),
        (("1", "--tokens", "--chat"), "--chat is for texts, and --tokens for numbers of tokens"),
        (("x" * 96,), "the prompt has 96 tokens"),
    ],
)
def test_wrong_prompts_are_told(artifact, arguments, message):
    result = run_command("generate", artifact, *arguments)
    assert result.status == 2
    assert message in " ".join(result.stderr.split())


def test_a_pipeline_is_two_artifacts_that_the_cache_keeps(run, fails, folder, artifact, tmp_path, monkeypatch):
    monkeypatch.delenv("TVM_SCHED_NO_CACHE")
    monkeypatch.setenv("TVM_SCHED_CACHE", str(tmp_path / "cache"))
    options = ("--generate", "-t", "cpu2", "--context", 96, "--pieces", "8,32", "--sequences", 2, "--costs", "roofline")
    prompts = ("Once upon", "a", "time", "--max-tokens", 6, "--temperature", 0, "--json")
    expected = [text["tokens"] for text in run("generate", artifact, *prompts).json["texts"]]
    for name in ("first", "kept"):
        output = tmp_path / f"{name}.so"
        compiled = run("compile", folder, *options, "--stages", 2, "--parameters", "external", "-o", output)
        assert ("taken from the cache" in compiled.stderr) == (name == "kept")
        files = [f"{name}.safetensors", f"{name}.so", f"{name}.stage1.safetensors", f"{name}.stage1.so"]
        assert sorted(file.name for file in tmp_path.glob(f"{name}*")) == files
        assert [text["tokens"] for text in run("generate", output, *prompts).json["texts"]] == expected
    message = fails(2, "compile", folder, *options, "--stages", 2, "--decode-on", "cpu0", "-o", output)
    assert "a pipeline's stages have devices of their own" in message


def test_prompts_and_decode_steps_on_different_devices(run, fails, folder, artifact, tmp_path):
    options = ("--generate", "-t", "cpu2", "--context", 96, "--pieces", "8,32", "--costs", "roofline", "--no-cache")
    apart = tmp_path / "apart.so"
    run("compile", folder, *options, "--prefill-on", "cpu0", "--decode-on", "cpu1", "-o", apart)
    found = run("generate", apart, "Once upon", "--max-tokens", 6, "--temperature", 0, "--json").json
    same = run("generate", artifact, "Once upon", "--max-tokens", 6, "--temperature", 0, "--json").json
    assert found["texts"][0]["tokens"] == same["texts"][0]["tokens"]
    times = {(plan["phase"], plan["rows"]): plan for plan in found["plans"]}
    assert times.keys() == {("prompt", 8), ("decode", 1)}
    assert all(
        plan["predicted_seconds"] > 0 and plan["seconds"] >= plan["least_seconds"] > 0 for plan in times.values()
    )
    assert "'cpu2' has no device 'gpu0'" in fails(2, "compile", folder, *options, "--decode-on", "gpu0", "-o", apart)
