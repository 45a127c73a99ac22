"""A language model as units: half a layer each, with graphs of a pass over the prompt and of a step that makes a token."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import msgspec

from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.problem import DecoderConfig, Operator, OpGraph, Tensor
from tvm_sched_runtime.problem.decoder_config import PRESETS
from tvm_sched_runtime.problem.decoder_config_file import is_config, read_config

from .gguf_mixtures import Place, Role
from .token_workload import FORMATS, NumberFormat, TokenWorkload
from .unit_model import CACHE, Phase, UnitModel

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "gpt2")
MIXTURES = ("mixtral", "qwen3_moe")
"""Supported values of ``model_type``: of models for all runtimes, and of mixtures of experts, planned for some runtimes."""

PRODUCT, ATTENTION = "library.matmul", "library.attention"
"""Kinds of matrix products and of fused attention: a cost model takes them for those of a kernel library."""


@dataclass(frozen=True)
class Serving:
    """How a runtime serves a language model, as far as sizes and times depend on it."""

    chunk: int = 0
    """Tokens of prompts at once, of all sequences; 0: whole prompts of all of them."""
    micro_batches: int = 1
    """Groups of sequences that the stages process at the same time, one group in each stage."""
    cache_block: int = 1
    """The context is rounded up to a multiple of it."""
    cache_copied: bool = False
    """A layer's keys and values are written again in each step, as by ``torch.cat``."""
    engine: str = ""
    """Name of the runtime if its times have errors of their own (`program_errors`); "framework" is one that starts each
    operator from the host."""
    fused_attention: bool = True
    """Attention is one kernel that keeps no scores. Otherwise it is two batched products with a softmax between, which
    compute all scores, those that a causal mask removes as well."""


def read_architecture(source: str | os.PathLike[str]) -> DecoderConfig | None:
    """Return the language model of a preset's name, a ``config.json`` or a folder with one; None for other files.

    Raises
    ------
    InputError
        A folder without ``config.json``, or the configuration of a model of another family.
    """
    path = Path(source)
    if path.is_dir():
        path = path / "config.json"
        if not path.is_file():
            raise InputError(f"{path.parent}: a folder without config.json; a folder of Hugging Face has one")
    elif not path.is_file():
        return PRESETS.get(os.fspath(source))
    elif path.name != "config.json" and not is_config(path):
        return None
    config = read_config(path, families=(*FAMILIES, *MIXTURES))
    if config.dense_layers:
        raise InputError(
            f"{path}: layers {', '.join(map(str, config.dense_layers))} have no experts (mlp_only_layers, "
            "decoder_sparse_step); mixtures are known with experts in all layers only"
        )
    return config


def experts_read(experts: int, chosen: int, tokens: int) -> float:
    """Return how many experts are read in the mean, if each of so many tokens chooses any experts with equal chance."""
    return experts * (1 - (1 - chosen / experts) ** tokens)


