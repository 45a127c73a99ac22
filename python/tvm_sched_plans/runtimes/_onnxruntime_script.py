"""Runs a plan of tvm-sched for ONNX Runtime: `Plan("onnxruntime_plan.json").run({"input": array})`."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnxruntime


class Plan:
    """Sessions of a plan; ``cpu=True`` runs all of it on the CPU, to try it without GPUs."""

    def __init__(self, path: str | Path, cpu: bool = False) -> None:
        folder = Path(path).parent
        plan = json.loads(Path(path).read_text())
        if not cpu:
            os.environ.update(plan["environment"])  # CUDA then counts the GPUs as the plan does; it reads this once
        parts = [plan] if "model" in plan else plan["runs"]
        self.sessions = [self._session(folder, part, cpu) for part in parts]
        if "model" in plan or not self.sessions:
            self.returned = None
        else:
            later = [{value.name for value in session.get_inputs()} for session in self.sessions]
            every = [value.name for session in self.sessions for value in session.get_outputs()]
            self.returned = [name for name in every if not any(name in names for names in later)]

    @staticmethod
    def _session(folder: Path, part: Mapping[str, Any], cpu: bool) -> Any:
        options = onnxruntime.SessionOptions()
        for key, value in part.get("session_options", {}).items():
            options.add_session_config_entry(key, value)
        providers = [tuple(provider) for provider in part["providers"]]
        if cpu:
            providers = [("CPUExecutionProvider", {})]
        return onnxruntime.InferenceSession(str(folder / part["model"]), options, providers=providers)

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the model's outputs by name; tensors between sessions pass through host memory."""
        values: dict[str, Any] = {name: onnxruntime.OrtValue.ortvalue_from_numpy(each) for name, each in inputs.items()}
        for session in self.sessions:
            binding = session.io_binding()
            for value in session.get_inputs():
                binding.bind_ortvalue_input(value.name, values[value.name])
            names = [value.name for value in session.get_outputs()]
            for name in names:
                binding.bind_output(name, "cpu")
            session.run_with_iobinding(binding)
            values.update(zip(names, binding.get_outputs(), strict=True))
        wanted = [value.name for value in self.sessions[-1].get_outputs()] if self.returned is None else self.returned
        return {name: values[name].numpy() for name in wanted}
