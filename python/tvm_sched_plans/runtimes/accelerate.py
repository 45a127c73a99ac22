"""Hugging Face accelerate: a device map by module names, with offload to the CPU and to a disk where memory is short."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec

from tvm_sched_runtime.problem import HOST, Device

from ..language import Serving, by_layer
from ..places import DISK_BANDWIDTH, Machine, device_place, host_memory, offload_place
from ..token_workload import FORMATS
from ..unit_chain import Chain, Placement
from .base import GB, Case, PlanRequest, Runtime, Split


class Accelerate(Runtime):
    """`dispatch_model` and `from_pretrained(device_map=...)`."""

    name = "accelerate"
    title = "Hugging Face accelerate"
    tried = "accelerate 1.15.0 with transformers 5.23.0, on CPU devices, `meta`, and with weights on a disk"
    cannot = (
        "the order in which weights are loaded",
        "reads of weights from host memory by a kernel: an offloaded module is copied to its GPU first, and waited for",
        "streams: modules run one after another, copies between GPUs as well",
    )
    overhead = int(0.9 * GB)
    overhead_is = "CUDA context and cuBLAS workspaces (0.6 GB), gaps of PyTorch's allocator (0.3 GB)"
    file = "device_map.json"
    serving = Serving(cache_copied=True, engine="framework")

    def cases(self, request: PlanRequest) -> list[Case]:
        """Return the case with all on GPUs; if that does not fit, also cases that offload as few layers as suffice."""
        devices = self.gpus(request)
        plain = self.on_gpus(request)[0]
        if plain.best() is not None:
            return [plain]
        # accelerate's main device is the first in use; of equal ones the first leaves the most others.
        alike = [msgspec.structs.replace(device, name="x", bus="") for device in devices]
        mains = [m for m in range(len(devices)) if alike[m] not in alike[:m]]
        offloading = [self._offloading(request, plain, devices[m:]) for m in mains]
        return [plain, *(case for case in offloading if case)]

    def on_gpus(self, request: PlanRequest) -> list[Case]:
        """Without offload."""
        model = by_layer(self.language_model(request))
        chain = Chain.of(model, self._machine(request, self.gpus(request)), request.costs)
        return [Case(chain, tied=request.architecture.tied)]

    def _machine(self, request: PlanRequest, devices: Sequence[Device]) -> Machine:
        return Machine(request.topology, tuple(device_place(d, self.room(request, d)) for d in devices))

    def _offloading(self, request: PlanRequest, plain: Case, devices: Sequence[Device]) -> Case | None:
        """Return the case with the fewest offloaded layers that fits; the first device computes these layers."""
        whole = self._with_offload(request, plain, devices)
        chain = plain.chain
        units = len(chain.model.units)
        room = sum(max(self.room(request, device) - int(chain.peak.min()), 0) for device in devices)
        missing = int((chain.weight + chain.cache).sum()) - room
        known: dict[int, Case | None] = {}

        def with_count(count: int) -> Case | None:
            if count not in known:
                known[count] = self._fitting(whole, count)
            return known[count]

        low = max(0, missing // int((chain.weight + chain.cache).max()) - 1)
        step = 1
        while low + step < units and with_count(low + step) is None:
            low, step = low + step, 2 * step
        high = min(low + step, units)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if with_count(middle) else (middle, high)
        return with_count(high)

    def _fitting(self, whole: Case, count: int) -> Case | None:
        """Return the case with at most ``count`` offloaded layers, if some cut of it fits and uses the main device."""
        for largest in sorted({int(weight) for weight in whole.chain.weight}):
            # Of the modules that are brought; verified, since a larger one may be among them.
            case = self._limited(whole, count, largest)
            placement = case.best()
            if placement is not None and whole.chain.fits(placement) and 0 in placement:
                return case
        return None

    def _with_offload(self, request: PlanRequest, plain: Case, devices: Sequence[Device]) -> Case:
        """GPUs, and weights in host memory and on the disk that are brought to the first of them."""
        topology, main = request.topology, devices[0]
        bus = topology.without_storage.route(HOST, topology.device_id[main.name])
        speed = bus.bandwidth if bus else main.memory_bandwidth
        places = [
            *self._machine(request, devices).places,
            offload_place(main, "cpu", host_memory(topology), speed),
            offload_place(main, "disk", 1 << 60, 1 / (1 / speed + 1 / DISK_BANDWIDTH)),
        ]
        return Case(Chain.of(plain.chain.model, Machine(topology, tuple(places)), request.costs), tied=plain.tied)

    def _limited(self, whole: Case, count: int, largest: int) -> Case:
        """Return the case with at most ``count`` offloaded units of ``largest`` bytes, which fit on the main device."""
        chain = whole.chain
        reserve = count * int(chain.cache.max()) + largest
        weights = chain.machine.places[-2].total
        in_host = min(count, weights // max(int(chain.weight.max()), 1))
        places = list(chain.machine.places)
        main = places[0]
        places[0] = device_place(main.device, max(main.device.memory - reserve, 1))
        places[-2] = replace(places[-2], most_units=in_host)
        places[-1] = replace(places[-1], most_units=count - in_host)
        return replace(whole, search=replace(chain, machine=chain.machine.with_places(places)))

    def defaults(self, request: PlanRequest, cases: Sequence[Case]) -> list[Split]:
        """`device_map="auto"`: equal parts by bytes of weights, greedily in order; it knows of no cache."""
        plain = cases[0]
        devices = self.gpus(request)
        case = self._with_offload(request, plain, devices)
        free = [device.memory - _CONTEXT for device in devices]
        placement = automatic_map(request, case.chain, free)
        return [Split('device_map="auto"', case, placement)]

    def settings(self, request: PlanRequest, split: Split) -> dict[str, Any]:
        """Return the device map: module to number of the GPU, ``"cpu"`` or ``"disk"``."""
        numbers = {device.name: n for n, device in enumerate(self.gpus(request))}
        places = split.case.chain.machine.places
        device_map: dict[str, Any] = {}
        for unit, p in zip(split.case.chain.model.units, split.placement, strict=True):
            for name in modules_of(request, unit):
                device_map[name] = numbers.get(places[p].name, places[p].name)
        return {"device_map": device_map}

    def write(self, request: PlanRequest, split: Split) -> dict[str, str | bytes]:
        """Return a JSON object for `from_pretrained(device_map=...)` or `dispatch_model`, and variables to set before."""
        variables = "".join(f"{name}={value}\n" for name, value in self.environment(request).items())
        return {
            self.file: json.dumps(self.settings(request, split)["device_map"], indent=2) + "\n",
            "device_map.env": variables,
        }


_CONTEXT = int(0.5 * GB)
"""Bytes of a GPU that are taken when accelerate asks how much is free: the CUDA context, assumed."""


_GPT2 = {
    "embed": ["transformer.wte", "transformer.wpe", "transformer.drop"],
    "layers": ["transformer.h"],
    "head": ["transformer.ln_f", "lm_head"],
}
_LLAMA = {
    "embed": ["model.embed_tokens", "model.rotary_emb"],
    "layers": ["model.layers"],
    "head": ["model.norm", "lm_head"],
}


def modules_of(request: PlanRequest, unit: str) -> list[str]:
    """Return the names of a unit's modules in transformers."""
    names = _GPT2 if request.architecture.family == "gpt2" else _LLAMA
    return names[unit] if unit in names else [f"{names['layers'][0]}.{int(unit)}"]


