"""Cases of PyTorch's own operator database (`OpInfo`), exported, compiled here and compared with torch."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

TOLERANCE = {"float64": 1e-5, "float32": 1e-5, "float16": 4e-3}
"""Largest difference relative to the largest magnitude of a result, beside what torch itself errs by."""
UNFIT = ("empty", "new_empty", "hash_tensor", "jiterator", "to_sparse", "sparse", "resize_", "tensor_split_out")
"""Beginnings of names of operators whose values mean nothing, that are for GPUs alone, or are not of dense tensors."""


@dataclass(frozen=True)
class Case:
    """An operator of the database with samples of one type."""

    index: int
    dtype: str

    @property
    def operator(self) -> str:
        info = op_db[self.index]
        return f"{info.name}.{info.variant_test_name}" if info.variant_test_name else str(info.name)

    @property
    def name(self) -> str:
        return f"{self.operator} {self.dtype}"


class Call(torch.nn.Module):
    """A call of an operator as a module: tensors among the arguments are its inputs, all else is constant."""

    def __init__(self, operator: Callable[..., Any], arguments: Any) -> None:
        super().__init__()
        self.operator = operator
        leaves, self.tree = pytree.tree_flatten(arguments)
        self.constants = [None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        self.places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        self.inputs = tuple(leaves[i] for i in self.places)

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        leaves = list(self.constants)
        for place, tensor in zip(self.places, tensors, strict=True):
            leaves[place] = tensor
        arguments, keywords = pytree.tree_unflatten(leaves, self.tree)
        results = pytree.tree_leaves(self.operator(*arguments, **keywords))
        return tuple(result for result in results if isinstance(result, torch.Tensor))

    def __repr__(self) -> str:
        shapes = ", ".join(f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}" for t in self.inputs)
        return f"({shapes}; constants {[c for i, c in enumerate(self.constants) if i not in self.places]})"


def load_cases(dtypes: tuple[str, ...]) -> list[Case]:
    """Return all operators of the database, each with the types that torch supports on a CPU."""
    fit = [i for i, info in enumerate(op_db) if not info.name.startswith(UNFIT)]
    return [
        Case(i, dtype) for i in fit for dtype in dtypes if getattr(torch, dtype) in op_db[i].supported_dtypes("cpu")
    ]


def run_case(case: Case, most: int, target: str) -> dict[str, list[str]]:
    """Judge up to ``most`` samples, evenly spread over the database's; return reasons by verdict."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    np.random.seed(0)  # samples of the database draw from it
    info = op_db[case.index]
    verdicts: dict[str, list[str]] = {}
    for call in _spread([Call(info.op, (s.args_with_input(), s.kwargs)) for s in _samples(info, case.dtype)], most):
        verdict, why = judge(call, target)
        verdicts.setdefault(verdict, []).append(f"{call!r}: {why}" if why else "")
    return verdicts


class _Sample:
    def __init__(self, sample: Any) -> None:
        self.input, self.args, self.kwargs = sample.input, sample.args, sample.kwargs

    def args_with_input(self) -> tuple[Any, ...]:
        return (self.input, *self.args)


def _samples(info: Any, dtype: str) -> list[_Sample]:
    return [_Sample(s) for s in info.sample_inputs("cpu", getattr(torch, dtype), requires_grad=False)]


def _spread(items: list[Any], most: int) -> list[Any]:
    if len(items) <= most:
        return items
    return [items[round(i * (len(items) - 1) / max(1, most - 1))] for i in range(most)]


def judge(call: Call, target: str) -> tuple[str, str]:
    """``right``, ``wrong``, ``refused``, ``failed``, or ``no case`` (not exported, random, complex …), and why."""
    from tvm_sched.relax import compile
    from tvm_sched_runtime.errors import TvmSchedError

    if unfit := _unfit(call):
        return "no case", unfit
    inputs = call.inputs
    try:
        wanted = call(*_copies(inputs))
        again = call(*_copies(inputs))
        program = torch.export.export(call, _copies(inputs))
    except Exception as error:
        return "no case", f"torch.export: {type(error).__name__}: {str(error).strip().partition(chr(10))[0][:200]}"
    if not wanted:
        return "no case", "no tensor comes out"
    if any(result.is_complex() or result.layout != torch.strided for result in wanted):
        return "no case", "complex or sparse result"
    if any(not torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(wanted, again, strict=True)):
        return "no case", "random"
    try:
        result = compile(program, target, "heft", cost_model="roofline").run(*[t.numpy() for t in inputs])
    except TvmSchedError as error:
        return "refused", str(error)
    except Exception as error:
        return "failed", f"{type(error).__module__}.{type(error).__qualname__}: {error}"
    results = result if isinstance(result, list) else [result]
    told = difference(call, wanted, results)
    return ("wrong", told) if told else ("right", "")


def _unfit(call: Call) -> str:
    for tensor in call.inputs:
        if tensor.is_complex() or tensor.layout != torch.strided:
            return "complex or sparse input"
        if tensor.dtype == torch.bfloat16:
            return "bfloat16"
    return "" if call.inputs else "no tensor goes in"


def _copies(tensors: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return tuple(tensor.detach().clone() for tensor in tensors)


def difference(call: Call, wanted: tuple[torch.Tensor, ...], results: list[Any]) -> str:
    """Describe what is wrong in the results; empty if nothing is."""
    if len(results) != len(wanted):
        return f"{len(results)} results, not {len(wanted)}"
    exact = _in_double(call)
    for number, (right, value) in enumerate(zip(wanted, results, strict=True)):
        dtype = str(right.dtype).removeprefix("torch.")
        if value.dtype.name != dtype or value.shape != tuple(right.shape):
            return f"result {number} is {value.dtype}{list(value.shape)}, not {dtype}{list(right.shape)}"
        if not right.is_floating_point():
            if not np.array_equal(value, right.numpy()):
                return f"result {number} differs in {int((value != right.numpy()).sum())} of {right.numel()} elements"
            continue
        a, b = value.astype(np.float64), right.to(torch.float64).numpy()
        finite = np.isfinite(b)
        scale = float(np.abs(b[finite]).max(initial=0.0))
        slack = TOLERANCE.get(dtype, 0.02) * max(1.0, scale)
        if exact is not None and exact[number].shape == b.shape:
            with np.errstate(invalid="ignore"):
                slack += 4 * float(np.abs((exact[number] - b)[finite]).max(initial=0.0))
        if not np.allclose(a, b, rtol=0, atol=slack, equal_nan=True):
            with np.errstate(invalid="ignore"):
                worst = float(np.nanmax(np.abs(a - b), initial=0.0))
            return f"result {number} differs by {worst:.3g} at a scale of {scale:.3g}"
    return ""


def _in_double(call: Call) -> list[Any] | None:
    """Compute torch's results in float64 to know its own rounding; None if torch cannot."""
    inputs = tuple(t.double() if t.is_floating_point() else t.clone() for t in call.inputs)
    try:
        return [result.to(torch.float64).numpy() for result in call(*inputs)]
    except Exception:
        return None
