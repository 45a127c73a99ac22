"""What each runtime does by itself, and that plans are read by the runtimes' own code."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from msgspec import structs
from plan_cases import machine
from runtimes_cases import layer_devices, load_script, tiny_model

from tvm_sched_plans import RUNTIMES, Runtime, export_plan, get_runtime, runtime_names
from tvm_sched_plans.language import read_architecture
from tvm_sched_plans.places import group_place
from tvm_sched_plans.runtimes import PlanRequest
from tvm_sched_plans.runtimes.exo import by_memory, smallest_ring
from tvm_sched_plans.runtimes.llama_cpp import FIT_MARGIN, by_fit, by_free_memory
from tvm_sched_plans.runtimes.vllm import even_layers
from tvm_sched_plans.token_workload import TokenWorkload
from tvm_sched_runtime.errors import InfeasibleError, InputError
from tvm_sched_runtime.problem import Switch

GIB = 1 << 30
UNEQUAL = machine(24e9, 16e9, 12e9, speed=(2.0, 1.0, 0.5))


def plan(model, topology, runtime, output=None, **workload):
    return export_plan(model, topology, runtime, output, workload=workload)


def test_there_are_seven_runtimes_that_say_what_they_cannot():
    assert {"accelerate", "exo", "vllm", "llama.cpp", "onnxruntime", "openvino", "torch"} <= set(runtime_names())
    for name in runtime_names():
        runtime = get_runtime(name)
        assert runtime.cannot
        assert re.search(r"\d+\.\d+|\d{4,}", runtime.tried), "the versions it was tried with"
        assert runtime.overhead_is
    with pytest.raises(InputError, match="did you mean 'vllm'"):
        get_runtime("vlm")


def test_a_runtime_of_others_that_lacks_something_is_told_so(monkeypatch):
    class Half(Runtime):
        name = title = tried = overhead_is = "half"
        cannot = takes = ()
        overhead = 0

        def cases(self, request):
            return []

        def settings(self, request, split):
            return {}

    monkeypatch.setitem(RUNTIMES.entries, "half", Half)
    with pytest.raises(InputError, match=r"'half' \(.*Half\) lacks defaults, write, file, which"):
        get_runtime("half")
    monkeypatch.setitem(RUNTIMES.entries, "none", print)
    with pytest.raises(InputError, match=r"not a subclass of tvm_sched_plans\.Runtime"):
        get_runtime("none")


# vLLM


def vllm_indices():
    """vLLM's `get_pp_indices`, without what the engine imports."""
    found = importlib.util.find_spec("vllm")
    if found is None:
        pytest.skip("the package vllm is not installed")
    folder = Path(found.submodule_search_locations[0])
    tree = ast.parse((folder / "distributed" / "utils.py").read_text())
    function = next(n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "get_pp_indices")

    class Envs:
        VLLM_PP_LAYER_PARTITION: str | None = None

    class Logger:
        def info(self, *_):
            pass

    names = {"envs": Envs, "logger": Logger()}
    exec(compile(ast.Module([function], []), "vllm", "exec"), names)
    return names["get_pp_indices"], Envs


def test_vllm_reads_the_layers_of_the_stages(tmp_path):
    indices, envs = vllm_indices()
    made = plan("llama-2-7b", UNEQUAL, "vllm", tmp_path / "vllm.sh", batch=4)
    partition = re.search(r"VLLM_PP_LAYER_PARTITION=(.*)", (tmp_path / "vllm.sh").read_text()).group(1)
    envs.VLLM_PP_LAYER_PARTITION = partition
    stages = made.settings["pipeline_parallel_size"]
    ranges = [indices(32, rank, stages) for rank in range(stages)]
    assert [b - a for a, b in ranges] == made.settings["partition"]
    with pytest.raises(ValueError, match="does not match"):
        indices(33, 0, stages)


def test_even_layers_are_those_of_vllm():
    indices, _ = vllm_indices()
    for layers in (28, 32, 40, 61, 80):
        for stages in range(1, 9):
            expected = [indices(layers, rank, stages) for rank in range(stages)]
            assert even_layers(layers, stages) == [b - a for a, b in expected]


def test_even_layers_by_the_documentation():
    # Layers left over go to the stages before the last, from behind.
    assert even_layers(32, 3) == [11, 11, 10]
    assert even_layers(61, 4) == [15, 15, 16, 15]


