"""Kernels of language models on GPUs: claims of what `tvm_sched_language` calls, and CUDA source (`language.cuh`)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import prod
from typing import Any

import tvm
from tvm import relax

from ....ir.tensor_types import dtype_of, static_shape
from ..kernel_library import KERNELS, KernelSet
from .attention_source import describe_launch

HEADER = "language.cuh"
KIND = "language"
_LIBRARY = "language"
"""Name of the library for CPUs whose kernels these are."""
_FORMATS = {"float32": "Float32", "bfloat16": "Bfloat16", "int8": "Int8", "int4": "Int4", "int4-zeros": "Int4"}
_OPERANDS = {"float32": 1, "bfloat16": 1, "int8": 2, "int4": 2, "int4-zeros": 3}
_ACTIVATIONS = {"none": "kNone", "silu": "kSilu", "gelu": "kGelu", "gelu_tanh": "kGeluTanh", "relu": "kRelu"}
_THREADS, _TILE, _ROWS = 256, 16, 16
"""Threads of a block, outputs of a tile of weights, rows of float32 that a block multiplies with a tile."""
_MOST_ROWS, _FEW_BLOCKS = 128, 128
"""Most rows for which tensor cores read a weight once, and how many blocks occupy a GPU."""
_CHOOSERS = 1024
"""Threads that choose the token of a row."""
_POSITIONS, _MOST_PARTS = 1024, 16
"""Positions of a sequence for each block that shares them, and most such blocks."""


def claim_language_kernels(mod: tvm.IRModule, kernels: KernelSet, settings: Mapping[str, Any]) -> None:
    """Take the kernels of a language model's module for GPUs: the same functions with another library."""
    documents = mod.attrs[KERNELS] if mod.attrs and KERNELS in mod.attrs else {}
    for block in mod["main"].body.blocks:
        for binding in block.bindings:
            call = binding.value
            if not isinstance(call, relax.Call) or call.op != tvm.ir.Op.get("relax.call_dps_packed"):
                continue
            name = str(call.args[0].global_symbol)
            content = json.loads(str(documents[name])) if name in documents else {}
            if content.get("library") != _LIBRARY:
                continue
            about = content["kernel"]
            tensors = [*call.args[1].fields, *_results(binding.var)]
            shapes = [static_shape(tensor) for tensor in tensors]
            kernel = {**about, "kind": KIND, "does": about["kind"], "shapes": shapes, **settings}
            kernel["dtypes"] = [dtype_of(tensor) for tensor in tensors]
            kernels.documents[name] = json.dumps({**content, "library": kernels.library, "kernel": kernel})


def _results(variable: Any) -> list[Any]:
    return list(variable.ty.fields) if isinstance(variable.ty, relax.TupleType) else [variable]


