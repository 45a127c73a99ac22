"""Greedy text of small random models of each family: token by token what transformers computes in float64."""

import importlib.util
import warnings
from pathlib import Path

import numpy as np
import pytest

from language_truth import check_greedy
from thorough import repeated_here
from tvm_sched.cost_model import CostWarning, get_cost_model
from tvm_sched.relax.passes import LowerToKernels
from tvm_sched.relax.profiling import calibration
from tvm_sched_bench.testing.language_models import VOCAB, configurations, save_model
from tvm_sched_language import GenerationOptions, Generator, compile_language_model, open_language_model
from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.problem import FORBIDDEN, Costs

pytest.importorskip("torch")
pytest.importorskip("transformers")

FAMILIES = tuple(configurations())
QUICK = ("gpt2", "llama3", "gemma2", "mixtral", "qwen2_moe", "gpt_neox")
"""They run all lines: learned positions, scaled rotation, windows, caps, norms behind, experts, parallel layers."""


def compiled(folder, topology="cpu1", scheduler=None, backend=None, cost_model="roofline", **options):
    resident = options.pop("resident", None)
    given = GenerationOptions(**{"context": 256, "pieces": (16, 64), **options})
    settings = {"cost_model": cost_model, "scheduler": scheduler, "backend": backend, "resident": resident}
    return compile_language_model(folder, topology, given, **settings)


def scattered_costs(graph, topology):
    costs = get_cost_model("roofline")(graph, topology)
    shape = costs.operator_ns.shape
    only = np.random.default_rng(3).integers(0, shape[1], shape[0])[:, None] != np.arange(shape[1])
    return Costs(*(np.where(only, FORBIDDEN, times) for times in (costs.operator_ns, costs.direct_ns)), costs.source)


def prompt_of(length, seed=1):
    return np.random.default_rng(seed).integers(3, VOCAB, length).tolist()


@pytest.mark.sampled(3)
@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.thorough) for name in FAMILIES]
)
def test_greedy_tokens_are_those_of_transformers(name, tmp_path):
    folder = save_model(name, tmp_path)
    generator = Generator(compiled(folder).module)
    for length in (1, 5, 16, 40, 100) if repeated_here() else (1, 40):
        prompt = prompt_of(length)
        (text,) = generator.generate([prompt], max_tokens=200 if repeated_here() else 60, stop=())
        assert text.finished in ("length", "context")
        check_greedy(folder, prompt, text.tokens)


@pytest.mark.slow
def test_a_window_keeps_only_what_it_sees_and_gives_the_same(tmp_path):
    folder = save_model("mistral", tmp_path)
    model = compiled(folder, pieces=(16,))
    capacity = next(state["shape"][2] for state in model.module.states() if state["name"] == "values.0")
    assert capacity == 48, "24 positions of the window and 16 of a piece, to whole tiles of 16"
    prompt = prompt_of(70)
    (text,) = Generator(model.module).generate([prompt], max_tokens=100, stop=())
    check_greedy(folder, prompt, text.tokens)


def test_states_are_updated_in_place_and_stored_once(tmp_path):
    folder = save_model("llama", tmp_path)
    model = compiled(folder, pieces=(16,))
    size = 2 * 2 * 2 * 256 * 8 * 4  # layers, keys and values, key heads, positions, width, bytes
    for plan in model.module.plans():
        assert len(plan["states"]) == 4
        assert all(state["in_place"] for state in plan["states"])
        assert plan["devices"][0]["extra_bytes"] == size
    generator = Generator(model.module)
    generator.generate([prompt_of(3)], max_tokens=2, stop=())
    before = generator.module.get_state("values.1")
    assert before[0, :, :4].all(), "a row for each token that was read"
    assert not before[0, :, 4:].any()
    generator.module.run(*(np.array([number], np.int32) for number in (7, 9, 0, 0)))
    after = generator.module.get_state("values.1")
    changed = np.flatnonzero((before != after).any(axis=(0, 1, 3)))
    assert changed.tolist() == [9], "a step writes the row of its position"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(("topology", "backend"), [("cpu2", None), ("v100-server", "emulated")])