def test_vllm_stages_are_of_equal_gpus_that_divide_the_heads(tmp_path):
    made = plan("llama-3-70b", machine(*[40e9] * 8), "vllm", batch=16)
    size, stages = made.settings["tensor_parallel_size"], made.settings["pipeline_parallel_size"]
    assert 64 % size == 0
    assert 8 % size == 0
    assert size * stages == len(made.settings["visible_devices"]) <= 8
    assert len(set(made.settings["visible_devices"])) == size * stages


def test_an_all_reduce_takes_one_step_over_links_if_a_ring_is_slower():
    topology = machine(*[80e9] * 8, bandwidth=25e9)
    names = tuple(device.name for device in topology.devices)
    linked = structs.replace(topology, switches=(Switch("nvlink", names, 450e9, 5e-6),))
    place = group_place(linked, linked.devices, 70e9)
    # One step: 7 x 8,192 bytes at 450 GB/s and 2 latencies of 5 us; a ring: 14 x 4.5 MB and 14 latencies.
    assert place.all_reduce_seconds(8192) == pytest.approx(7 * 8192 / 450e9 + 10e-6)
    assert place.all_reduce_seconds(36_000_000) == pytest.approx(14 * (4_500_000 / 450e9 + 5e-6))
    # Over the buses it is a ring for any size.
    ring = group_place(topology, topology.devices, 70e9)
    route = topology.route(0, 1)
    assert ring.all_reduce_seconds(8192) == pytest.approx(14 * (1024 / route.bandwidth + route.latency))


# llama.cpp


@pytest.mark.parametrize(
    ("model", "memory", "workload"),
    [("llama-3-70b", (24e9, 16e9, 12e9), {"dtype": "q4_0"}), ("llama-3-70b", (16e9, 8e9), {"dtype": "q4_0"}),
     ("llama-2-13b", (8e9, 12e9, 10e9, 6e9), {"dtype": "q8_0"}), ("llama-2-7b", (80e9,), {})],
)  # fmt: skip
def test_llama_cpp_puts_layers_where_the_plan_has_them(model, memory, workload):
    topology = machine(*memory)
    request = PlanRequest(read_architecture(model), topology, TokenWorkload(**workload))
    runtime = get_runtime("llama.cpp")
    case = runtime.cases(request)[0]
    placement = case.best()
    from tvm_sched_plans.runtimes import Split

    settings = runtime.settings(request, Split("ours", case, placement))
    layers = request.architecture.layers
    names = ["CPU", *(f"CUDA{n}" for n in range(len(memory)))]
    found = layer_devices(settings, layers)
    assert found == [names[placement[1 + 2 * i]] for i in range(layers)] + [names[placement[-1]]]
    moved = {}
    for pattern in settings["override_tensor"]:
        expression, _, device = pattern.partition("=")
        moved |= {i: device for i in range(layers) if re.search(expression, f"blk.{i}.ffn_up.weight")}
        assert not any(re.search(expression, f"blk.{i}.attn_q.weight") for i in range(layers))
    assert [moved.get(i, found[i]) for i in range(layers)] == [names[placement[2 + 2 * i]] for i in range(layers)]


def test_split_by_free_memory_is_that_of_llama_cpp():
    for layers, count, free in ((32, 33, [24, 12]), (80, 81, [10, 10, 10]), (80, 60, [3, 5, 7]), (40, 0, [1, 1])):
        placement = by_free_memory(layers, count, free)
        settings = {"n_gpu_layers": count, "tensor_split": free, "device": [f"CUDA{n}" for n in range(len(free))]}
        names = ["CPU", *settings["device"]]
        owners = [names[placement[1 + 2 * i]] for i in range(layers)] + [names[placement[-1]]]
        assert owners == (layer_devices(settings, layers) if count else ["CPU"] * (layers + 1))


def fitted(*memory):
    """Six layers of 1 GB and an output of 2 GB (with the table, which is not counted), on GPUs with so many GB to spare."""
    topology = machine(*(FIT_MARGIN + int(size * 1e9) for size in memory))
    request = PlanRequest(read_architecture("llama-2-7b"), topology, TokenWorkload(context=256))
    case = get_runtime("llama.cpp").cases(request)[0]
    units = case.chain.model.units[:13] + case.chain.model.units[-1:]
    model = replace(case.chain.model, units=units)
    weight = np.array([0, *[5e8] * 12, 2e9], dtype=np.int64)
    none = np.zeros(14, dtype=np.int64)
    return replace(case.chain, model=model, weight=weight, cache=none, peak=none, again={})


