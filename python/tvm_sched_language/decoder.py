"""`decoder_module`: the Relax module of a language model for a number of rows, made of calls of ``cpp/kernels/language``.

A row is a token with a position and the number of its sequence. So one module serves a piece of a prompt (rows of one
sequence), a decode step (a row of each sequence), and both at once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import relax

from tvm_frontends import ImportedModel
from tvm_sched.relax.ir.attributes import SAMPLES
from tvm_sched.relax.lower.kernel_libraries import KERNELS
from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.problem.decoder_config import DecoderConfig, Layer

from .architecture import angles
from .packing import pack

Array = npt.NDArray[Any]
LIBRARY = "language"
"""Name of the kernel library."""
TILE = 16
"""Positions of a tile of keys."""
INPUTS = ("tokens", "positions", "sequences", "outputs")
"""Inputs of a plan: number, position and sequence of each row's token, and the rows whose logits are wanted.

With `sampled`, ``choices`` (outputs, 4) in float64 follows: temperature, ``top_k``, ``top_p`` and a random number below 1.
A pipeline's later stages take ``hidden`` in place of tokens, and only its last stage takes ``outputs``."""


@dataclass(frozen=True)
class Sizes:
    """Sizes of an artifact's memory."""

    context: int
    """Most tokens of a sequence."""
    sequences: int
    """Sequences at once."""
    pieces: tuple[int, ...]
    """Rows of the plans for prompts."""

    def capacity(self, layer: Layer) -> int:
        """Return the positions that a layer keeps: with a window these, and the rows of the longest piece."""
        longest = max(self.pieces, default=1)
        needed = min(self.context, layer.window + longest) if layer.window else self.context
        return -(-needed // TILE) * TILE

    def window(self, layer: Layer) -> int:
        """Return the layer's window; 0 if it is no shorter than the context."""
        return layer.window if layer.window < self.context else 0


@dataclass(frozen=True)
class PackedWeights:
    """Packed weights of a model by name: ``layer.part`` with its arrays in the order of a kernel's operands."""

    architecture: DecoderConfig
    number_format: str
    arrays: Mapping[str, tuple[Array, ...]]
    formats: Mapping[str, str]
    parts: int = 1
    """Into how many the layers are cut (`tensor_parallel.in_parts`)."""

    def __contains__(self, name: str) -> bool:
        return name in self.arrays

    def of_layers(self, layers: range) -> PackedWeights:
        """Return those that a stage with these layers reads: the first has the embedding, the last norm and head."""
        a = self.architecture
        first, last = layers.start == 0, layers.stop == a.layers
        turns = {f"angles.{a.layer(number).theta:g}" for number in layers}

        def used(name: str) -> bool:
            part = name.partition(".")[0]
            if part.isdigit():
                return int(part) in layers
            if part == "angles":
                return name in turns
            if part == "table":
                return first or (last and a.tied)
            return first if part == "learned" else last

        return replace(self, arrays={name: arrays for name, arrays in self.arrays.items() if used(name)})

    def stage_layers(self, stages: int) -> list[range]:
        """Cut the layers into stages so that the one with the most bytes of weights, head included, has the fewest.

        Raises
        ------
        InputError
            There are fewer layers than stages.
        """
        count = self.architecture.layers
        if stages > count:
            raise InputError(f"stages is {stages}, and the model has {count} layers; at most {count} are allowed")
        # A step reads one row of the first stage's embedding.
        read = [
            [name for name in self.of_layers(range(n, n + 1)).arrays if n > 0 or name not in ("table", "learned")]
            for n in range(count)
        ]
        sizes = [sum(array.nbytes for name in names for array in self.arrays[name]) for names in read]
        return even_cuts(sizes, stages)


def part_prefix(prefix: str, part: int, parts: int) -> str:
    """Return the prefix of the names of a part's weights and states: ``"0."`` becomes ``"0.part1."``."""
    return prefix if parts == 1 else f"{prefix}part{part}."


def operands(name: str, arrays: Sequence[Array]) -> list[str]:
    """Return the names of a weight's arrays as parameters."""
    return [name if position == 0 else f"{name}.{position}" for position in range(len(arrays))]


def even_cuts(sizes: Sequence[int], parts: int) -> list[range]:
    """Cut a row of sizes into parts with the least largest sum."""
    # By end: the least largest sum of the sizes before it in as many parts as rounds so far, and these parts.
    best: dict[int, tuple[int, list[range]]] = {0: (0, [])}
    for part in range(1, parts + 1):
        best = {
            end: min(
                (
                    (max(largest, sum(sizes[begin:end])), [*cut, range(begin, end)])
                    for begin, (largest, cut) in best.items()
                    if begin < end
                ),
                key=lambda found: found[0],
            )
            for end in range(part, len(sizes) - parts + part + 1)
        }
    return best[len(sizes)][1]


def pack_weights(architecture: DecoderConfig, weights: Any, number_format: str, sizes: Sizes) -> PackedWeights:
    """Read and pack all weights (`checkpoint.Weights`), layer by layer."""
    arrays: dict[str, tuple[Array, ...]] = {}
    formats: dict[str, str] = {}

    def add(name: str, weight: Array, kept: str = number_format) -> None:
        arrays[name], formats[name] = tuple(pack(weight, kept)), kept

    # The router decides between experts; its few weights stay as they are.
    exact = {"router.weight", "shared_gate.weight"}
    table = weights.table()
    add("table", table)
    if architecture.positions:
        arrays["learned"] = (np.ascontiguousarray(weights.learned_positions()),)
    thetas = [architecture.layer(number).theta for number in range(architecture.layers) if architecture.rotated]
    for theta in dict.fromkeys(thetas):
        arrays[f"angles.{theta:g}"] = (angles(architecture, theta, sizes.context),)
    head = weights.head()
    if "weight" in head:
        add("head.weight", head["weight"])
    if "bias" in head:
        arrays["head.bias"] = (head["bias"],)
    for part, value in weights.final_norm().items():
        arrays[f"norm.{part}"] = (value,)
    for number in range(architecture.layers):
        for name, value in weights.layer(number).items():
            if name.endswith("norm.weight") or name.endswith("bias"):
                arrays[f"{number}.{name}"] = (np.ascontiguousarray(value, np.float32),)
            else:
                add(f"{number}.{name}", value, "float32" if name in exact else number_format)
    return PackedWeights(architecture, number_format, arrays, formats)


def decoder_module(
    weights: PackedWeights, sizes: Sizes, rows: int, outputs: int, name: str, layers: range, sampled: bool = False
) -> ImportedModel:
    """Make the module of some layers for ``rows`` rows of which ``outputs`` give logits.

    ``main`` takes `INPUTS`, then keys and values of each layer (`state_names`), and returns the logits, of shape (outputs,
    vocab), then the updated keys and values. With ``sampled`` it returns the next tokens, of shape (outputs,), in place of
    logits. Without the last layer, it returns the rows between the layers instead of
    logits, of shape (rows, hidden).
    """
    return _Maker(weights.of_layers(layers), sizes, rows, outputs, name, layers, sampled).make()


def state_names(layers: range, parts: int = 1) -> dict[str, int]:
    """Return the states of `decoder_module`: by input, the position of the result that is its next value."""
    names = [name for number in layers for part in range(parts) for name in _states(number, part, parts)]
    return {name: position + 1 for position, name in enumerate(names)}


def _states(number: int, part: int, parts: int) -> tuple[str, str]:
    """Return the names of a layer's keys and values."""
    own = f"{number}" if parts == 1 else f"{number}.part{part}"
    return f"keys.{own}", f"values.{own}"


@dataclass
class _Maker:
    weights: PackedWeights
    sizes: Sizes
    rows: int
    outputs: int
    name: str
    layers: range
    sampled: bool
    builder: relax.BlockBuilder = field(default_factory=relax.BlockBuilder)
    documents: dict[str, str] = field(default_factory=dict)
    parameters: dict[str, relax.Var] = field(default_factory=dict)

    @property
    def parts(self) -> int:
        return self.weights.parts

    def make(self) -> ImportedModel:
        a = self.weights.architecture
        inputs = [relax.Var(n, _type((self.outputs if n == "outputs" else self.rows,), "int32")) for n in INPUTS]
        if self.layers.start > 0:
            inputs[0] = relax.Var("hidden", _type((self.rows, a.hidden), "float32"))
        if self.layers.stop < a.layers:
            del inputs[3]
        elif self.sampled:
            inputs.append(relax.Var("choices", _type((self.outputs, 4), "float64")))
        states: dict[str, relax.Var] = {}
        for number in self.layers:
            capacity = self.sizes.capacity(a.layer(number))
            shape = (self.sizes.sequences, a.key_heads // self.parts)
            for part in range(self.parts):
                of_keys, of_values = _states(number, part, self.parts)
                states[of_keys] = relax.Var(of_keys, _type((*shape, capacity // TILE, a.head_width, TILE), "float32"))
                states[of_values] = relax.Var(of_values, _type((*shape, capacity, a.head_width), "float32"))
        for own, arrays in self.weights.arrays.items():
            for key, value in zip(operands(own, arrays), arrays, strict=True):
                self.parameters[key] = relax.Var(key, _type(value.shape, str(value.dtype)))
        arguments = [*inputs, *states.values(), *self.parameters.values()]
        with self.builder.function("main", arguments, {"num_input": len(inputs) + len(states)}):
            self.builder.emit_func_output(relax.Tuple(self._body(inputs, states)))
        mod = self.builder.get().with_attr(KERNELS, self.documents).with_attr(SAMPLES, json.dumps(self._samples()))
        values = {
            key: value
            for own, arrays in self.weights.arrays.items()
            for key, value in zip(self._operands(own), arrays, strict=True)
        }
        final = "next_tokens" if self.sampled else "logits"
        result = final if self.layers.stop == a.layers else "hidden_rows"
        return ImportedModel(mod, values, self.name, (result, *(f"next_{state}" for state in states)))

    def _samples(self) -> dict[str, list[int]]:
        """Return the inputs of a typical run: the first piece of a prompt, or a token in the middle of each sequence."""
        rows = range(self.rows)
        if self.rows == self.outputs:
            positions, sequences, outputs = [self.sizes.context // 2] * self.rows, list(rows), list(rows)
        else:
            positions, sequences, outputs = list(rows), [0] * self.rows, [self.rows - 1] * self.outputs
        return dict(zip(INPUTS, ([0] * self.rows, positions, sequences, outputs), strict=True))

    def _operands(self, own: str) -> list[str]:
        return operands(own, self.weights.arrays[own])

    def _values(self, *names: str) -> list[relax.Var]:
        return [self.parameters[key] for own in names for key in self._operands(own)]

    def _body(self, inputs: list[relax.Var], states: dict[str, relax.Var]) -> list[relax.Expr]:
        a = self.weights.architecture
        x, positions, sequences, *outputs = inputs
        if self.layers.start == 0:
            x = self._embedding(x, positions)
        rows = [x] * self.parts  # each part has all of the residual stream
        updated: list[relax.Expr] = []
        for number in self.layers:
            rows, after = self._layer(number, a.layer(number), rows, positions, sequences, states)
            updated += after
        if not outputs:
            return [rows[0], *updated]
        logits = self._logits([self._call("rows", {}, [x, outputs[0]], [(self.outputs, a.hidden)])[0] for x in rows])
        if self.sampled:
            logits = self._call("choose", {}, [logits, outputs[1]], [(self.outputs,)], dtype="int32")[0]
        return [logits, *updated]

    def _logits(self, rows: list[relax.Expr]) -> relax.Expr:
        a = self.weights.architecture
        table = "table" if a.tied and self.parts == 1 else "head.weight"
        tiles = -(-a.vocab // TILE)
        bounds = [min(TILE * (part * tiles // self.parts), a.vocab) for part in range(self.parts + 1)]
        logits = []
        for part, x in enumerate(rows):
            own = part_prefix("", part, self.parts)
            columns = bounds[part + 1] - bounds[part]
            x = self._norm("norm", x)
            logits.append(self._linear(own + table, x, a.hidden, columns, bias=own + "head.bias", cap=a.logit_cap))
        return logits[0] if self.parts == 1 else self._call("join", {}, logits, [(self.outputs, a.vocab)])[0]

    def _embedding(self, tokens: relax.Expr, positions: relax.Expr) -> relax.Expr:
        a = self.weights.architecture
        learned = [positions, *self._values("learned")] if a.rotated == 0 else []
        about = {
            "format": self.weights.formats["table"], "hidden": a.hidden, "vocab": a.vocab,
            "scale": float(np.float32(a.embedding_scale)), "positions": bool(learned), "offset": a.table_offset,
        }  # fmt: skip
        inputs = [tokens, *self._values("table"), *learned]
        return self._call("embedding", about, inputs, [(self.rows, a.hidden)])[0]

    def _layer(
        self,
        number: int,
        layer: Layer,
        rows: list[relax.Expr],
        positions: relax.Expr,
        sequences: relax.Expr,
        states: Mapping[str, relax.Var],
    ) -> tuple[list[relax.Expr], list[relax.Expr]]:
        """Return the rows behind a layer, in each part, and the updated states."""
        a, own = self.weights.architecture, f"{number}."
        prefixes = [part_prefix(own, part, self.parts) for part in range(self.parts)]
        normal = [self._norm(own + "attention_norm", x) for x in rows]
        mixed, updated = [], list[relax.Expr]()
        for part, prefix in enumerate(prefixes):
            cache = [states[name] for name in _states(number, part, self.parts)]
            one, *after = self._attention(own, prefix, layer, normal[part], positions, sequences, *cache)
            mixed.append(one)
            updated += after
        width = a.heads * a.head_width // self.parts
        terms: list[relax.Expr] = []
        if a.post_norms:
            mixed = self._summed(self._terms("output", prefixes, mixed, width))
            after = [self._norm(own + "post_attention_norm", x, residual=r) for x, r in zip(mixed, rows, strict=True)]
        elif a.parallel and self.parts > 1:  # its terms are added together with those of the feed-forward network
            terms = self._terms("output", prefixes, mixed, width)
            after = rows
        else:
            after = self._closed("output", prefixes, mixed, width, rows)
        source = normal
        if not a.one_norm:
            source = [self._norm(own + "inner_norm", x) for x in (rows if a.parallel else after)]
        if layer.experts:
            return [self._experts(own, source[0], after[0])], updated
        size = a.intermediate // self.parts
        inner = [self._up(prefix, x, size) for prefix, x in zip(prefixes, source, strict=True)]
        if a.post_norms:
            closed = self._summed(self._terms("down", prefixes, inner, size))
            return [
                self._norm(own + "post_inner_norm", x, residual=r) for x, r in zip(closed, after, strict=True)
            ], updated
        return self._closed("down", prefixes, inner, size, after, terms), updated

    def _closed(
        self,
        product: str,
        prefixes: Sequence[str],
        inner: Sequence[relax.Expr],
        size: int,
        rows: list[relax.Expr],
        terms: Sequence[relax.Expr] = (),
    ) -> list[relax.Expr]:
        """Add a product of the columns of each part, and ``terms`` of each part, to the residual stream."""
        if self.parts == 1:
            return self._terms(product, prefixes, inner, size, rows)
        return self._summed(self._terms(product, prefixes, inner, size, terms), rows)

    def _terms(
        self,
        product: str,
        prefixes: Sequence[str],
        inner: Sequence[relax.Expr],
        size: int,
        residuals: Sequence[relax.Expr] = (),
    ) -> list[relax.Expr]:
        """Multiply the columns of each part; the results, each with its residual, are terms of a sum."""
        added: Sequence[relax.Expr | None] = residuals or [None] * self.parts
        return [
            self._linear(prefix + product, x, size, self.weights.architecture.hidden, residual=residual)
            for prefix, x, residual in zip(prefixes, inner, added, strict=True)
        ]

    def _summed(self, terms: list[relax.Expr], rows: Sequence[relax.Expr] = ()) -> list[relax.Expr]:
        """Add the terms of all parts on each part, to its residual if there is one: in the same order, so alike."""
        if self.parts == 1:
            return terms
        shape = [_shape(terms[0])]
        return [self._call("add", {}, [*rows[part : part + 1], *terms], shape)[0] for part in range(self.parts)]

    def _up(self, own: str, x: relax.Expr, inner: int) -> relax.Expr:
        a = self.weights.architecture
        if not a.gated:
            return self._linear(own + "up", x, a.hidden, inner, activation=a.activation)
        opened = self._linear(own + "up", x, a.hidden, 2 * inner)
        return self._call("gate", {"activation": a.activation, "scalar": False}, [opened], [(self.rows, inner)])[0]

    def _experts(self, own: str, x: relax.Expr, residual: relax.Expr) -> relax.Expr:
        a = self.weights.architecture
        if a.shared_inner:
            inner = self._up(own, x, a.shared_inner)
            closed = self._linear(own + "down", inner, a.shared_inner, a.hidden)
            weight = self._linear(own + "shared_gate", x, a.hidden, 1)
            residual = self._call(
                "gate", {"activation": "none", "scalar": True}, [closed, weight, residual], [(self.rows, a.hidden)]
            )[0]
        scores = self._linear(own + "router", x, a.hidden, a.experts)
        about = {
            "format": self.weights.formats[own + "experts_up.weight"], "hidden": a.hidden, "inner": a.expert_inner,
            "experts": a.experts, "chosen": a.chosen, "normalize": a.normalize_experts, "activation": a.activation,
        }  # fmt: skip
        weights = self._values(own + "experts_up.weight", own + "experts_down.weight")
        flops = 6 * self.rows * a.chosen * a.hidden * a.expert_inner
        return self._call("experts", about, [x, scores, *weights, residual], [(self.rows, a.hidden)], flops)[0]

    def _attention(
        self,
        own: str,
        prefix: str,
        layer: Layer,
        x: relax.Expr,
        positions: relax.Expr,
        sequences: relax.Expr,
        keys: relax.Var,
        values: relax.Var,
    ) -> Sequence[relax.Expr]:
        a = self.weights.architecture
        count, shared = a.heads // self.parts, a.key_heads // self.parts
        together = self._linear(prefix + "qkv", x, a.hidden, (count + 2 * shared) * a.head_width)
        heads = {
            "heads": count, "key_heads": shared, "width": a.head_width, "capacity": self.sizes.capacity(layer),
            "window": self.sizes.window(layer),
        }  # fmt: skip
        more = self._values(f"angles.{layer.theta:g}") if a.rotated else []
        if a.head_norms:
            more += self._values(own + "query_norm.weight", own + "key_norm.weight")
        inputs = [together, positions, sequences, *more, keys, values]
        shapes = [(self.rows, count * a.head_width), _shape(keys), _shape(values)]
        queries, keys, values = self._call(
            "store", {**heads, "rotated": a.rotated, "norms": a.head_norms, "epsilon": a.norm_eps}, inputs, shapes,
            in_place={1: len(inputs) - 2, 2: len(inputs) - 1},
        )  # fmt: skip
        about = {**heads, "scale": a.score_factor, "cap": a.attention_cap}
        flops = 4 * self.rows * count * a.head_width * heads["capacity"]
        mixed = self._call(
            "attention",
            about,
            [queries, keys, values, positions, sequences],
            [(self.rows, count * a.head_width)],
            flops,
        )[0]
        return mixed, keys, values

    def _norm(self, own: str, x: relax.Expr, residual: relax.Expr | None = None) -> relax.Expr:
        a = self.weights.architecture
        bias = f"{own}.bias" in self.weights
        operands = self._values(f"{own}.weight", *([f"{own}.bias"] if bias else []))
        about = {"norm": a.norm, "epsilon": a.norm_eps, "bias": bias, "residual": residual is not None}
        return self._call("norm", about, [x, *operands, *([] if residual is None else [residual])], [_shape(x)])[0]

    def _linear(
        self,
        own: str,
        x: relax.Expr,
        terms: int,
        columns: int,
        *,
        bias: str = "",
        residual: relax.Expr | None = None,
        activation: str = "none",
        cap: float = 0.0,
    ) -> relax.Expr:
        weight = own if own in self.weights else f"{own}.weight"
        bias = bias or f"{own}.bias"
        known = bias in self.weights
        operands = self._values(weight, *([bias] if known else []))
        about = {
            "format": self.weights.formats[weight], "terms": terms, "columns": columns, "bias": known,
            "residual": residual is not None, "activation": activation, "cap": cap,
        }  # fmt: skip
        rows = _shape(x)[0]
        inputs = [x, *operands, *([] if residual is None else [residual])]
        return self._call("linear", about, inputs, [(rows, columns)], 2 * rows * terms * columns)[0]

    def _call(
        self,
        kind: str,
        about: Mapping[str, Any],
        inputs: list[relax.Expr],
        shapes: list[tuple[int, ...]],
        flops: int = 0,
        in_place: Mapping[int, int] | None = None,
        dtype: str = "float32",
    ) -> list[relax.Expr]:
        """Call a kernel; its results have the given shapes."""
        name = f"{LIBRARY}.{kind}_{len(self.documents)}"
        document: dict[str, Any] = {"library": LIBRARY, "flops": flops, "kernel": {"kind": kind, **about}}
        if in_place:
            document["in_place"] = in_place
        self.documents[name] = json.dumps(document)
        types = [_type(shape, dtype) for shape in shapes]
        call = relax.call_dps_packed(name, relax.Tuple(inputs), out_ty=types if len(types) > 1 else types[0])
        result = self.builder.emit(call)
        if len(types) == 1:
            return [result]
        return [self.builder.emit(relax.TupleGetItem(result, k)) for k in range(len(types))]


def _type(shape: Sequence[int], dtype: str) -> relax.TensorType:
    return relax.TensorType(tuple(shape), dtype)


def _shape(value: Any) -> tuple[int, ...]:
    return tuple(int(size) for size in value.ty.shape)
