"""Decide which nodes of a graph become artifacts, and compile these; the plugin library calls `claim`."""

from __future__ import annotations

import hashlib
import json
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import onnx
import tvm_ffi

from tvm_sched.cost_model.profile import this_machine
from tvm_sched.relax.api import CompiledModel, check_before, compile
from tvm_sched.relax.model_loading import open_model
from tvm_sched.relax.options import DEFAULTS, CompileOptions
from tvm_sched_runtime._version import __version__
from tvm_sched_runtime.checks import require_kind, shown
from tvm_sched_runtime.errors import InputError, TvmSchedError
from tvm_sched_runtime.runtime import ScheduledModule, load

_LOG = logging.getLogger("tvm_sched.onnxruntime")
_OWN = ("artifact", "cache", "fallback", "input_shapes", "topology", "time_limit")
_MOST_BYTES = 1 << 31
_MOST_PARTS = 16
"""Number of refused nodes after which all later nodes are left to other providers."""


class ProviderWarning(UserWarning):
    """Nodes are left to ONNX Runtime's other providers; the message says why."""


@dataclass(frozen=True)
class Settings:
    """Options of the provider.

    Parameters
    ----------
    compile : CompileOptions
        Of ``topology`` (default ``"cpu"``), ``time_limit`` in seconds, and any of its own fields.
    fallback : bool
        Whether nodes that are not compiled are left to other providers, with a `ProviderWarning`; false: an error.
    artifact : Path, optional
        An artifact of the whole model, made beforehand; nothing is compiled.
    cache : Path, optional
        Folder in which artifacts are kept and looked for.
    """

    compile: CompileOptions
    fallback: bool = True
    artifact: Path | None = None
    cache: Path | None = None
    input_shapes: Mapping[str, Any] | None = None
    """Sizes of open dimensions, or shapes of inputs, by name; the artifact takes no others."""
    key: str = ""
    """Identifies options, version and machine in the cache; the model is the rest of the key."""

    @classmethod
    def of(cls, texts: Mapping[str, str]) -> Settings:
        """Read options, whose values are text: JSON, or a word.

        Raises
        ------
        InputError
            An unknown option, or a value that is not allowed.
        """
        given = {name: _value(text) for name, text in texts.items()}
        if unknown := sorted(given.keys() - DEFAULTS.keys() - set(_OWN)):
            allowed = ", ".join(sorted({*_OWN, *DEFAULTS}))
            raise InputError(f"there is no option {unknown[0]!r} of the execution provider; there are {allowed}")
        if not isinstance(fallback := given.pop("fallback", True), bool):
            raise InputError(f"fallback is {shown(fallback)}; true and false are allowed")
        artifact, cache = (given.pop(name, None) for name in ("artifact", "cache"))
        if not isinstance(sizes := given.pop("input_shapes", {}), dict):
            raise InputError(
                f'input_shapes is {shown(sizes)}; allowed is an object such as {{"batch": 8, "x": [8, 3]}}'
            )
        for name, size in sizes.items():
            if not all(isinstance(each, int) for each in (size if isinstance(size, list) else [size])):
                raise InputError(f"input_shapes has {shown(size)} for {name!r}; a size or a list of sizes is allowed")
        shapes = {name: tuple(size) if isinstance(size, list) else size for name, size in sizes.items()}
        if (seconds := given.pop("time_limit", None)) is not None:
            require_kind("options", options := given.get("options") or {}, Mapping, "a mapping")
            given["options"] = {**options, "time_limit": seconds}
        chosen = CompileOptions.of(given.pop("topology", "cpu"), **given)
        check_before(chosen, "latency")
        # Of a topology's name or file what it holds now; "cpu" and measured costs are of this machine.
        told = [__version__, given, sizes, msgspec.to_builtins(chosen.topology), str(this_machine())]
        key = json.dumps(told, sort_keys=True, default=str)
        return cls(chosen, fallback, artifact and Path(str(artifact)), cache and Path(str(cache)), shapes, key)

    def shapes_of(self, model: onnx.ModelProto) -> dict[str, Any] | None:
        """Return the sizes that concern a part of the model."""
        types = {item.name: item.type.tensor_type.shape.dim for item in model.graph.input}
        named = types.keys() | {dim.dim_param for dims in types.values() for dim in dims}
        return {name: size for name, size in (self.input_shapes or {}).items() if name in named} or None