@pytest.mark.parametrize(
    ("memory", "owners"),
    [((8,), "1111111"),  # all fits: nothing is changed
     ((5,), "0001111"),  # output and three layers
     ((3, 5), "1112222"), # by free memory four of seven parts are on the second GPU: 3 and 2, which is 5 GB of 5
     ((5, 3), "1111122"),  # by free memory 4.4 of 7 parts are on the first one: layers 0 to 4
     ((5, 2.5), "0111112"),  # the same needs 3 GB of 2.5: the last GPU keeps the output, the first has room for five layers
     ((1, 1), "0000000")],
)  # fmt: skip
def test_fit_is_that_of_llama_cpp(memory, owners):
    placement = by_fit(fitted(*memory))
    layers = [placement[1 + 2 * i] for i in range(6)]
    assert layers == [placement[2 + 2 * i] for i in range(6)], "whole layers"
    assert "".join(map(str, (*layers, placement[-1]))) == owners


def test_llama_cpp_shares_layers_evenly_with_split_mode_tensor():
    made = plan("llama-3-8b", machine(24e9, 24e9, bandwidth=200e9), "llama.cpp", context=1024)
    rival = next(row for row in made.defaults if row.label == "--split-mode tensor")
    # Two GPUs read half of the weights each: faster than layers in turn, so it is the plan, and its script says so.
    assert rival.fits
    assert rival.total_ns == made.ours.total_ns
    assert "--split-mode tensor --tensor-split 1,1 " in made.files["llama.sh"].decode()
    assert made.lower_bound_ns <= made.ours.total_ns
    unequal = plan("llama-3-8b", machine(24e9, 6e9), "llama.cpp", context=1024)
    assert not next(row for row in unequal.defaults if row.label == "--split-mode tensor").fits, (
        "half does not fit in 6 GB"
    )
    three = plan("llama-3-8b", machine(24e9, 24e9, 24e9), "llama.cpp", context=1024)
    assert "--split-mode tensor" not in [row.label for row in three.defaults], "3 does not divide 8 key heads"


def test_layers_by_memory_are_those_of_exo():
    assert by_memory(32, [24, 8]) == [24, 8]
    assert by_memory(10, [5, 3, 3]) == [4, 3, 3]  # 4.55, 2.73 and 2.73: the remainders of the last two are larger
    assert by_memory(6, [100, 1, 1]) == [4, 1, 1]  # 5.88 rounds to 6; the other two take one each from the first
    assert by_memory(2, [1, 1, 1]) == [1, 1]
    assert smallest_ring([24, 16, 12], 20) == (0,)
    assert smallest_ring([12, 16, 24], 38) == (1, 2)
    assert smallest_ring([1, 1], 5) == (0, 1)


def test_exo_has_shards_of_whole_layers():
    made = plan("llama-2-7b", machine(10e9, 10e9, speed=(1.0, 3.0)), "exo", context=512)
    rival, shards = made.defaults[0], json.loads(made.files["exo.json"])["shards"]
    assert rival.label == "layers by available memory"
    assert set(rival.held) == {"gpu0", "gpu1"}
    assert made.lower_bound_ns <= made.ours.total_ns < rival.total_ns
    assert [shard["start_layer"] for shard in shards] == [0, shards[0]["end_layer"]]
    assert shards[-1]["end_layer"] == 32


def test_llama_cpp_reads_the_patterns():
    llama = pytest.importorskip("xllamacpp", reason="xllamacpp, llama.cpp with its own parser, is not installed")
    parameters = llama.CommonParams()
    # Without a GPU it knows of one buffer alone; the pattern is what matters.
    parameters.tensor_buft_overrides = "blk\\.19\\.ffn_.*=CPU,blk\\.3\\.ffn_.*=CPU"
    assert "blk\\.19\\.ffn_.*=CPU" in parameters.tensor_buft_overrides
    with pytest.raises((ValueError, RuntimeError)):
        llama.CommonParams().tensor_buft_overrides = "blk\\.19\\.ffn_.*"


# accelerate