def render(symbol: str, kernel: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the source of a kernel, and its launches for ``cpp/kernels/cuda/image.h``."""
    return _Source(symbol, kernel).made()


class _Source:
    """The source and the launches of one function; its tensors are ``t0``, ``t1``, ..., inputs first."""

    def __init__(self, symbol: str, kernel: Mapping[str, Any]) -> None:
        self.symbol, self.about, self.shapes, self.dtypes = symbol, kernel, kernel["shapes"], kernel["dtypes"]
        self.lines: list[str] = []
        self.launches: list[dict[str, Any]] = []
        self.workspaces: list[int] = []

    def made(self) -> tuple[str, dict[str, Any]]:
        getattr(self, f"_{self.about['does']}")()
        function = {"tensors": len(self.shapes), "workspaces": self.workspaces, "launches": self.launches}
        return "\n".join(self.lines) + "\n", function

    def _launch(self, call: str, grid: tuple[int, ...], used: list[str], threads: int = _THREADS) -> None:
        """Add a kernel of one statement that reads the tensors ``t3`` and workspaces ``w0`` in ``used``."""
        name = f"{self.symbol}_{len(self.launches)}"
        pointers = [["tensor" if each[0] == "t" else "workspace", int(each[1:])] for each in used]
        given = ", ".join(f"{self._type(each)}* {each}" for each in used)
        self.lines += [
            f'extern "C" __global__ void __launch_bounds__({threads}) {name}({given}) {{',
            f"  using namespace tvm_sched::language;\n  {call};\n}}",
        ]
        self.launches.append(describe_launch(name, [*grid, *[1] * (3 - len(grid))], threads, pointers))

    def _type(self, tensor: str) -> str:
        """Return the C++ type of a tensor's or workspace's elements; the first workspace of experts holds their numbers."""
        if tensor[0] == "w":
            return "int" if tensor == "w0" and self.about["does"] == "experts" else "float"
        return {"float32": "float", "int32": "int", "uint16": "unsigned short", "uint8": "unsigned char",
                "int8": "signed char", "float64": "double"}[self.dtypes[int(tensor[1:])]]  # fmt: skip

    def _shape(self, types: Mapping[str, str] | None = None, **numbers: Any) -> str:
        """Add the struct of constants that a kernel takes; return its name."""
        members = [f"  using {name} = tvm_sched::language::{value};" for name, value in (types or {}).items()]
        for name, value in numbers.items():
            kind = "bool" if isinstance(value, bool) else "float" if isinstance(value, float) else "int"
            if isinstance(value, str):
                kind, value = "tvm_sched::language::Activation", f"tvm_sched::language::{value}"
            text = f"{value!r}f" if kind == "float" else str(value).lower() if kind == "bool" else str(value)
            members.append(f"  static constexpr {kind} {name} = {text};")
        name = f"{self.symbol}_shape"
        self.lines += [f"struct {name} {{", *members, "};"]
        return name

    def _weights(self, first: int) -> tuple[str, list[str]]:
        """Return an expression for packed weights of which ``first`` is the first tensor, and their tensors."""
        used = [f"t{first + k}" for k in range(_OPERANDS[self.about["format"]])]
        tiles, scales, zeros = [*used, "nullptr", "nullptr"][:3]
        return f"Weights{{reinterpret_cast<const unsigned*>({tiles}), {scales}, {zeros}}}", used

    @property
    def _format(self) -> dict[str, str]:
        return {"Format": _FORMATS[self.about["format"]]}

    @property
    def _last(self) -> int:
        return len(self.shapes) - 1

    def _linear(self) -> None:
        about, rows = self.about, self.shapes[0][0]
        weights, used = self._weights(1)
        more = [f"t{1 + len(used) + k}" for k in range(about["bias"] + about["residual"])]
        bias = more[0] if about["bias"] else "nullptr"
        residual = more[-1] if about["residual"] else "nullptr"
        dense = rows > 1 and about["format"] != "float32"  # tensor cores would round weights of float32
        tiles, at_once = 1, min(rows, _ROWS)
        if dense:
            at_once = next(n for n in (16, 32, 64, _MOST_ROWS) if n >= min(rows, _MOST_ROWS))
            blocks = -(-rows // at_once) * -(-about["columns"] // (4 * _TILE))
            tiles = 4 if blocks >= _FEW_BLOCKS else 2
        shape = self._shape(
            self._format,
            terms=about["terms"],
            columns=about["columns"],
            rows=rows,
            at_once=at_once,
            tiles=tiles,
            activation=_ACTIVATIONS[about["activation"]],
            cap=float(about["cap"]),
        )
        result = f"t{self._last}"
        call = f"linear{'_of_rows' if dense else ''}<{shape}>(t0, {weights}, {bias}, {residual}, {result})"
        grid = -(-rows // at_once), -(-about["columns"] // (tiles * _TILE))
        self._launch(call, grid, ["t0", *used, *more, result])

    def _experts(self) -> None:
        about, rows, chosen = self.about, self.shapes[0][0], self.about["chosen"]
        hidden, inner, choices = about["hidden"], about["inner"], self.shapes[0][0] * self.about["chosen"]
        up, of_up = self._weights(2)
        down, of_down = self._weights(2 + len(of_up))
        shape = self._shape(self._format, hidden=hidden, inner=inner, chosen=chosen)
        self.workspaces = [4 * choices, 4 * choices, 4 * choices * 2 * inner, 4 * choices * inner]
        normalize = str(about["normalize"]).lower()
        self._launch(
            f"choose_experts<{about['experts']}, {chosen}, {normalize}>(t1, w0, w1)", (rows,), ["t1", "w0", "w1"], 32
        )
        self._launch(
            f"open_experts<{shape}>(t0, {up}, w0, w2)", (choices, -(-2 * inner // _TILE)), ["t0", *of_up, "w0", "w2"]
        )
        self._launch(f"gate<{inner}, {_ACTIVATIONS[about['activation']]}>(w2, w3)", (choices,), ["w2", "w3"])
        residual, result = f"t{self._last - 1}", f"t{self._last}"
        self._launch(
            f"close_experts<{shape}>(w3, {down}, w0, w1, {residual}, {result})",
            (rows, -(-hidden // _TILE)),
            ["w3", *of_down, "w0", "w1", residual, result],
        )

    def _embedding(self) -> None:
        about = self.about
        table, used = self._weights(1)
        learned = [f"t{1 + len(used)}", f"t{2 + len(used)}"] if about["positions"] else []
        places = self.shapes[2 + len(used)][0] if learned else 0
        shape = self._shape(
            self._format,
            hidden=about["hidden"],
            vocab=about["vocab"],
            positions=places,
            offset=about["offset"],
            scale=float(about["scale"]),
        )
        result = f"t{self._last}"
        call = f"embed<{shape}>(t0, {table}, {', '.join(learned or ['nullptr', 'nullptr'])}, {result})"
        self._launch(call, (self.shapes[0][0],), ["t0", *used, *learned, result])

    def _choose(self) -> None:
        rows, vocab = self.shapes[0]
        self._launch(f"choose_tokens<{vocab}>(t0, t1, t2)", (rows,), ["t0", "t1", "t2"], _CHOOSERS)

    def _rows(self) -> None:
        rows, width = self.shapes[0]
        self._launch(f"take_rows<{width}, {rows}>(t0, t1, t2)", (self.shapes[1][0],), ["t0", "t1", "t2"])

    def _add(self) -> None:
        used, count = [f"t{k}" for k in range(len(self.shapes))], prod(self.shapes[-1])
        self._launch(f"add<{count}>({used[-1]}, {', '.join(used[:-1])})", (-(-count // _THREADS),), used)

    def _join(self) -> None:
        (rows, columns), first, result = self.shapes[-1], 0, f"t{self._last}"
        for k, (_, width) in enumerate(self.shapes[:-1]):
            self._launch(f"put_columns<{width}, {first}, {columns}>(t{k}, {result})", (rows,), [f"t{k}", result])
            first += width

    def _norm(self) -> None:
        about, (rows, width) = self.about, self.shapes[0]
        used = [f"t{k}" for k in range(len(self.shapes))]
        bias = "t2" if about["bias"] else "nullptr"
        residual = used[-2] if about["residual"] else "nullptr"
        flags = [str(flag).lower() for flag in (about["norm"] == "layer", about["bias"])]
        call = f"normalise_and_add<{width}, {', '.join(flags)}>"
        epsilon = f"static_cast<float>({about['epsilon']!r})"
        self._launch(f"{call}(t0, t1, {bias}, {residual}, {used[-1]}, {epsilon})", (rows,), used)

    def _gate(self) -> None:
        rows, width = self.shapes[-1]
        if self.about["scalar"]:
            self._launch(f"add_with_gate<{width}>(t0, t1, t2, t3)", (rows,), ["t0", "t1", "t2", "t3"])
        else:
            call = f"gate<{width}, {_ACTIVATIONS[self.about['activation']]}>(t0, t1)"
            self._launch(call, (rows,), ["t0", "t1"])

    def _heads(self, sequences: int, **more: Any) -> str:
        names = ("heads", "key_heads", "width", "capacity", "window")
        return self._shape(**{name: self.about[name] for name in names}, sequences=sequences, **more)

    def _store(self) -> None:
        about, used = self.about, ["t0", "t1", "t2"]
        angles = "nullptr"
        if about["rotated"]:
            used.append(angles := f"t{len(used)}")
        norms = [f"t{len(used) + k}" for k in range(2)] if about["norms"] else []
        used += norms
        queries, keys, values = (f"t{self._last - k}" for k in (2, 1, 0))
        shape = self._heads(
            self.shapes[-1][0],
            rotated=about["rotated"],
            angles=self.shapes[3][0] if about["rotated"] else 0,
            epsilon=float(about["epsilon"]),
            normalised=about["norms"],
        )
        more = ", ".join([angles, *(norms or ["nullptr", "nullptr"]), queries, keys, values])
        call = f"store<{shape}>(t0, t1, t2, {more})"
        heads = about["heads"] + 2 * about["key_heads"]
        self._launch(call, (self.shapes[0][0], heads), [*used, queries, keys, values], 32)

    def _attention(self) -> None:
        about, rows, width = self.about, self.shapes[0][0], self.about["width"]
        longest = about["window"] or about["capacity"]
        parts = max(1, min(_MOST_PARTS, longest // _POSITIONS))
        shape = self._heads(self.shapes[1][0], scale=float(about["scale"]), cap=float(about["cap"]))
        tensors = ["t0", "t1", "t2", "t3", "t4"]
        to = "w0, nullptr" if parts > 1 else "nullptr, t5"
        self._launch(
            f"attend<{shape}>({', '.join(tensors)}, {to})",
            (rows, about["heads"], parts),
            [*tensors, "w0" if parts > 1 else "t5"],
        )
        if parts > 1:
            self.workspaces = [4 * prod((rows, about["heads"], parts, width + 2))]
            self._launch(f"join_parts<{width}, {parts}>(w0, t5)", (rows, about["heads"]), ["w0", "t5"], 128)
