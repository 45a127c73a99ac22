"""vLLM: layers of each pipeline stage, and how many GPUs share each layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tvm_sched_runtime.problem import Device

from ..language import Serving, by_layer
from ..places import Machine, Place, group_place
from ..unit_chain import Chain, segments
from .base import GB, Case, PlanRequest, Runtime, Split, check_given, given_label, placed_in_turn


class Vllm(Runtime):
    """`VLLM_PP_LAYER_PARTITION`, `--pipeline-parallel-size` and `--tensor-parallel-size`."""

    name = "vllm"
    title = "vLLM"
    tried = "vllm 0.32.0: the string is parsed by its `get_pp_indices`; no engine was started, which needs the GPUs"
    cannot = (
        "the order in which weights are loaded, and reads from host memory",
        "layers elsewhere than on GPUs (--cpu-offload-gb moves bytes, not layers of one's choice)",
        "cuts within a layer: the embedding is in the first stage, norm and last layer are in the last one",
        "streams: vLLM has its own for copies between stages",
    )
    overhead = int(1.0 * GB)
    overhead_is = "CUDA context, NCCL and CUDA graphs (1 GB), and what --gpu-memory-utilization 0.92 leaves alone"
    objective = "throughput"
    mixtures = True
    file = "vllm.sh"
    serving = Serving(chunk=2048, cache_block=16)
    utilisation = 0.92

    def room(self, request: PlanRequest, device: Device) -> int:
        """Return the bytes that `--gpu-memory-utilization` allows, without vLLM's own overhead."""
        return self._room(request, device, self._utilisation(request, [device]))

    def _room(self, request: PlanRequest, device: Device, utilisation: float) -> int:
        overhead = self.overhead if request.overhead is None else request.overhead
        return int(request.totals.get(device.name, device.memory) * utilisation) - overhead

    def _utilisation(self, request: PlanRequest, devices: Sequence[Device]) -> float:
        """Return `--gpu-memory-utilization`, a part of the whole memory of each GPU, that is free on all of these."""
        free = min(device.memory / request.totals.get(device.name, device.memory) for device in devices)
        return min(self.utilisation, int(free * 100) / 100)

    def cases(self, request: PlanRequest) -> list[Case]:
        """Return a case for each number of GPUs in a stage that divides the heads, and each number of stages.

        Cases without enough memory are left out, unless all are. Where GPUs have other parts of their memory free, there
        are cases with all GPUs that have at least so much.
        """
        devices = self.gpus(request)
        levels = sorted({self._utilisation(request, [device]) for device in devices}, reverse=True)
        groupings = [
            (groups, stages)
            for level in levels
            for groups in self._groupings(request, [d for d in devices if self._utilisation(request, [d]) >= level])
            for stages in range(1, min(len(groups), request.architecture.layers) + 1)
        ]
        possible = [grouping for grouping in groupings if self._may_fit(request, *grouping)]
        return [self._case(request, *grouping) for grouping in possible or groupings[-1:]]

    def _may_fit(self, request: PlanRequest, groups: Sequence[Sequence[Device]], stages: int) -> bool:
        """Return whether weights and cache alone fit in all."""
        tensors = self.language_model(request).phases[0].graph.tensors
        needed = sum(tensor.size for tensor in tensors if tensor.kind == "parameter")
        used = self._utilisation(request, [device for group in groups for device in group])
        capacities = sorted(
            (len(group) * min(self._room(request, device, used) for device in group) for group in groups), reverse=True
        )
        return sum(capacities[:stages]) >= needed

    def _case(self, request: PlanRequest, groups: Sequence[Sequence[Device]], stages: int) -> Case:
        """Stages of the groups given; a group is as large as its least GPU, and each GPU has all activations."""
        micro_batches = min(stages, request.workload.batch)
        model = by_layer(self.language_model(request, micro_batches), ends=True)
        used = self._utilisation(request, [device for group in groups for device in group])
        bare = Machine(request.topology, tuple(self._place(request, group, 0, used) for group in groups))
        chain = Chain.of(model, bare, request.costs)
        if any(len(group) > 1 for group in groups):
            peak = int(chain.peak.max())
            places = [self._place(request, group, peak, used) for group in groups]
            chain = replace(chain, machine=bare.with_places(places))
        return Case(chain, stages, micro_batches)

    def _place(self, request: PlanRequest, group: Sequence[Device], peak: int, utilisation: float) -> Place:
        count = len(group)
        room = min(self._room(request, device, utilisation) for device in group)
        return group_place(request.topology, group, room - peak * (count - 1) / count)

    def _groupings(self, request: PlanRequest, devices: Sequence[Device]) -> list[list[list[Device]]]:
        """Return the groupings of GPUs that share layers: groups of equal GPUs, or one group of all GPUs."""
        config = request.architecture
        groupings = []
        for size in range(1, len(devices) + 1):
            if any(number % size for number in (config.heads, config.key_heads)):
                continue
            groups = []
            for kind in _kinds(devices):
                groups += [kind[i : i + size] for i in range(0, len(kind) - size + 1, size)]
            if not groups and size == len(devices):
                groups = [list(devices)]
            if groups:
                groupings.append(groups)
        return groupings

    def defaults(self, request: PlanRequest, cases: Sequence[Case]) -> list[Split]:
        """Return the splits with equal numbers of layers on all GPUs and, if the heads divide, all GPUs for each layer."""
        devices = self.gpus(request)
        layers = request.architecture.layers
        config = request.architecture
        splits = []
        if len(devices) <= layers:
            counts = even_layers(layers, len(devices))
            placement = tuple(p for p, count in enumerate(counts) for _ in range(count))
            case = self._case(request, [[device] for device in devices], len(devices))
            splits.append(Split(f"{len(devices)} stages, even layers", case, placement))
        if len(devices) > 1 and not any(number % len(devices) for number in (config.heads, config.key_heads)):
            case = self._case(request, [list(devices)], 1)
            splits.append(Split(f"tensor parallel over {len(devices)}", case, (0,) * layers))
        return splits

    def given(self, request: PlanRequest, cases: Sequence[Case], counts: Sequence[int]) -> Split:
        """Return the split with so many layers in each stage, of one GPU each in the topology's order."""
        devices = self.gpus(request)
        check_given(counts, request.architecture.layers, "layers", len(devices), least=1)
        case = self._case(request, [[device] for device in devices[: len(counts)]], len(counts))
        return Split(given_label(counts), case, placed_in_turn(counts))

    def environment(self, request: PlanRequest) -> dict[str, str]:
        """Return the order of GPUs by PCI address; the script itself chooses them by `CUDA_VISIBLE_DEVICES`."""
        return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}

    def settings(self, request: PlanRequest, split: Split) -> dict[str, Any]:
        """Return the layers of each stage, the sizes, and the order of the GPUs."""
        numbers = self.numbers(request)
        places = split.case.chain.machine.places
        runs = segments(split.placement)
        order = [numbers[name] for p, _, _ in runs for name in places[p].members]
        return {
            "partition": [b - a for _, a, b in runs],
            "pipeline_parallel_size": len(runs),
            "tensor_parallel_size": len(places[runs[0][0]].members),
            "visible_devices": order,
            "gpu_memory_utilization": self._utilisation(request, self._used(request, split)),
        }

    def _used(self, request: PlanRequest, split: Split) -> list[Device]:
        names = {name for p in set(split.placement) for name in split.case.chain.machine.places[p].members}
        return [device for device in self.gpus(request) if device.name in names]

    def write(self, request: PlanRequest, split: Split) -> dict[str, str | bytes]:
        """Return a shell script that starts the server."""
        settings = self.settings(request, split)
        partition = ",".join(map(str, settings["partition"]))
        workload = request.workload
        options = [
            f"--pipeline-parallel-size {settings['pipeline_parallel_size']}",
            f"--tensor-parallel-size {settings['tensor_parallel_size']}",
            f"--max-model-len {workload.context}",
            f"--max-num-seqs {workload.batch}",
            f"--max-num-batched-tokens {max(self.serving.chunk, workload.batch)}",
            f"--gpu-memory-utilization {settings['gpu_memory_utilization']}",
        ]
        dtype = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}.get(workload.dtype)
        options += [f"--dtype {dtype}"] if dtype else []
        options += ["--kv-cache-dtype fp8"] if workload.cache_dtype == "fp8" else []
        lines = [
            "#!/bin/sh",
            "# Layers of each pipeline stage, planned by tvm-sched. Usage: sh vllm.sh MODEL",
            *(f"export {name}={value}" for name, value in self.environment(request).items()),
            f"export CUDA_VISIBLE_DEVICES={','.join(map(str, settings['visible_devices']))}",
            f"export VLLM_PP_LAYER_PARTITION={partition}",
            'exec vllm serve "$@" ' + " ".join(options),
        ]
        return {self.file: "\n".join(lines) + "\n"}


def even_layers(layers: int, stages: int) -> list[int]:
    """Default split of vLLM: equal numbers of layers; remaining ones go to the stages before the last, from behind."""
    counts = [layers // stages] * stages
    for stage in range(layers % stages):
        counts[-2 - stage] += 1
    return counts


def _kinds(devices: Sequence[Device]) -> list[list[Device]]:
    """Devices that differ in nothing but name and bus."""
    kinds: dict[tuple[object, ...], list[Device]] = {}
    for device in devices:
        rates = tuple(sorted(device.peak_flops.items()))
        key = device.memory, device.memory_bandwidth, rates, device.launch_overhead, device.arch
        kinds.setdefault(key, []).append(device)
    return list(kinds.values())