def as_texts(options: Mapping[str, Any]) -> dict[str, str]:
    """Return options as ONNX Runtime takes them."""
    try:
        return {
            name: str(value) if isinstance(value, (str, Path)) else json.dumps(value) for name, value in options.items()
        }
    except TypeError as error:
        raise InputError(f"an option of the provider cannot be written as JSON: {error}; give names or files") from None


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def offer() -> None:
    """Make `claim` known to the plugin library."""
    tvm_ffi.register_global_func("tvm_sched.onnxruntime.claim", claim, override=True)


def claim(content: bytes, texts: Mapping[str, str]) -> list[list[Any]]:
    """Compile what can be compiled of a model.

    Returns
    -------
    list
        For each artifact the positions of its nodes, the function that runs it, and the names of its inputs and outputs.

    Raises
    ------
    InputError
        A wrong option; or nodes that are not compiled, without ``fallback``.
    """
    settings = Settings.of({str(name): str(text) for name, text in texts.items()})
    if len(content) >= _MOST_BYTES:
        _leave(settings, f"the model has {len(content)} bytes; it is left to other providers, as Protobuf holds 2 GB")
        return []
    model = onnx.ModelProto.FromString(bytes(content))
    dims = {item.name: item.type.tensor_type.shape.dim for item in model.graph.input}
    known = {*dims, *(dim.dim_param for shape in dims.values() for dim in shape)}
    if unknown := sorted((settings.input_shapes or {}).keys() - known):
        raise InputError(f"input_shapes names {unknown[0]!r}; the model has {', '.join(sorted(known - {''}))}")
    everything = range(len(model.graph.node))
    if settings.artifact is not None:
        module = load(settings.artifact)
        _check_names(settings.artifact, module, model)
        return [_part(everything, module)]
    parts = []
    for nodes, part in _parts(model, settings):
        try:
            parts.append(_part(nodes, _compiled(part, settings)))
        except TvmSchedError as error:
            _leave(settings, f"{_names(model, nodes)} are not compiled: {error}", error)
    return parts


def _part(nodes: Sequence[int], module: ScheduledModule) -> list[Any]:
    # The function of the library runs without Python, but for models that need TVM's virtual machine.
    run = tvm_ffi.convert(module.run_tensors) if module.info().get("tail") else module.module["tvm_sched.results"]
    return [list(nodes), run, *_interface(module)]


def _interface(module: ScheduledModule) -> tuple[list[str], list[str]]:
    return [argument["name"] for argument in module.plans()[0]["arguments"]], list(module.info()["output_names"])


def _check_names(file: Path, module: ScheduledModule, model: onnx.ModelProto) -> None:
    inputs, outputs = _interface(module)
    given = [item.name for item in model.graph.input]
    wanted = [item.name for item in model.graph.output]
    if not set(inputs) <= set(given) or not set(wanted) <= set(outputs):
        raise InputError(
            f"{file}: has the inputs {', '.join(inputs)} and the outputs {', '.join(outputs)}, but the model of the session "
            f"has the inputs {', '.join(given)} and the outputs {', '.join(wanted)}: compile this model"
        )


def _compiled(model: onnx.ModelProto, settings: Settings) -> ScheduledModule:
    if settings.cache is None:
        return _compile(model, settings).module
    digest = hashlib.sha256(settings.key.encode() + model.SerializeToString(deterministic=True)).hexdigest()
    file = settings.cache / f"{digest[:32]}.so"
    if not file.is_file():
        settings.cache.mkdir(parents=True, exist_ok=True)
        _compile(model, settings).export(file)
    return load(file)


def _compile(model: onnx.ModelProto, settings: Settings) -> CompiledModel:
    shapes = settings.shapes_of(model)
    return compile(model, settings.compile, input_shapes=shapes, name="onnxruntime", progress=_progress)


def _progress(what: str, done: int, total: int) -> None:
    _LOG.info("%s (%d of %d)" if total else "%s", *((what, done, total) if total else (what,)))


