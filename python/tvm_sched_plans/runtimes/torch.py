"""PyTorch: a script that puts the parts of a model on devices, with copies between them on streams of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tvm_sched_runtime.problem import DecoderConfig

from ..language import Serving, by_layer
from ..places import Machine, Place, device_place, host_place
from ..unit_chain import Chain, segments
from ..unit_model import UnitModel
from .accelerate import modules_of
from .base import GB, Case, PlanRequest, Runtime, Split

_TEMPLATES = Path(__file__).parent


class Torch(Runtime):
    """Submodules of a transformers model, or operators of an exported program."""

    name = "torch"
    title = "PyTorch"
    tried = "torch 2.13.0 with transformers 5.23.0, on CPU devices and `meta`"
    cannot = (
        "the order in which weights are loaded: the script moves them one after another",
        "reads of weights from host memory by a kernel",
        "several streams of one device for kernels: copies alone have streams of their own",
    )
    takes = ("language", "torch")
    overhead = int(0.9 * GB)
    overhead_is = "CUDA context and cuBLAS workspaces (0.6 GB), gaps of PyTorch's allocator (0.3 GB)"
    file = "place_model.py"
    serving = Serving(cache_copied=True, engine="framework")

    def cases(self, request: PlanRequest) -> list[Case]:
        """Return the case of GPUs in any order; if their memory does not suffice, also the case with the CPU."""
        plain = self.on_gpus(request)[0]
        return [plain] if plain.best() is not None else [self._case(request, [host_place(request.topology)])]

    def on_gpus(self, request: PlanRequest) -> list[Case]:
        """Without the CPU."""
        return [self._case(request, [])]

    def _case(self, request: PlanRequest, more: list[Place]) -> Case:
        places = [device_place(device, self.room(request, device)) for device in self.gpus(request)]
        machine = Machine(request.topology, (*places, *more))
        return Case(Chain.of(self._model(request), machine, request.costs), tied=_is_tied(request))

    def _model(self, request: PlanRequest) -> UnitModel:
        if isinstance(request.source, DecoderConfig):
            return by_layer(self.language_model(request))
        return request.operators.units(self.serving.engine)

    def defaults(self, request: PlanRequest, cases: Sequence[Case]) -> list[Split]:
        """Return the usual splits by hand: everything on the first GPU, or equal numbers of layers on all GPUs."""
        case = cases[0]
        units, devices = len(case.chain.model.units), len(self.gpus(request))
        even = tuple(min(u * devices // units, devices - 1) for u in range(units))
        even = (*even[:-1], even[0]) if case.tied else even
        splits = [Split("all on one GPU", case, (0,) * units)]
        return [*splits, Split("equal numbers", case, even)] if devices > 1 else splits

    def settings(self, request: PlanRequest, split: Split) -> dict[str, Any]:
        """Devices as PyTorch calls them, of each module; or of runs of an exported program's operators, by their first."""
        numbers = {device.name: f"cuda:{n}" for n, device in enumerate(self.gpus(request))}
        places = split.case.chain.machine.places
        device = [numbers.get(place.name, "cpu") for place in places]
        units = split.case.chain.model.units
        if isinstance(request.source, DecoderConfig):
            return {
                "modules": {
                    name: device[p]
                    for unit, p in zip(units, split.placement, strict=True)
                    for name in modules_of(request, unit)
                }
            }
        return {"runs": {units[a]: device[p] for p, a, _ in segments(split.placement)}}

    def write(self, request: PlanRequest, split: Split) -> dict[str, str | bytes]:
        """Return a Python module with a function ``place``."""
        settings = self.settings(request, split)
        tables = {"ENVIRONMENT": self.environment(request)}
        if "modules" in settings:
            return {self.file: with_tables("_modules_script.py", {"MODULES": settings["modules"], **tables})}
        return {self.file: with_tables("_program_script.py", {"RUNS": settings["runs"], **tables})}


def _is_tied(request: PlanRequest) -> bool:
    """Return whether embedding and last layer are one parameter of a module, which has one device."""
    return isinstance(request.source, DecoderConfig) and request.source.tied


def with_tables(template: str, tables: Mapping[str, Mapping[str, str]]) -> str:
    """Fill the empty tables of a template, by their names."""
    text = _whole((_TEMPLATES / template).read_text())
    for name, table in tables.items():
        rows = "".join(f"    {key!r}: {value!r},\n" for key, value in table.items())
        empty = f"{name}: dict[str, str] = {{}}\n"
        assert empty in text
        text = text.replace(empty, f"{name}: dict[str, str] = {{\n{rows}}}\n")
    return text


def _whole(script: str) -> str:
    """Return a script with the code that it imports from this package, so that it runs without the package."""
    ours = "from tvm_sched_plans.runtimes._copies_script import copied\n"
    before, import_line, after = script.partition(ours)
    if not import_line:
        return script
    _, _, copies = (_TEMPLATES / "_copies_script.py").read_text().partition("import torch\n\n")
    first = "from __future__ import annotations\n\n"
    before = before.replace(first, f"{first}import os\nimport warnings\n")
    return f"{before}{after.lstrip()}\n\n{copies}\n\ncount_as_planned(ENVIRONMENT)\n"