@lru_cache(maxsize=16)
def language_model(architecture: DecoderConfig, workload: TokenWorkload, serving: Serving | None = None) -> UnitModel:
    """Return the units ``embed``, ``0.attention``, ``0.feed_forward``, ... and ``head``.

    Weights, keys and values are parameters of the graphs. A matrix product and what can be fused into it is one operator.
    The last layer is taken to compute the last token alone, as all runtimes do.

    Returns
    -------
    UnitModel
        With the phases ``prefill`` (chunks of the prompts) and ``decode`` (a step for each new token); of an encoder, which
        keeps no keys and values, with the phase ``run`` (all sequences of ``context`` tokens).
    """
    serving = serving or Serving()
    sequences = math.ceil(workload.batch / serving.micro_batches)
    full = math.ceil(workload.context / serving.cache_block) * serving.cache_block
    if architecture.causal:
        chunk = min(serving.chunk or sequences * workload.prompt, sequences * workload.prompt)
        passes = math.ceil(sequences * workload.prompt / chunk)
        at_once = max(1, chunk // workload.prompt)
        prefill = _Pass(chunk, at_once, workload.prompt, min(chunk, workload.prompt), causal=True)
        decode = _Pass(sequences, sequences, full, 1, causal=False)
        token = "token" if sequences == 1 else "tokens"
        shapes = {"prefill": (prefill, passes, "prompt"), "decode": (decode, workload.generated, token)}
    else:
        whole = _Pass(sequences * workload.context, sequences, workload.context, workload.context, causal=False)
        shapes = {"run": (whole, 1, "encoder")}
    phases = tuple(
        _Writer(name, architecture, workload, serving, each, full).phase(repeats, work)
        for name, (each, repeats, work) in shapes.items()
    )
    layers = range(architecture.layers)
    names = ["embed", *(f"{i}.{half}" for i in layers for half in ("attention", "feed_forward")), "head"]
    return UnitModel(architecture.name, tuple(names), phases)


def by_layer(model: UnitModel, ends: bool = False) -> UnitModel:
    """Return the model in whole layers. With ``ends`` the first layer has the embedding, and the last one the head."""
    layers = (len(model.units) - 2) // 2
    groups: list[list[int]] = [[1 + 2 * i, 2 + 2 * i] for i in range(layers)]
    last = len(model.units) - 1
    if ends:
        groups[0].insert(0, 0)
        groups[-1].append(last)
        return model.merged(groups, [str(i) for i in range(layers)])
    return model.merged([[0], *groups, [last]], ["embed", *(str(i) for i in range(layers)), "head"])


@dataclass(frozen=True)
class _Pass:
    """One pass through the layers: all tokens, sequences, tokens of a sequence before it ends, its tokens in this pass."""

    tokens: int
    sequences: int
    length: int
    new: int
    causal: bool
    """Whether a token attends to itself and those before it; else to all of the sequence."""

    def seen(self, window: int) -> float:
        """Return to how many tokens one attends in the mean; a window above 0 limits them."""
        most = min(window or self.length, self.length)
        return (most * (most + 1) / 2 + (self.length - most) * most) / self.length if self.causal else most

    def cached(self, window: int) -> float:
        """Return how many tokens of a sequence are read from the cache in the mean: of a prompt, those of earlier chunks."""
        if not self.causal:
            return self.seen(window)
        before = [min(n, window or n) for n in range(0, self.length, self.new)]
        return sum(before) / len(before)


@dataclass
class _Writer:
    name: str
    architecture: DecoderConfig
    workload: TokenWorkload
    serving: Serving
    shape: _Pass
    context: int
    operators: list[Operator] = field(default_factory=list)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    moved: dict[str, int] = field(default_factory=dict)
    members: list[tuple[int, ...]] = field(default_factory=list)

    def phase(self, repeats: int, work: str) -> Phase:
        config = self.architecture
        self._activation("tokens", 8 * self.shape.tokens, kind="input")
        self._unit(self._embed)
        for i in range(config.layers):
            self._unit(self._attention, i)
            self._unit(self._feed_forward, i)
        self._unit(self._head)
        tensors = tuple(self.tensors.values())
        graph = OpGraph(f"{config.name} {self.name}", tuple(self.operators), tensors, ("logits",))
        timed = [Tensor(t.name, self.moved.get(t.name, t.size), t.kind, t.shape, t.dtype) for t in tensors]
        timed.append(Tensor("table.rows", self.moved["table.rows"], "parameter"))
        embed = msgspec.structs.replace(self.operators[0], inputs=("tokens", "table.rows"))
        moves = OpGraph(graph.name, (embed, *self.operators[1:]), tuple(timed), ("logits",))
        engine = self.serving.engine
        return Phase(self.name, graph, moves, tuple(self.members), repeats, work=work, engine=engine)

    def _unit(self, write: Callable[..., None], *which: int) -> None:
        before = len(self.operators)
        write(*which)
        self.members.append(tuple(range(before, len(self.operators))))

    @property
    def _bytes(self) -> int:
        return 4 if self.workload.dtype == "fp32" else 2

    def _activation(self, name: str, size: int, shape: tuple[int, ...] = (), kind: str = "activation") -> str:
        dtype = "int64" if kind == "input" else self.workload.weights.compute
        self.tensors[name] = Tensor(name, size, kind, shape, dtype)  # type: ignore[arg-type]
        return name

    def _rows(self, name: str, width: int) -> str:
        """Add an activation with a row of this width for each token."""
        return self._activation(name, self.shape.tokens * width * self._bytes, (self.shape.tokens, width))

    def _parameter(self, name: str, size: int, moved: float | None = None, shape: tuple[int, ...] = ()) -> str:
        self.tensors[name] = Tensor(name, size, "parameter", shape)
        if moved is not None:
            self.moved[name] = math.ceil(moved)
        return name

    def _add(self, name: str, kind: str, inputs: list[str], outputs: list[str], flops: float) -> None:
        self.operators.append(Operator(name, kind, tuple(inputs), tuple(outputs), int(flops)))

    def _product(self, name: str, x: list[str], weights: str, outputs: list[str], rows: int, columns: int) -> None:
        """Add the product of the first tensor of ``x`` with a matrix (rows, columns), and what is fused with it."""
        flops = 2 * self.shape.tokens * rows * columns
        self._add(name, PRODUCT, [x[0], weights, *x[1:]], outputs, flops)

    def _hidden(self, name: str) -> str:
        return self._rows(name, self.architecture.hidden)

    def _embed(self) -> None:
        config, weights = self.architecture, self.workload.weights
        # A table that is the last layer, too, has its format: llama.cpp's files keep it in q6_K.
        form = FORMATS[weights.output if config.tied else weights.table]
        row = form.size(1, config.hidden)
        table = self._parameter("table", (config.vocab + config.positions) * row)
        self.moved["table.rows"] = self.shape.tokens * row
        self._add("embed", "take", ["tokens", table], [self._hidden("x.0")], 0)

    def _attention(self, i: int) -> None:
        config = self.architecture
        queries, keys = config.heads * config.head_width, config.key_heads * config.head_width
        norm = config.hidden * (2 if config.norm == "layer" else 1) * self._bytes
        bias = queries + 2 * keys if config.bias or config.qkv_bias else 0
        weights = self._matrix(queries + keys, config.hidden, i) + self._matrix(keys, config.hidden, i, "value")
        weights += norm + bias * self._bytes
        x = f"x.{2 * i}"
        widths = {"queries": queries, "keys": keys, "values": keys}
        projected = [self._rows(f"{i}.{name}", width) for name, width in widths.items()]
        shape = (queries + 2 * keys, config.hidden)
        parameter = self._parameter(f"{i}.qkv.weights", weights, shape=shape)
        self._product(f"{i}.qkv", [x], parameter, projected, *shape)
        mixed = self._mix(i, projected)
        bias = config.hidden if config.bias else 0
        weights = self._matrix(config.hidden, queries, i, "attention_output") + bias * self._bytes
        shape = (config.hidden, queries)
        parameter = self._parameter(f"{i}.output.weights", weights, shape=shape)
        self._product(f"{i}.output", [mixed, x], parameter, [self._hidden(f"x.{2 * i + 1}")], *shape)

    def _mix(self, i: int, projected: list[str]) -> str:
        """Add the mean of values by the scores of queries and keys; return its name."""
        config, shape = self.architecture, self.shape
        window, heads, width = config.layer(i).window, config.heads, config.head_width
        seen, rows = min(window or shape.length, shape.length), round(shape.tokens / shape.sequences)
        of_keys = shape.sequences, config.key_heads, seen, width
        queries, keys, values = projected
        mixed = [self._activation(f"{i}.mixed", self.tensors[queries].size, (shape.sequences, heads, rows, width))]
        read_keys, read_values = [keys], [values]
        if self.architecture.causal:
            token = self.workload.cache.size(config.key_heads, width)
            held, moved = token * self.context * self.workload.batch, token * shape.sequences * shape.cached(window)
            for read in (read_keys, read_values):
                read.insert(0, self._parameter(f"{CACHE}{read[0]}", held, moved, of_keys))
            if self.serving.cache_copied:
                mixed.append(self._activation(f"{i}.new_cache", 2 * token * self.context * shape.sequences))
        else:
            self.tensors[keys] = msgspec.structs.replace(self.tensors[keys], shape=of_keys)
        if self.serving.fused_attention:
            flops = 4 * shape.tokens * shape.seen(window) * heads * width
            self._add(f"{i}.attention", ATTENTION, [queries, *read_keys, *read_values], mixed, flops)
            return mixed[0]
        table, flops = (shape.sequences * heads, rows, seen), 2 * shape.tokens * seen * heads * width
        scores, shares = (
            self._activation(f"{i}.{name}", math.prod(table) * self._bytes, table) for name in ("scores", "shares")
        )
        self._add(f"{i}.scores", PRODUCT, [queries, *read_keys], [scores, *mixed[1:]], flops)
        self._add(f"{i}.softmax", "softmax", [scores], [shares], math.prod(table))
        self._add(f"{i}.attention", PRODUCT, [shares, *read_values], mixed[:1], flops)
        return mixed[0]

    def _feed_forward(self, i: int) -> None:
        config = self.architecture
        if config.experts:
            self._experts(i)
            return
        wide = config.intermediate * (2 if config.gated else 1)
        norm = config.hidden * (2 if config.norm == "layer" else 1) * self._bytes
        bias = self._bytes if config.bias else 0
        x = f"x.{2 * i + 1}"
        inner = self._rows(f"{i}.inner", wide)
        shape = (wide, config.hidden)
        up = self._parameter(f"{i}.up.weights", self._matrix(*shape, i) + norm + bias * wide, shape=shape)
        self._product(f"{i}.up", [x], up, [inner], *shape)
        shape = (config.hidden, config.intermediate)
        down = self._parameter(f"{i}.down.weights", self._matrix(*shape, i, "down") + bias * config.hidden, shape=shape)
        self._product(f"{i}.down", [inner, x], down, [self._hidden(f"x.{2 * i + 2}")], *shape)

    def _experts(self, i: int) -> None:
        """Add the products of the experts that tokens choose, with the router's product in the first."""
        config, tokens = self.architecture, self.shape.tokens
        hidden, width = config.hidden, config.expert_inner
        read, rows = experts_read(config.experts, config.chosen, tokens), tokens * config.chosen
        router = self._bytes * hidden * (config.experts + 1)  # and the norm before it
        expert = self._matrix(2 * width, hidden, i)
        shape: tuple[int, ...] = (math.ceil(read), 2 * width, hidden)  # a product for each expert that is read
        up = self._parameter(f"{i}.up.weights", config.experts * expert + router, read * expert + router, shape)
        expert = self._matrix(hidden, width, i, "down")
        shape = (hidden, config.chosen * width)  # the sum over a token's experts, as one longer product
        down = self._parameter(f"{i}.down.weights", config.experts * expert, read * expert, shape)
        x, result = f"x.{2 * i + 1}", self._hidden(f"x.{2 * i + 2}")
        inner = self._activation(f"{i}.inner", 2 * rows * width * self._bytes, (rows, 2 * width))
        flops = 2 * rows * hidden * width
        self._add(f"{i}.up", PRODUCT, [x, up], [inner], 2 * flops + 2 * tokens * hidden * config.experts)
        self._add(f"{i}.down", PRODUCT, [inner, down, x], [result], flops)

    def _head(self) -> None:
        config, rows = self.architecture, self.shape.sequences
        norm = config.hidden * (2 if config.norm == "layer" else 1) * self._bytes
        form: NumberFormat = FORMATS[self.workload.weights.output]
        shape = (config.vocab, config.hidden)
        weights = "table" if config.tied else self._parameter("head.weights", form.size(*shape), shape=shape)
        read = [f"x.{2 * config.layers}", weights, self._parameter("norm.weights", norm)]
        logits = self._activation("logits", rows * config.vocab * 4, (rows, config.vocab))
        self._add("head", PRODUCT, read, [logits], 2 * rows * config.hidden * config.vocab)

    def _matrix(self, rows: int, columns: int, layer: int, role: Role = "other") -> int:
        """Return the bytes of a matrix of a block."""
        config = self.architecture
        at = Place(role, layer, config.layers, config.heads // config.key_heads)
        return self.workload.weights.of(at).size(rows, columns)