def _parts(model: onnx.ModelProto, settings: Settings) -> Iterator[tuple[range, onnx.ModelProto]]:
    """Yield runs of nodes that the importer takes, each with its model: the longest first run, the next one, and so on.

    The nodes are in topological order, so a path that leaves such a run does not return to it.
    """
    count = len(model.graph.node)
    begin, refused = 0, 0
    while begin < count:
        good, bad = begin, count
        why = _why_not(cut := _cut(model, range(begin, count)), settings)
        if why is None:
            good = count
        else:
            while bad - good > 1:
                middle = (good + bad) // 2
                reason = _why_not(_cut(model, range(begin, middle)), settings)
                good, bad = (middle, bad) if reason is None else (good, middle)
                why = reason or why
            _leave(settings, f"{_names(model, range(bad - 1, bad))} is left to another provider: {why}")
            cut = _cut(model, range(begin, good))
        if good - begin > 1 or good - begin == count:  # one node alone is not worth the copies
            yield range(begin, good), cut
        begin, refused = bad, refused + 1
        if refused == _MOST_PARTS and begin < count:
            _leave(
                settings,
                f"{_names(model, range(begin, count))} are left to others, as are {refused} nodes before",
            )
            return


def _why_not(model: onnx.ModelProto, settings: Settings) -> Exception | None:
    """Return why a model cannot be an artifact: the importer refuses it, or it has other values than tensors."""
    for item in (*model.graph.input, *model.graph.output):
        if not item.type.HasField("tensor_type"):
            return InputError(f"{item.name!r} is not a tensor")
    try:
        opened = open_model(model, "onnxruntime")
        shapes, _ = opened.with_examples(settings.shapes_of(model), None)
        opened.import_with(*opened.combinations(shapes, None)[0])
    except TvmSchedError as error:
        return error
    return None


def _cut(model: onnx.ModelProto, nodes: range) -> onnx.ModelProto:
    """Return the model of some nodes: what they read and do not compute are its inputs."""
    graph = model.graph
    inside = [graph.node[k] for k in nodes]
    made = {name for node in inside for name in node.output if name}
    read = dict.fromkeys(name for node in inside for name in _read(node) if name not in made)
    later = {name for k, node in enumerate(graph.node) if k not in nodes for name in _read(node)}
    weights = [tensor for tensor in graph.initializer if tensor.name in read]
    known = {tensor.name for tensor in weights}
    types = {item.name: item for item in (*graph.value_info, *graph.input, *graph.output)}
    results = [item.name for item in graph.output if item.name in made]
    outputs = dict.fromkeys([*results, *(name for node in inside for name in node.output if name in later)])
    inner = [types[name] for name in types if name in made and name not in outputs]
    cut = onnx.helper.make_graph(
        inside, "part", [types[name] for name in read if name not in known and name in types],
        [types[name] for name in outputs], weights, value_info=inner,
    )  # fmt: skip
    return onnx.helper.make_model(cut, opset_imports=model.opset_import, ir_version=model.ir_version)


def _read(node: onnx.NodeProto) -> Iterator[str]:
    """Yield the names of the values that a node, or a graph inside it, reads from outside."""
    yield from filter(None, node.input)
    for attribute in node.attribute:
        if attribute.HasField("g"):
            inner = attribute.g
            own = {each.name for each in (*inner.input, *inner.initializer)}
            own.update(name for each in inner.node for name in each.output)
            yield from (name for each in inner.node for name in _read(each) if name not in own)
            yield from (item.name for item in inner.output if item.name not in own)


def _names(model: onnx.ModelProto, nodes: Sequence[int]) -> str:
    first, last = (model.graph.node[k] for k in (nodes[0], nodes[-1]))
    text = f"{first.op_type} ({first.name or first.output[0]})"
    return (
        text if len(nodes) == 1 else f"{len(nodes)} nodes from {text} to {last.op_type} ({last.name or last.output[0]})"
    )


def _leave(settings: Settings, message: str, cause: Exception | None = None) -> None:
    if not settings.fallback:
        raise InputError(message) from cause
    warnings.warn(message, ProviderWarning, stacklevel=2)