def test_several_devices_give_the_same_tokens(topology, backend, tmp_path):
    """Each operator can run on one device, drawn by chance, so that states and rows are read from others."""
    folder = save_model("llama", tmp_path)
    model = compiled(folder, topology, pieces=(16,), scheduler="heft", backend=backend, cost_model=scattered_costs)
    plan = model.module.plans()[0]
    used = {plan["queues"][step["queue"]].get("device") for step in plan["steps"] if step["kind"] == "kernel"}
    assert len(used) > 1
    prompt = prompt_of(21)
    (text,) = Generator(model.module).generate([prompt], max_tokens=20, stop=())
    check_greedy(folder, prompt, text.tokens)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    ("topology", "reads", "writes"), [("cpu2", ("cpu0",), ("cpu1",)), ("v100-server", ("gpu1", "gpu2"), ("gpu3",))]
)
def test_prompts_and_decode_steps_keep_to_their_devices(topology, reads, writes, tmp_path):
    folder = save_model("llama", tmp_path)
    apart = {"prefill_devices": reads, "decode_devices": writes}
    model = compiled(folder, topology, pieces=(16,), scheduler="heft", **apart)
    for plan, allowed in zip(model.module.plans(), (writes, reads), strict=True):
        used = {plan["queues"][step["queue"]]["device"] for step in plan["steps"] if step["kind"] == "kernel"}
        assert {plan["devices"][number]["name"] for number in used} <= set(allowed)
    prompt = prompt_of(21)
    (text,) = Generator(model.module).generate([prompt], max_tokens=3, stop=())
    check_greedy(folder, prompt, text.tokens)
    with pytest.raises(InputError, match="has no device 'gpu9'"):
        compiled(folder, topology, pieces=(16,), decode_devices=("gpu9",))


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_further_run_is_predicted_with_states_and_resident_parameters_on_the_gpu(tmp_path):
    """The emulator takes the times of the plan: a run that loads nothing takes the latency of the schedule."""
    model = compiled(save_model("llama", tmp_path), "v100-server", pieces=(16,), scheduler="heft", resident=1.0)
    generator = Generator(model.module)
    generator.generate([[5]], max_tokens=3, stop=())
    (decode,) = generator.times()
    assert (decode.phase, decode.rows, decode.runs) == ("decode", 1, 3)
    assert decode.seconds == decode.least_seconds == decode.predicted_seconds
    assert decode.predicted_seconds == pytest.approx(model.schedules[0].certificate.latency, rel=1e-12)
    states = {f"{kind}.{layer}" for kind in ("keys", "values") for layer in (0, 1)}
    (request,) = model.schedules[0].certificate.requests
    assert states < set(request.resident), "and all parameters that the decode step reads"
    cold = compiled(tmp_path, "v100-server", pieces=(16,), scheduler="heft")
    (run,) = cold.schedules[0].certificate.requests
    assert set(run.resident) == states
    assert cold.schedules[0].certificate.latency > decode.predicted_seconds


def test_kernels_are_measured_with_typical_positions(tmp_path, monkeypatch):
    """Measuring gives states to kernels that update them; positions and rows are those of a run."""
    seen = []

    def times(module, operators, seconds, samples=None):
        seen.append(samples)
        arguments = [samples[argument["name"]] for argument in module.plans()[0]["arguments"]]
        module.run(*(np.array(values, np.int32) for values in arguments))
        one = np.full((3, len(operators)), 1e-5)
        return calibration.RunTimes(one, one[:, 0], one.sum(axis=1))

    monkeypatch.setattr(calibration, "kernel_times", times)
    monkeypatch.setenv("TVM_SCHED_CACHE", str(tmp_path / "cache"))  # the database of times is the test's own
    with warnings.catch_warnings():
        warnings.simplefilter("error", CostWarning)
        model = compiled(save_model("llama", tmp_path), "cpu2", pieces=(16,), cost_model="calibrated")
    assert [samples["positions"] for samples in seen] == [[128], list(range(16))]
    assert len(np.unique(model.problems[0].costs.operator_ns[1:])) == 1, "alike; the first has the call's time"