def automatic_map(request: PlanRequest, chain: Chain, free: Sequence[int]) -> Placement:
    """Return the result of transformers' ``device_map="auto"``: `get_balanced_memory` and `infer_auto_device_map`.

    Each GPU but the last gets an equal part of the weights, and 1.25 times the largest layer; modules go in order to the
    first device with room, where the first GPU and the CPU keep room for the largest layer to come. Norm and last layer
    are modules of their own there; where they part, the unit is counted where the last layer is.
    """
    weights = [int(w) for w in chain.weight]
    config = request.architecture
    norm = FORMATS["fp32" if request.workload.dtype == "fp32" else "fp16"].size(1, config.hidden)
    norm *= 2 if config.norm == "layer" else 1
    head = 0 if config.tied else weights[-1] - norm
    modules = [*weights[:-1], norm, head]
    limits = [*_balanced(free, sum(modules), max(modules)), chain.machine.places[-2].total]
    used = [0] * len(limits)
    device, assigned = 0, []
    for m, size in enumerate(modules):
        ahead = max(modules[m:])
        while device < len(limits):
            reserved = ahead if device in (0, len(limits) - 1) else 0
            if used[device] + size <= limits[device] - reserved:
                used[device] += size
                break
            device += 1
        assigned.append(device)
    # Tied modules stay together, where the table is.
    assigned[-1] = assigned[0] if config.tied else assigned[-1]
    return (*assigned[:-2], assigned[-1])


def _balanced(free: Sequence[int], total: int, largest: int) -> list[int]:
    if len(free) == 1:
        return [int(free[0] * 0.9)]
    share = total // len(free) + int(1.25 * largest)
    return [*(min(share, memory) for memory in free[:-1]), free[-1]]
