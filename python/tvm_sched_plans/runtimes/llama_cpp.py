"""llama.cpp: how many layers are on GPUs, which part on which, and single tensors by patterns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..language import Serving
from ..places import Machine, device_place, group_place, host_place
from ..unit_chain import Chain, Placement
from .base import GB, Case, PlanRequest, Runtime, Split, check_given, given_label, placed_in_turn

_CPU = 0
"""Place of the host in the machine of this runtime."""
FIT_MARGIN = 1 << 30
"""Bytes of each GPU that `--fit` leaves free (the default of `--fit-target`)."""


class LlamaCpp(Runtime):
    """`-ngl`, `--device`, `--tensor-split` and `--override-tensor`."""

    name = "llama.cpp"
    title = "llama.cpp"
    tried = (
        "llama.cpp build 11549 (xllamacpp 2026.10.11549): its parser takes the patterns, and `--tensor-split` is "
        "computed as its `load_tensors` does; blocks as in gguf 0.19.0"
    )
    cannot = (
        "the order in which weights are loaded",
        "reads from host memory by a GPU: what is not on a GPU is computed by the CPU (but for large batches)",
        "streams: layers run one after another",
    )
    overhead = int(0.7 * GB)
    overhead_is = "CUDA context and cuBLAS (0.5 GB), gaps between buffers (0.2 GB)"
    mixtures = True
    file = "llama.sh"
    serving = Serving(chunk=512, cache_block=256, engine=name)

    def cases(self, request: PlanRequest) -> list[Case]:
        """Return the case with the embedding and the remaining layers on the host, then GPUs in any order."""
        return [self._case(request, None)]

    def on_gpus(self, request: PlanRequest) -> list[Case]:
        """Return the case with everything on GPUs except the embedding."""
        return [self._case(request, 1)]

    def _case(self, request: PlanRequest, most_on_host: int | None) -> Case:
        host = replace(host_place(request.topology, "CPU", first=True), most_units=most_on_host)
        gpus = [device_place(device, self.room(request, device)) for device in self.gpus(request)]
        machine = Machine(request.topology, (host, *gpus))
        return Case(Chain.of(self.language_model(request), machine, request.costs))

    def defaults(self, request: PlanRequest, cases: Sequence[Case]) -> list[Split]:
        """Return the splits of all layers and of as many as fit by free memory, `--fit`'s, and `--split-mode tensor`'s.

        `--fit` has a rule of its own for mixtures of experts, which is not known here; they have `--n-cpu-moe` in its place.
        """
        case = cases[0]
        if request.architecture.experts:
            rivals = self._experts_on_host(request, case)
        else:
            rivals = [Split("--fit", case, by_fit(case.chain))]
        return [*self._by_free_memory(request, case), *rivals, *self._tensor_parallel(request)]

    def _experts_on_host(self, request: PlanRequest, case: Case) -> list[Split]:
        """Return `--n-cpu-moe`: all layers by free memory, with the experts of as few first layers on the CPU as fit.

        No split if all experts fit on the GPUs.
        """
        free = [place.total for place in case.chain.machine.places[1:]]
        layers = request.architecture.layers
        placement = list(by_free_memory(layers, layers + 1, free))
        if case.chain.fits(tuple(placement)):
            return []
        for i in range(layers):
            placement[2 + 2 * i] = _CPU
            if case.chain.fits(tuple(placement)):
                break
        return [Split(f"--n-cpu-moe {i + 1}", case, tuple(placement))]

    def _by_free_memory(self, request: PlanRequest, case: Case) -> list[Split]:
        free = [place.total for place in case.chain.machine.places[1:]]
        layers = request.architecture.layers
        every = Split("all layers, by free memory", case, by_free_memory(layers, layers + 1, free))
        if case.chain.fits(every.placement):
            return [every]
        for count in range(layers, -1, -1):
            placement = by_free_memory(layers, count, free)
            if case.chain.fits(placement):
                return [every, Split(f"-ngl {count}, by free memory", case, placement)]
        return [every]

    def _tensor_parallel(self, request: PlanRequest) -> list[Split]:
        """Return `--split-mode tensor`: every GPU has an equal share of each layer, whatever its memory.

        llama.cpp rounds shares to whole heads where the number of GPUs does not divide them; no split is returned then.
        """
        devices, config = self.gpus(request), request.architecture
        if len(devices) == 1 or config.heads % len(devices) or config.key_heads % len(devices):
            return []
        host = host_place(request.topology, "CPU", first=True)
        room, model = min(self.room(request, device) for device in devices), self.language_model(request)
        # Each GPU has all activations, which the group counts once.
        bare = Machine(request.topology, (host, group_place(request.topology, devices, room)))
        chain = Chain.of(model, bare, request.costs)
        apart = int(chain.peak.max()) * (len(devices) - 1) / len(devices)
        group = group_place(request.topology, devices, room - apart)
        chain = replace(chain, machine=bare.with_places((host, group)))
        return [Split("--split-mode tensor", Case(chain), (_CPU, *(1,) * (len(model.units) - 1)))]

    def given(self, request: PlanRequest, cases: Sequence[Case], counts: Sequence[int]) -> Split:
        """Return the split with so many of the last layers on each GPU in turn, the output among them; others on the CPU."""
        layers = request.architecture.layers
        check_given(counts, layers + 1, "layers with the output", len(self.gpus(request)), exact=False)
        on_host = layers + 1 - sum(counts)
        owners = (*(_CPU,) * on_host, *(1 + p for p in placed_in_turn(counts)))
        placement = (_CPU, *(owner for owner in owners[:-1] for _ in range(2)), owners[-1])
        return Split(given_label(counts), cases[0], placement)

    def settings(self, request: PlanRequest, split: Split) -> dict[str, Any]:
        """Return the options' values. A layer is where its attention is; feed-forward networks elsewhere have patterns."""
        numbers = {device.name: n for n, device in enumerate(self.gpus(request))}
        places = split.case.chain.machine.places
        layers = request.architecture.layers
        if len(places[-1].members) > 1:
            every = [f"CUDA{numbers[name]}" for name in places[-1].members]
            shares = {"device": every, "tensor_split": [1] * len(every)}
            return {"n_gpu_layers": layers + 1, "split_mode": "tensor", **shares, "override_tensor": []}
        names = [f"CUDA{numbers[place.name]}" if p != _CPU else "CPU" for p, place in enumerate(places)]
        attention = [split.placement[1 + 2 * i] for i in range(layers)]
        owners = [*attention, split.placement[-1]]
        on_host = sum(p == _CPU for p in owners)
        used = [p for p in dict.fromkeys(split.placement) if p != _CPU]
        networks = [split.placement[2 + 2 * i] for i in range(layers)]
        # A layer's norm and router stay with its attention.
        tensors = "ffn_.*_exps" if request.architecture.experts else "ffn_.*"
        patterns = {
            i: f"blk\\.{i}\\.{tensors}={names[network]}"
            for i, network in enumerate(networks)
            if network != attention[i]
        }
        settings: dict[str, Any] = {
            "n_gpu_layers": layers + 1 - on_host,
            "split_mode": "layer",
            "device": [names[p] for p in used],
            "tensor_split": [sum(owner == p for owner in owners) for p in used],
        }
        if request.architecture.experts:
            # Of the first layers with experts on the CPU: one option says the same as their patterns.
            first = next((i for i, network in enumerate(networks) if network != _CPU), layers)
            settings["n_cpu_moe"] = first if any(i < first for i in patterns) else 0
            patterns = {i: pattern for i, pattern in patterns.items() if i >= first}
        return {**settings, "override_tensor": list(patterns.values())}

    def write(self, request: PlanRequest, split: Split) -> dict[str, str | bytes]:
        """Return a shell script that starts the server."""
        settings = self.settings(request, split)
        workload = request.workload
        options = [f"-ngl {settings['n_gpu_layers']}"]
        if settings["device"]:
            options.append(f"--device {','.join(settings['device'])}")
            options.append(f"--split-mode {settings['split_mode']}")
            options.append(f"--tensor-split {','.join(map(str, settings['tensor_split']))}")
        if settings.get("n_cpu_moe"):
            options.append(f"--n-cpu-moe {settings['n_cpu_moe']}")
        if settings["override_tensor"]:
            options.append(f"--override-tensor '{','.join(settings['override_tensor'])}'")
        # Each of the sequences has this context, and the plan must not be fitted again by llama.cpp.
        options += [
            f"-c {workload.context * workload.batch}",
            f"-np {workload.batch}",
            "-ub 512",
            "-fa on",
            "--fit off",
        ]
        if workload.cache.name in ("q8_0", "q4_0"):
            options.append(f"-ctk {workload.cache.name} -ctv {workload.cache.name}")
        lines = [
            "#!/bin/sh",
            "# Planned by tvm-sched. Usage: sh llama.sh -m MODEL.gguf",
            *(f"export {name}={value}" for name, value in self.environment(request).items()),
            f'exec llama-server {" ".join(options)} "$@"',
        ]
        return {self.file: "\n".join(lines) + "\n"}


