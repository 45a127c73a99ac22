"""The model that Triton's Python backend runs; `tvm_sched_serve.triton_export` writes the files that name it."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tvm_sched_runtime.runtime import load

from .datatypes import Array
from .failures import RequestError
from .served_model import ServedModel

ARTIFACT = "artifact.so"
"""Name of the artifact beside ``model.py``; as ``model.so``, Python would import it in its place."""


class TritonPythonModel:
    """An artifact in a process of Triton's Python backend.

    Triton calls `initialize` once, then `execute` with the requests that it joined. A request that is refused fails alone.
    Tensors go through DLPack: Triton's own conversions to and from NumPy give wrong values with NumPy 2 if the server was
    built for NumPy 1.
    """

    def initialize(self, args: Mapping[str, str]) -> None:
        """Load the artifact of the model's version."""
        self._backend = importlib.import_module("triton_python_backend_utils")
        file = Path(args["model_repository"]) / args["model_version"] / ARTIFACT
        self._configuration = json.loads(args["model_config"])
        threads = self._configuration.get("parameters", {}).get("threads", {}).get("string_value")
        module = load(file, threads=int(threads) if threads else None)
        self._model = ServedModel.of(module, file, args["model_name"], args["model_version"])
        self._joins = bool(self._configuration.get("max_batch_size"))

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Run requests, as one batch if Triton may join them; return an answer for each."""
        answers: list[Any] = [None] * len(requests)
        checked: list[tuple[int, list[Array], int]] = []
        for number, request in enumerate(requests):
            arrays = [
                np.from_dlpack(self._backend.get_input_tensor_by_name(request, tensor.name))
                for tensor in self._model.inputs
            ]
            try:
                checked.append((number, arrays, self._model.check(arrays, self._joins)))
            except RequestError as error:
                answers[number] = self._failed(str(error))
        groups: dict[Any, list[tuple[int, list[Array], int]]] = {}
        for each in checked:
            groups.setdefault(tuple(array.shape[1:] for array in each[1]) if self._joins else each[0], []).append(each)
        for group in groups.values():
            for number, answer in self._run(group):
                answers[number] = answer
        return answers

    def _run(self, group: list[tuple[int, list[Array], int]]) -> list[tuple[int, Any]]:
        try:
            if not self._joins:
                ((number, arrays, _),) = group
                return [(number, self._answer(self._model.run(arrays)))]
            outputs = self._model.run(self._model.join([arrays for _, arrays, _ in group], sum(n for _, _, n in group)))
        except Exception as error:
            return [(number, self._failed(f"the run failed: {error}")) for number, _, _ in group]
        answers, begin = [], 0
        for number, _, rows in group:
            answers.append((number, self._answer([output[begin : begin + rows] for output in outputs])))
            begin += rows
        return answers

    def _answer(self, outputs: Sequence[Array]) -> Any:
        tensors = [
            self._backend.Tensor.from_dlpack(tensor.name, np.ascontiguousarray(value))
            for tensor, value in zip(self._model.outputs, outputs, strict=True)
        ]
        return self._backend.InferenceResponse(output_tensors=tensors)

    def _failed(self, message: str) -> Any:
        return self._backend.InferenceResponse(output_tensors=[], error=self._backend.TritonError(message))