@pytest.mark.parametrize("share", [(1.0, 1.0), (0.3, 0.3, 0.9), (0.55, 0.2, 0.6), (0.4, 0.3)])
def test_the_automatic_map_is_that_of_transformers(tmp_path, share):
    pytest.importorskip("accelerate", reason="the package accelerate is not installed")
    from tvm_sched_plans.runtimes import accelerate as own

    model = tiny_model(tmp_path)
    from transformers.integrations.accelerate import _get_device_map

    total = sum(p.numel() * 4 for p in model.parameters())
    free = [int(total * part) for part in share]
    theirs = _get_device_map(model, "auto", {**dict(enumerate(free)), "cpu": 64 << 30}, None)
    request = PlanRequest(
        read_architecture(tmp_path),
        machine(*[x + own._CONTEXT for x in free]),
        TokenWorkload(dtype="fp32", context=64),
        overhead=0,
    )
    runtime = get_runtime("accelerate")
    split = runtime.defaults(request, runtime.cases(request))[0]
    ours = runtime.settings(request, split)["device_map"]

    def device(name):
        while name not in theirs:
            name = name.rpartition(".")[0]
        return theirs[name]

    checked = [name for name in ours if name not in ("model.norm", "model.rotary_emb")]
    assert {name: ours[name] for name in checked} == {name: device(name) for name in checked}


def test_accelerate_takes_the_map_with_cpu_and_disk(tmp_path):
    torch = pytest.importorskip("torch")
    accelerate = pytest.importorskip("accelerate", reason="the package accelerate is not installed")
    model = tiny_model(tmp_path)
    ids = torch.arange(12).reshape(1, 12)
    with torch.no_grad():
        expected = model(ids).logits
    total = sum(p.numel() * 4 for p in model.parameters())
    path = tmp_path / "device_map.json"
    topology = machine(0.35 * total, 0.35 * total)
    export_plan(tmp_path, topology, "accelerate", path, workload={"dtype": "fp32", "context": 16}, overhead=0)
    planned = json.loads(path.read_text())
    assert set(planned.values()) == {0, 1, "cpu"}
    from accelerate.utils import check_device_map

    check_device_map(model, planned)
    # GPUs stand for CPUs here, and the CPU for a disk, so that offload really happens.
    stand_in = {name: "disk" if device == "cpu" else "cpu" for name, device in planned.items()}
    placed = accelerate.dispatch_model(model, stand_in, main_device="cpu", offload_dir=tmp_path / "disk")
    with torch.no_grad():
        assert torch.equal(placed(ids).logits, expected)


def test_accelerate_puts_on_a_disk_what_host_memory_cannot_hold(tmp_path):
    import msgspec

    topology = msgspec.structs.replace(machine(24e9, 24e9), host_memory=int(30e9))
    made = plan("llama-2-70b", topology, "accelerate", context=1024)
    places = list(made.settings["device_map"].values())
    assert set(places) == {0, 1, "cpu", "disk"}
    assert made.ours.held["cpu"] <= 30e9
    assert made.ours.fits


# PyTorch


def test_the_script_places_a_transformers_model(tmp_path):
    torch = pytest.importorskip("torch")
    model = tiny_model(tmp_path)
    ids = torch.arange(12).reshape(1, 12)
    with torch.no_grad():
        expected = model(ids).logits
    total = sum(p.numel() * 4 for p in model.parameters())
    topology = machine(0.7 * total, 0.7 * total)
    export_plan(
        tmp_path, topology, "torch", tmp_path / "place.py", workload={"dtype": "fp32", "context": 16}, overhead=0
    )
    script = load_script(tmp_path / "place.py")
    assert set(script.MODULES.values()) == {"cuda:0", "cuda:1"}
    everywhere = {"cuda:0": "cpu", "cuda:1": "cpu"}
    with torch.no_grad():
        assert torch.equal(script.place(model, everywhere)(ids).logits, expected)
    # `meta` shows that modules go where the plan has them.
    half = script.place(tiny_model(tmp_path), {"cuda:0": "cpu", "cuda:1": "meta"})
    there = {name: next(half.get_submodule(name).parameters(), None) for name in script.MODULES}
    for name, parameter in there.items():
        if parameter is not None:
            assert (parameter.device.type == "meta") == (script.MODULES[name] == "cuda:1"), name


