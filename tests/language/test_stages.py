"""Pipelines of text generation: each stage has some layers, and several runs are on their way at once."""

import threading
from itertools import combinations, pairwise

import numpy as np
import pytest

from language_truth import check_greedy
from tvm_sched_bench.testing.language_models import save_model
from tvm_sched_language import GenerationOptions, Generator, Sampling, compile_language_model, compile_stages
from tvm_sched_language.decoder import even_cuts
from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.runtime import write_parameters

pytest.importorskip("torch")
pytest.importorskip("transformers")

OPTIONS = GenerationOptions(context=64, pieces=(4, 16), sequences=4, stages=2)
PROMPTS = [np.random.default_rng(k).integers(3, 259, length).tolist() for k, length in enumerate((7, 30, 1, 18, 21, 5))]
GREEDY = {"max_tokens": 10, "sampling": Sampling(), "stop": ()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_model("llama", tmp_path_factory.mktemp("folder"), vocab_size=259)


@pytest.fixture(scope="module")
def artifact(folder, tmp_path_factory):
    path = tmp_path_factory.mktemp("artifact") / "model.so"
    written = compile_stages(folder, "cpu2", OPTIONS, cost_model="roofline").export(path)
    assert [file.name for file in written] == ["model.so", "model.stage1.so"]
    return path


@pytest.fixture
def generator(artifact):
    return Generator(artifact)


def test_texts_that_follow_each_other_have_the_tokens_of_transformers(folder, generator):
    for prompt, text in zip(PROMPTS, generator.generate(PROMPTS, **GREEDY), strict=True):
        check_greedy(folder, prompt, text.tokens)
    assert sorted(generator.free_places) == [0, 1, 2, 3]
    assert {(time.phase, time.rows) for time in generator.times()} >= {("decode", 2), ("prompt", 16)}


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_stages_on_emulated_gpus_give_the_tokens_of_transformers(folder):
    compiled = compile_stages(folder, "v100-server", OPTIONS, scheduler="heft", cost_model="roofline", resident=1.0)
    for model, own in zip(compiled.stages, (("gpu1", "gpu2"), ("gpu3", "gpu4")), strict=True):
        for plan in model.module.plans():
            used = {plan["queues"][step["queue"]]["device"] for step in plan["steps"] if step["kind"] == "kernel"}
            assert {plan["devices"][number]["name"] for number in used} <= set(own)
    generator = Generator(compiled.modules)
    for prompt, text in zip(PROMPTS, generator.generate(PROMPTS[:2], **GREEDY), strict=False):
        check_greedy(folder, prompt, text.tokens)
    times = {(time.phase, time.rows): time for time in generator.times()}
    slowest = max(
        entry["latency_ns"]
        for module in compiled.modules
        for entry, plan in zip(module.info()["plans"], module.plans(), strict=True)
        if plan["arguments"][0]["shape"][0] == 1
    )
    assert times["decode", 1].predicted_seconds == pytest.approx(slowest * 1e-9, rel=1e-12)
    assert times["decode", 1].least_seconds == pytest.approx(slowest * 1e-9, rel=1e-12)


def test_a_stage_computes_while_the_next_one_does(generator, monkeypatch):
    """The last stage waits with its first run until the first stage has begun two."""
    first = generator.module
    run, begun, twice = type(first).run, [], threading.Event()

    def watched(module, *arguments):
        if module is first:
            begun.append(arguments)
            if len(begun) == 2:
                twice.set()
        elif not twice.wait(30):
            raise AssertionError("the first stage waited for the last one")
        return run(module, *arguments)

    monkeypatch.setattr(type(first), "run", watched)
    assert len(generator.generate(PROMPTS[:2], **{**GREEDY, "max_tokens": 2})) == 2


def test_a_failed_run_changes_no_text(folder, generator, monkeypatch):
    run, calls = type(generator.module).run, []

    def failing(module, *arguments):
        calls.append(module)
        if len(calls) == 9:
            raise InputError("this run fails")
        return run(module, *arguments)

    monkeypatch.setattr(type(generator.module), "run", failing)
    sequences = [generator.start(prompt, **GREEDY) for prompt in PROMPTS[:3]]
    failures = 0
    while any(not sequence.finished for sequence in sequences):
        try:
            generator.step()
        except InputError as error:
            failures += str(error) == "this run fails"
    assert failures == 1
    for sequence in sequences:
        assert len(sequence.tokens) == GREEDY["max_tokens"]
        check_greedy(folder, sequence.prompt, sequence.tokens)


def test_a_cancelled_text_keeps_its_place_until_its_run_has_ended(folder, generator):
    cancelled, other = (generator.start(prompt, **GREEDY) for prompt in (PROMPTS[1], PROMPTS[0]))
    generator.step()
    assert cancelled.in_flight or other.in_flight
    flying = cancelled if cancelled.in_flight else other
    rest = other if flying is cancelled else cancelled
    generator.cancel(flying)
    assert flying.place not in generator.free_places
    while not rest.finished:
        generator.step()
    assert sorted(generator.free_places) == [0, 1, 2, 3]
    check_greedy(folder, rest.prompt, rest.tokens)
    for prompt, text in zip(PROMPTS, generator.generate(PROMPTS, **GREEDY), strict=True):
        check_greedy(folder, prompt, text.tokens)


def test_other_stages_are_refused(folder, artifact, tmp_path):
    with pytest.raises(
        InputError, match=r"model.stage1.so: is stage 1 of a pipeline with 2; give the path of the first"
    ):
        Generator(artifact.with_name("model.stage1.so"))
    with pytest.raises(InputError, match="is stage 0 of a pipeline with 2; give the modules of all stages in order"):
        Generator(Generator(artifact).module)
    (tmp_path / "model.so").write_bytes(artifact.read_bytes())
    with pytest.raises(InputError, match=r"model.stage1.so: there is no such file"):
        Generator(tmp_path / "model.so")
    longer = GenerationOptions(context=48, pieces=(4, 16), sequences=4, stages=2)
    compile_stages(folder, "cpu2", longer, cost_model="roofline").stages[1].export(tmp_path / "model.stage1.so")
    with pytest.raises(InputError, match="the stages beside it are of another compilation"):
        Generator(tmp_path / "model.so")
    write_parameters(tmp_path / "p.safetensors", {})
    with pytest.raises(InputError, match="parameters of their own"):
        Generator(artifact, tmp_path / "p.safetensors")


def test_wrong_numbers_of_stages_are_refused(folder):
    for topology, stages, message in (
        ("cpu1", 2, r"stages is 2, and the topology has only 1 devices \(cpu0\)"),
        ("cpu4", 3, "stages is 3, and the model has 2 layers; at most 2"),
    ):
        with pytest.raises(InputError, match=message):
            compile_stages(folder, topology, GenerationOptions(stages=stages))
    with pytest.raises(InputError, match="compile_stages compiles pipelines"):
        compile_language_model(folder, "cpu2", OPTIONS)
    with pytest.raises(InputError, match="stages is 0"):
        GenerationOptions(stages=0)
    with pytest.raises(InputError, match="devices of their own"):
        GenerationOptions(stages=2, decode_devices=("cpu0",))


def test_layers_are_cut_with_the_least_largest_stage():
    random = np.random.default_rng(5)
    for count in range(1, 8):
        sizes = random.integers(1, 30, count).tolist()
        for parts in range(1, count + 1):
            ends = [(0, *inner, count) for inner in combinations(range(1, count), parts - 1)]
            best = min(max(sum(sizes[a:b]) for a, b in pairwise(cut)) for cut in ends)
            found = even_cuts(sizes, parts)
            assert [number for part in found for number in part] == list(range(count))
            assert len(found) == parts
            assert max(sum(sizes[number] for number in part) for part in found) == best
