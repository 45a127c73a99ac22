"""The conformance cases of the package onnx, and one case on one system: right, refused, wrong or failed."""

from __future__ import annotations

import hashlib
import re
import warnings
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from tvm_frontends.onnx.widen import WIDER

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator")
TRAINING = ("ai.onnx.preview.training", "ai.onnx.training")
RANDOM = ("Bernoulli", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial")
"""Operators whose values are random: shapes and types are compared."""
OURS, PLAIN, OPEN = "tvm_sched", "TVM", "open"
"""Systems; `OPEN` is ours with a symbol in place of each size of an input."""


@dataclass(frozen=True)
class Case:
    """A model with inputs and the outputs that ONNX's backend test expects of it."""

    name: str
    kind: str
    operator: str
    """``operator`` is the one that the case is for: a case of an operator's expansion counts for the operator."""
    test: Any
    training: bool
    """A case of the training domain, or of the training mode of an operator."""

    @cached_property
    def model(self) -> onnx.ModelProto:
        return self.test.model or onnx.load(f"{self.test.model_dir}/model.onnx")

    @property
    def half(self) -> str:
        """Half by a hash of the name: ``looked-at`` is for writing converters, ``held-out`` is not."""
        return "held-out" if hashlib.sha256(self.name.encode()).digest()[0] % 2 else "looked-at"

    @property
    def sampled(self) -> bool:
        """Whether the test takes the case: one in twenty by a hash of the name."""
        return hashlib.sha256(f"sample of {self.name}".encode()).digest()[0] < 13

    def data(self) -> tuple[list[Any], list[Any]]:
        """Inputs and expected outputs of the first data set."""
        if self.test.data_sets is not None:
            inputs, outputs = self.test.data_sets[0]
            return [_value(v) for v in inputs], [_value(v) for v in outputs]
        folder = f"{self.test.model_dir}/test_data_set_0"
        initial = {tensor.name for tensor in self.model.graph.initializer}
        fed = [item for item in self.model.graph.input if item.name not in initial]
        return (
            [_read(f"{folder}/input_{i}.pb", item.type) for i, item in enumerate(fed)],
            [_read(f"{folder}/output_{i}.pb", item.type) for i, item in enumerate(self.model.graph.output)],
        )

    @cached_property
    def fixed(self) -> bool:
        """Whether all are tensors of numbers whose shapes follow from the inputs' shapes (and constants) alone.

        That is what ONNX's own shape inference finds of the outputs when the shapes that the case states are taken away.
        """
        model = onnx.ModelProto()
        model.CopyFrom(self.model)
        for item in (*model.graph.input, *model.graph.output):
            if not item.type.HasField("tensor_type") or item.type.tensor_type.elem_type == onnx.TensorProto.STRING:
                return False
        for item in model.graph.output:
            item.type.tensor_type.ClearField("shape")
        try:
            inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
        except Exception:
            return False
        return all(
            item.type.tensor_type.HasField("shape")
            and all(d.HasField("dim_value") for d in item.type.tensor_type.shape.dim)
            for item in (*inferred.graph.input, *inferred.graph.output)
        )


def load_cases() -> dict[str, Case]:
    """All cases by name: the generated ones of single operators, and the models that the package ships."""
    from onnx.backend.test.loader import load_model_tests

    cases: dict[str, Case] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tests = [test for kind in KINDS for test in load_model_tests(kind=kind)]
    for test in sorted(tests, key=lambda t: len(t.name)):  # an operator before its expansions
        base = cases.get(re.sub(r"_expanded(_ver\d+)?$", "", test.name))
        model = test.model or onnx.load(f"{test.model_dir}/model.onnx")
        operators = [node.op_type for node in model.graph.node]
        if base is not None:
            operator, training = base.operator, base.training
        else:
            main = [name for name in operators if name != "Constant"] or operators
            operator = main[0] if len(main) == 1 else f"(several: {test.kind})"
            training = any(i.domain in TRAINING for i in model.opset_import) or "training_mode" in test.name
            training = training or test.name.startswith("test_training_")
        cases[test.name] = Case(test.name, test.kind, operator, test, training)
    return dict(sorted(cases.items()))


def run_case(case: Case, system: str) -> dict[str, Any]:
    """Compile and run one case; the answer holds ``status`` and, where it isn't right, ``reason``.

    Statuses are ``right``, ``wrong``, ``refused``, and ``failed`` for ours where it ends with anything but a message. A
    case that asks for inputs as constants is run again with these frozen; ``frozen`` names them then.
    """
    inputs, expected = case.data()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = with_open_sizes(case.model) if system == OPEN else case.model
            found, frozen = (_run_plain if system == PLAIN else _run_ours)(model, inputs)
    except _Refused as error:
        return {"status": "refused", "reason": str(error)}
    answer: dict[str, Any] = {"frozen": frozen} if frozen else {}
    names = {node.op_type for node in case.model.graph.node}
    try:
        _compare(expected, found, case.test, values=not names & set(RANDOM))
    except (AssertionError, TypeError, AttributeError, ValueError, IndexError) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return {**answer, "status": "wrong", "reason": " ".join(lines)[:300]}
    return {**answer, "status": "right"}


class _Refused(Exception):
    """A message to the user, and no result."""


def _run_plain(model: onnx.ModelProto, inputs: list[Any]) -> tuple[list[Any], list[str]]:
    import tvm
    from tvm.relax.frontend.onnx import from_onnx

    try:
        executable = tvm.compile(from_onnx(model, keep_params_in_input=False), target="llvm")
        machine = tvm.relax.VirtualMachine(executable, tvm.cpu())
        return _outputs(model, machine["main"](*(_to_tvm(value) for value in inputs))), []
    except Exception as error:
        raise _Refused(f"{type(error).__name__}: {_line(error)}") from None


def _run_ours(model: onnx.ModelProto, inputs: list[Any]) -> tuple[list[Any], list[str]]:
    from tvm_sched.relax import compile
    from tvm_sched_runtime.errors import TvmSchedError

    given = dict(zip(_fed(model), inputs, strict=False))
    if any(value is None for value in inputs):
        raise _Refused("the case leaves an optional input out, and a compiled model takes all of its inputs")
    frozen: list[str] = []
    while True:
        try:
            compiled = compile(freeze(model, {n: given[n] for n in frozen}), "cpu2", "heft")
            break
        except TvmSchedError as error:
            asked = [
                n
                for n in re.findall(r"(?:--constant '?|computed from ')([^\s=']+)", str(error))
                if n in given and n not in frozen
            ]
            if not asked or not all(isinstance(given[n], np.ndarray) for n in asked):
                raise _Refused(str(error).removeprefix("model: ")) from None
            frozen += asked
    result = compiled.run(*(_to_tvm(_wide(value)) for name, value in given.items() if name not in frozen))
    return _outputs(model, result), frozen


def with_open_sizes(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with a symbol of its own in place of each size of an input, and with no other shapes."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    del result.graph.value_info[:]
    for item in result.graph.input:
        for axis, dim in enumerate(item.type.tensor_type.shape.dim):
            dim.dim_param = f"{item.name}_{axis}"
    for item in result.graph.output:
        if item.type.HasField("tensor_type"):
            item.type.tensor_type.ClearField("shape")
    return result


def freeze(model: onnx.ModelProto, values: dict[str, Any]) -> onnx.ModelProto:
    """Return the model with the inputs of these names as initialisers."""
    if not values:
        return model
    result = onnx.ModelProto()
    result.CopyFrom(model)
    kept = [item for item in result.graph.input if item.name not in values]
    del result.graph.input[:]
    result.graph.input.extend(kept)
    result.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in values.items())
    return result


def _fed(model: onnx.ModelProto) -> list[str]:
    initial = {tensor.name for tensor in model.graph.initializer}
    return [item.name for item in model.graph.input if item.name not in initial]


def _compare(expected: list[Any], found: list[Any], test: Any, values: bool) -> None:
    from onnx.backend.test.runner import Runner

    assert len(found) == len(expected), f"{len(found)} outputs, expected {len(expected)}"
    if not values:
        expected = [np.zeros_like(value) for value in expected]
        found = [np.zeros_like(value) for value in found]
    for wanted, value in zip(expected, found, strict=True):
        rtol = test.rtol
        if getattr(getattr(wanted, "dtype", None), "name", "") in WIDER:
            wanted = _wide(wanted)
            assert value.dtype == wanted.dtype, f"dtype {value.dtype}, expected {wanted.dtype}"
        elif getattr(wanted, "dtype", None) in _SMALL:
            assert value.dtype == wanted.dtype, f"dtype {value.dtype}, expected {wanted.dtype}"
            wanted, value = wanted.astype(np.float32), value.astype(np.float32)
        elif getattr(wanted, "dtype", None) == np.float16:
            rtol = max(rtol, 2**-9)  # two units in the last place, as the runner allows bfloat16
        atol = test.atol
        if getattr(wanted, "dtype", None) == np.float32 and wanted.size:  # nor is a rounding error of the largest value
            largest = np.abs(wanted[np.isfinite(wanted)]).max(initial=0)
            atol = max(atol, 2 * float(np.finfo(np.float32).eps) * float(largest))
        Runner.assert_similar_outputs([wanted], [value], rtol=rtol, atol=atol)


def _small_types() -> set[Any]:
    import ml_dtypes

    names = [n for n in dir(ml_dtypes) if re.match(r"(float[468]_|u?int[24]$)", n)]
    return {np.dtype(getattr(ml_dtypes, name)) for name in names}


_SMALL = _small_types()
"""Types that numpy cannot compare within a tolerance."""


def _outputs(model: onnx.ModelProto, result: Any) -> list[Any]:
    """The results in the order of the model's outputs; one that is a sequence stays a list."""
    result = _to_numpy(result)
    return [result] if len(model.graph.output) == 1 else list(result)


def _to_numpy(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value
    return value.numpy() if hasattr(value, "numpy") else [_to_numpy(part) for part in value]


def _wide(value: Any) -> Any:
    """Types below a byte in those that stand for them, as compiled models take and give them."""
    return (
        value.astype(WIDER[value.dtype.name]) if getattr(getattr(value, "dtype", None), "name", "") in WIDER else value
    )


def _to_tvm(value: Any) -> Any:
    import tvm

    if isinstance(value, (list, tuple)):
        return [_to_tvm(part) for part in value]
    return tvm.runtime.tensor(np.asarray(value))


def _value(value: Any) -> Any:
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    if value is None or isinstance(value, (list, tuple)):
        return value
    return np.asarray(value)


def _read(path: str, kind: onnx.TypeProto) -> Any:
    data = Path(path).read_bytes()
    if kind.HasField("sequence_type"):
        return numpy_helper.to_list(onnx.SequenceProto.FromString(data))
    if kind.HasField("optional_type"):
        return numpy_helper.to_optional(onnx.OptionalProto.FromString(data))
    return numpy_helper.to_array(onnx.TensorProto.FromString(data))


def _line(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [""]
    return lines[-1] if lines[0].startswith("Traceback") else lines[0]