class Branches:
    """Builds a module with a skip connection and two inputs."""

    def __new__(cls):
        import torch

        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.first, self.second = torch.nn.Linear(32, 64), torch.nn.Linear(64, 64)
                self.last = torch.nn.Linear(128, 8)

            def forward(self, x, scale):
                a = torch.relu(self.first(x))
                b = torch.tanh(self.second(a)) * scale
                left, right = torch.cat([a, b], dim=-1).chunk(2, dim=-1)
                return self.last(torch.cat([right, left], dim=-1)), b

        torch.manual_seed(0)
        return Net().eval()


def test_the_script_places_an_exported_program(tmp_path):
    torch = pytest.importorskip("torch")
    net = Branches()
    inputs = torch.randn(4, 32), torch.tensor(2.0)
    torch.export.save(torch.export.export(net, inputs), tmp_path / "net.pt2")
    made = export_plan(tmp_path / "net.pt2", machine(26_000, 24_000), "torch", tmp_path / "place.py", overhead=0)
    assert len(made.settings["runs"]) >= 2
    assert made.ours.fits
    script = load_script(tmp_path / "place.py")
    program = torch.export.load(tmp_path / "net.pt2")
    placed = script.place(program, dict.fromkeys(("cuda:0", "cuda:1"), "cpu"))
    with torch.no_grad():
        for got, expected in zip(placed(*inputs), net(*inputs), strict=True):
            assert torch.equal(got, expected)
        assert torch.equal(placed(inputs[0], scale=inputs[1])[0], net(*inputs)[0])
    other = torch.export.export(torch.nn.Linear(3, 3), (torch.ones(3),))
    if set(script.RUNS) - {node.name for node in other.module().graph.nodes}:
        with pytest.raises(ValueError, match="made for another one"):
            script.place(other)


# What is given is wrong, or does not fit.


@pytest.mark.parametrize(
    ("model", "topology", "runtime", "said"),
    [("nothing", UNEQUAL, "vllm", "no such file, nor one of the language models gpt2-large"),
     ("llama-2-7b", "cpu2", "vllm", "has no GPU"), ("llama-2-7b", UNEQUAL, "openvino", "planned for an ONNX file"),
     ("llama-2-7b", UNEQUAL, "ollama", "there is no runtime 'ollama'")],
)  # fmt: skip
def test_wrong_input_is_refused(model, topology, runtime, said):
    with pytest.raises(InputError, match=said):
        export_plan(model, topology, runtime)


@pytest.mark.thorough
def test_what_does_not_fit_is_told_what_would():
    with pytest.raises(
        InfeasibleError, match="does not fit on test for vllm: it needs weights 131 GiB, keys"
    ) as raised:
        plan("llama-3-70b", machine(40e9, 40e9), "vllm", context=8192)
    assert re.search(r"no context fits\. no batch fits with context 8192\. (\d) GPUs like 'gpu0'", str(raised.value))
    with pytest.raises(InfeasibleError) as raised:
        plan("llama-2-13b", machine(40e9), "vllm", context=4096, batch=64)
    found = re.search(
        r"context that fits on the GPUs with batch 64 is (\d+)\. the largest batch with context 4096 is (\d+)",
        str(raised.value),
    )
    context, batch = int(found.group(1)), int(found.group(2))
    assert plan("llama-2-13b", machine(40e9), "vllm", context=context, batch=64).ours.fits
    assert plan("llama-2-13b", machine(40e9), "vllm", context=4096, batch=batch).ours.fits
    with pytest.raises(InfeasibleError):
        plan("llama-2-13b", machine(40e9), "vllm", context=4096, batch=batch + 1)


def test_an_overhead_is_left_alone():
    free = export_plan("llama-2-7b", machine(20e9), "torch", overhead=0)
    assert free.ours.limit["gpu0"] == int(20e9)
    tight = export_plan("llama-2-7b", machine(20e9), "torch", overhead=int(2e9))
    assert tight.ours.limit["gpu0"] == int(18e9)
    with pytest.raises(InputError, match="overhead is -1"):
        export_plan("llama-2-7b", machine(20e9), "torch", overhead=-1)
    for given in (None, 900_000_000):
        with pytest.raises(InputError, match="an overhead of 900000000 bytes leaves no memory on any GPU of 'test'"):
            export_plan("llama-2-7b", machine(0.5e9), "torch", overhead=given)
    assert GIB == 2**30