def by_free_memory(layers: int, count: int, free: Sequence[int]) -> Placement:
    """llama.cpp's own split (`llama_model::load_tensors`): the last ``count`` layers, the output among them, on GPUs."""
    first = layers + 1 - count
    sums = [sum(free[: d + 1]) / sum(free) for d in range(len(free))]

    def place(layer: int) -> int:
        if layer < first:
            return _CPU
        part = (layer - first) / count
        return 1 + next((d for d, end in enumerate(sums) if end > part), len(free) - 1)

    return (_CPU, *(place(i) for i in range(layers) for _ in range(2)), place(layers))


def by_fit(chain: Chain) -> Placement:
    """Return the placement of llama.cpp's `--fit` for a given context (`common/fit.cpp`).

    It is the split by free memory if that leaves `FIT_MARGIN` free on each GPU. Else whole layers fill the GPUs from the
    last one to the first, each until only the margin is left, and the CPU has the layers that remain. The rates of the
    GPUs have no influence.
    """
    places, units = chain.machine.places, len(chain.model.units)
    targets = [place.total - FIT_MARGIN for place in places]
    layers = (units - 2) // 2
    every = by_free_memory(layers, layers + 1, [place.total for place in places[1:]])
    used = chain.placement_bytes(every)
    if all(used[p] <= targets[p] for p in range(1, len(places))):
        return every
    placement, end = [_CPU] * units, units
    for p in range(len(places) - 1, _CPU, -1):
        start = min((a for a in range(1, end, 2) if chain.segment_bytes[a, end] <= targets[p]), default=end)
        placement[start:end] = [p] * (end - start)
        end = start
    return tuple(placement)
