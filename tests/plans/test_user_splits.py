"""Splits that the user brings, the order of GPUs, memory that is free, and weights that two units share."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace

import msgspec
import pytest
from plan_cases import config_file, machine
from runtimes_cases import layer_devices, load_script, tiny_model

from tvm_sched_plans import export_plan, places
from tvm_sched_runtime.errors import InputError

GB = 10**9
LANGUAGE = ("accelerate", "vllm", "llama.cpp", "torch")


def numbered(topology, *numbers):
    devices = tuple(
        msgspec.structs.replace(device, number=number) for device, number in zip(topology.devices, numbers, strict=True)
    )
    return msgspec.structs.replace(topology, devices=devices)


def changed(topology, **fields):
    devices = tuple(
        msgspec.structs.replace(device, **{name: values[n] for name, values in fields.items()})
        for n, device in enumerate(topology.devices)
    )
    return msgspec.structs.replace(topology, devices=devices)


# Splits that the user brings


@pytest.mark.parametrize("runtime", LANGUAGE)
def test_the_plans_own_split_given_by_hand_has_its_price(runtime):
    topology = machine(24e9, 16e9, speed=(2.0, 1.0))
    layers = 41 if runtime == "llama.cpp" else 40
    counts = [(n, layers - n) for n in (24, 30)]
    made = export_plan("llama-2-13b", topology, runtime, workload={"context": 1024}, given=counts)
    assert [row.label for row in made.given] == [f"given {a},{b}" for a, b in counts]
    for row in made.given:
        assert made.lower_bound_ns <= row.total_ns
        assert row.total_ns >= made.ours.total_ns or not row.fits
        assert set(row.held) == {"gpu0", "gpu1"} | ({"CPU"} if runtime == "llama.cpp" else set())
    key = {"vllm": "partition", "llama.cpp": "tensor_split"}.get(runtime)
    if key and len(made.settings[key]) == 2 and not made.settings.get("override_tensor"):
        again = export_plan("llama-2-13b", topology, runtime, workload={"context": 1024}, given=[made.settings[key]])
        assert again.given[0].total_ns >= again.ours.total_ns


def test_a_given_split_of_llama_cpp_is_counted_as_it_counts():
    topology = machine(24e9, 16e9)
    made = export_plan("llama-2-13b", topology, "llama.cpp", workload={"context": 1024}, given=[(20, 21), (10, 10)])
    all_layers, half = made.given
    by_gpu = [all_layers.held[name] for name in ("gpu0", "gpu1")]
    found = layer_devices({"n_gpu_layers": 41, "tensor_split": [20, 21], "device": ["CUDA0", "CUDA1"]}, 40)
    assert [found.count(device) for device in ("CUDA0", "CUDA1")] == [20, 21]
    assert by_gpu[0] == pytest.approx(20 * by_gpu[0] / 20)
    assert half.held["CPU"] > 3 * all_layers.held["CPU"], "21 layers remain on the CPU"
    assert half.total_ns > all_layers.total_ns


def test_a_given_split_that_does_not_fit_is_priced(tmp_path):
    made = export_plan("llama-2-13b", machine(24e9, 16e9), "torch", workload={"context": 1024}, given=[(0, 40)])
    assert not made.given[0].fits
    assert made.given[0].held["gpu1"] > made.given[0].limit["gpu1"]


@pytest.mark.parametrize(
    ("runtime", "counts", "said"),
    [("vllm", (20, 21), "41 layers; 40 layers in all"), ("vllm", (40, 0), "each 1 or more, are allowed"),
     ("vllm", (10, 10, 20), "1 to 2 numbers for the GPUs"), ("llama.cpp", (20, 22), "at most 41 layers with the output"),
     ("accelerate", (20, 19), "39 layers; 40 layers in all"), ("torch", (), "1 to 2 numbers"),
     ("torch", (-1, 41), "each 0 or more")],
)  # fmt: skip
def test_wrong_splits_are_refused(runtime, counts, said):
    with pytest.raises(InputError, match=said):
        export_plan("llama-2-13b", machine(24e9, 16e9), runtime, workload={"context": 1024}, given=[counts])


# The order of GPUs


@pytest.mark.parametrize("runtime", LANGUAGE)
def test_gpus_are_counted_as_the_topology_counts_them(runtime, tmp_path):
    topology = numbered(machine(24e9, 16e9), 3, 1)
    made = export_plan("llama-2-13b", topology, runtime, tmp_path / "plan", workload={"context": 1024})
    assert made.environment["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    text = "".join(content.decode() for content in made.files.values())
    assert re.search(r"CUDA_DEVICE_ORDER\W+PCI_BUS_ID", text)
    if runtime == "vllm":
        assert set(made.settings["visible_devices"]) == {3, 1}
    else:
        assert re.search(r"CUDA_VISIBLE_DEVICES\W+3,1", text)
    plain = export_plan("llama-2-13b", machine(24e9, 16e9), runtime, workload={"context": 1024})
    if runtime != "vllm":
        assert not any(b"CUDA_VISIBLE_DEVICES" in content for content in plain.files.values())
    assert any("CUDA_DEVICE_ORDER=PCI_BUS_ID" in note for note in plain.notes)


def test_numbers_that_occur_twice_are_refused():
    with pytest.raises(InputError, match=r"numbers \[1, 1\], of which some occur twice"):
        export_plan("llama-2-13b", changed(machine(24e9, 16e9), number=(1, 1)), "vllm", workload={"context": 64})


def test_a_torch_script_sets_the_order_before_cuda_starts(tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    export_plan("llama-2-7b", machine(20e9), "torch", tmp_path / "place.py", workload={"context": 64})
    import os

    load_script(tmp_path / "place.py")
    assert os.environ["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    monkeypatch.delenv("CUDA_DEVICE_ORDER")
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    with pytest.warns(UserWarning, match="CUDA has started.* set CUDA_DEVICE_ORDER=PCI_BUS_ID before"):
        load_script(tmp_path / "place.py")


# Memory that is free


@pytest.mark.parametrize("runtime", LANGUAGE)
def test_a_plan_within_the_free_memory(runtime):
    topology = changed(machine(24e9, 24e9), free_memory=(12 * GB, 24 * GB))
    whole = export_plan("llama-2-7b", topology, runtime, workload={"context": 1024}, overhead=0)
    free = export_plan("llama-2-7b", topology, runtime, workload={"context": 1024}, overhead=0, free=True)
    assert whole.lower_bound_ns <= free.lower_bound_ns
    assert free.ours.limit.get("gpu0", 0) <= 12 * GB
    assert free.ours.fits
    assert any("planned within the memory that is free: gpu0 12 of 24 GB" in note for note in free.notes)


def test_vllm_is_told_the_part_that_is_free_on_all_its_gpus():
    topology = changed(machine(24e9, 24e9), free_memory=(6 * GB, 12 * GB))
    both = export_plan("llama-2-7b", topology, "vllm", workload={"context": 256, "dtype": "int8"}, free=True)
    assert set(both.settings["visible_devices"]) == {0, 1}
    assert both.settings["gpu_memory_utilization"] == 0.25, "of the GPU with less, for all"
    assert sum(both.ours.limit.values()) <= 2 * (0.25 * 24 * GB - GB)
    assert b"--gpu-memory-utilization 0.25" in both.files["vllm.sh"]
    # 13.5 GB do not fit into 2 x 5 GB; the GPU with more is used alone where it is enough.
    one = changed(machine(24e9, 24e9), free_memory=(3 * GB, 18 * GB))
    alone = export_plan("llama-2-7b", one, "vllm", workload={"context": 256}, free=True)
    assert (alone.settings["visible_devices"], alone.settings["gpu_memory_utilization"]) == ([1], 0.75)


def test_free_memory_is_asked_for_where_the_topology_does_not_say(monkeypatch):
    topology = machine(24e9, 24e9)
    here = [SimpleNamespace(memory=24 * GB, free=20 * GB), SimpleNamespace(memory=24 * GB, free=2 * GB)]
    monkeypatch.setattr(places, "record", lambda: SimpleNamespace(gpus=here))
    made = export_plan("llama-2-7b", topology, "torch", workload={"context": 256}, free=True)
    assert set(made.ours.held) == {"gpu0"}
    monkeypatch.setattr(places, "record", lambda: SimpleNamespace(gpus=here[:1]))
    with pytest.raises(InputError, match="its GPUs are not those of this machine"):
        export_plan("llama-2-7b", topology, "torch", workload={"context": 256}, free=True)


# Weights that two units share


@pytest.mark.sampled(3)
@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma", "gpt2"])
@pytest.mark.parametrize("runtime", ["accelerate", "torch"])
def test_tied_modules_have_one_device(tmp_path, family, runtime):
    fields = {"model_type": family, "tie_word_embeddings": True, "vocab_size": 4096, "head_dim": 16}
    if family == "gpt2":
        fields |= {"n_layer": 6, "n_embd": 64, "n_head": 4, "n_positions": 256}
    config_file(tmp_path, **fields)
    total = 4 * 64 * 4096 + 6 * 4 * (64 * 64 * 4 + 3 * 64 * 128)
    for parts in ((0.75, 0.35), (0.35, 0.8), (0.3, 0.75, 0.3)):
        memory = [part * total for part in parts]
        made = export_plan(
            tmp_path, machine(*memory), runtime, workload={"dtype": "fp32", "context": 16}, overhead=0,
        )  # fmt: skip
        modules = made.settings["device_map" if runtime == "accelerate" else "modules"]
        table, head = ("transformer.wte" if family == "gpt2" else "model.embed_tokens"), "lm_head"
        assert modules[table] == modules[head]
        assert made.ours.fits
        assert all(row.fits or row.label for row in made.defaults)


@pytest.mark.parametrize("runtime", ["vllm", "llama.cpp"])
def test_tied_weights_that_two_places_have_count_twice(tmp_path, runtime):
    held = {}
    for tied in (False, True):
        config_file(tmp_path, tie_word_embeddings=tied, vocab_size=4096)
        given = [(3, 3)] if runtime == "vllm" else [(3, 4)]
        made = export_plan(
            tmp_path, machine(4e9, 4e9), runtime, workload={"dtype": "fp16", "context": 16}, overhead=0, given=given
        )
        held[tied] = made.given[0].held
    assert held[True] == held[False], "the table and the last layer are on different places"


def test_gemma_is_tied_unless_it_says_otherwise(tmp_path):
    from tvm_sched_plans.language import read_architecture

    fields = json.loads(config_file(tmp_path, model_type="gemma").read_text())
    del fields["tie_word_embeddings"]
    (tmp_path / "config.json").write_text(json.dumps(fields))
    assert read_architecture(tmp_path).tied
    (tmp_path / "config.json").write_text(json.dumps({**fields, "tie_word_embeddings": False}))
    assert not read_architecture(tmp_path).tied


def test_a_tied_transformers_model_runs_as_placed(tmp_path):
    torch = pytest.importorskip("torch")
    for family in ("llama", "gemma"):
        model = tiny_model(tmp_path, model_type=family, tie_word_embeddings=True)
        ids = torch.arange(12).reshape(1, 12)
        with torch.no_grad():
            expected = model(ids).logits
        total = sum(p.numel() * 4 for p in model.parameters())
        export_plan(
            tmp_path, machine(0.7 * total, 0.7 * total), "torch", tmp_path / "place.py",
            workload={"dtype": "fp32", "context": 16}, overhead=0,
        )  # fmt: skip
        script = load_script(tmp_path / "place.py")
        assert set(script.MODULES.values()) == {"cuda:0", "cuda:1"}
        placed = script.place(model, {"cuda:0": "cpu", "cuda:1": "cpu"})
        assert placed.get_output_embeddings().weight is placed.get_input_embeddings().weight
        with torch.no_grad():
            assert torch.equal(placed(ids).logits, expected)