def test_gpus_without_our_kernels_are_refused(tmp_path):
    mod = open_language_model(save_model("llama", tmp_path)).import_with({"tokens": (1,), "outputs": (1,)}).mod
    with pytest.raises(InputError, match=r"'language.embedding_0' is of the library 'language' for CPUs, and none of"):
        LowerToKernels(libraries=(), device_kind="cuda")(mod)


def test_weights_of_pytorch_are_read_without_running_code(tmp_path):
    import torch
    from safetensors.torch import load_file

    folder = save_model("gpt2", tmp_path)
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    # Without the prefix of the model with a head, as the first GPT-2 was published.
    torch.save(
        {name.removeprefix("transformer."): value for name, value in weights.items()}, folder / "pytorch_model.bin"
    )
    packed = open_language_model(folder).packed
    np.testing.assert_array_equal(packed.arrays["learned"][0], weights["transformer.wpe.weight"].numpy())

    class Harmful:
        def __reduce__(self):
            return (exec, ("raise SystemExit('code of the file ran')",))

    torch.save({"wte.weight": Harmful()}, folder / "pytorch_model.bin")
    with pytest.raises(InputError, match="no weights can be read from it"):
        open_language_model(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"model_type": "bert"},
            "model_type is 'bert'; allowed are gpt2, llama",
        ),
        ({"hidden_act": "tanh"}, "the activation is 'tanh'; allowed are silu"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "scaled by 'yarn'; allowed are default, linear, llama3"),
        ({"rope_parameters": {"rope_type": "linear"}}, "rotary embedding by 'linear' lacks factor"),
        ({"rms_norm_eps": "small"}, "Expected `float`, got `str` - at `.*norm_eps`"),
        ({"vocab_size": None}, "vocab_size is None; a whole number from 1 is needed"),
    ],
)
def test_what_is_not_known_is_refused(changes, message, tmp_path):
    import json

    config = {**configurations()["llama"].to_dict(), "model_type": "llama", **changes}
    (tmp_path / "config.json").write_text(json.dumps(config, default=str))
    with pytest.raises(InputError, match=message):
        open_language_model(tmp_path)


def test_missing_and_damaged_weights_are_told(tmp_path):
    folder = save_model("llama", tmp_path)
    file = folder / "model.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[:-100])
    with pytest.raises(InputError, match="not a safetensors file that can be read"):
        open_language_model(folder)
    file.unlink()
    with pytest.raises(InputError, match="holds no weights"):
        open_language_model(folder)


def test_options_are_checked():
    for given, message in (
        ({"context": 1}, "context is 1"),
        ({"sequences": 0}, "sequences is 0"),
        ({"pieces": (1,)}, "pieces is"),
        ({"weights": "int3"}, "weights is 'int3'; allowed are float32, bfloat16, int8, int4, int4-zeros"),
    ):
        with pytest.raises(InputError, match=message):
            GenerationOptions(**given)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["IgLM", "IgLM-S"])
def test_trained_weights_give_the_tokens_of_transformers(name):
    """GPT-2s that were trained on antibodies; the package `iglm` has them as pytorch_model.bin."""
    package = importlib.util.find_spec("iglm")
    if package is None:
        pytest.skip("pip install --no-deps iglm brings the weights")
    folder = Path(package.submodule_search_locations[0]) / "trained_models" / name
    generator = Generator(compiled(folder, pieces=(16, 128)).module)
    # [HEAVY] [HUMAN], then the first letters of a heavy chain.
    vocabulary = (folder.parent / "vocab.txt").read_text().split()
    prompt = [vocabulary.index(token) for token in ("[HEAVY]", "[HUMAN]", *"EVQLVESGGGLVQPGGSLRLSCAASGFNIK")]
    (text,) = generator.generate([prompt], max_tokens=200, stop=())
    check_greedy(folder, prompt, text.tokens)
