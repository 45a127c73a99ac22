"""The backend of ``torch.compile(model, backend="tvm_sched")``, found through the entry point ``torch_dynamo_backends``.

AOTAutograd turns a graph of Dynamo into one without in-place operators: it writes mutated inputs and buffers back, and makes
outputs that alias inputs, after our code has returned. What is left computes new tensors, as a Relax function does.
"""

from __future__ import annotations

import logging
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as functional
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.convert_frame import compile_lock
from torch._functorch.aot_autograd import make_boxed_func
from torch._guards import CompileContext, TracingContext
from torch.utils._python_dispatch import _disable_current_modes

from tvm_frontends.errors import ModelWarning
from tvm_sched_runtime.checks import require_kind, shown
from tvm_sched_runtime.errors import InputError

from .relax.api import check_before, compile
from .relax.options import DEFAULTS, CompileOptions
from .relax.targets import read_target

_LOG = logging.getLogger("tvm_sched.torch_compile")
_ASK_FOR_NO_GRADIENTS = (
    "call the model under torch.no_grad() or torch.inference_mode(), or let no tensor require gradients"
)
_OWN = ("fallback", "freeze", "any_size", "size_limit", "progress")


class EagerWarning(UserWarning):
    """A graph, or a call of it, is left to PyTorch; the message says why and what to change."""


@dataclass(frozen=True)
class BackendOptions:
    """Options of the backend besides those of `CompileOptions`.

    Parameters
    ----------
    fallback : bool
        Whether PyTorch runs a graph that cannot be compiled, with an `EagerWarning`; false: the error is raised.
    freeze : bool
        Whether parameters and buffers that the graph does not write are constants of the artifact, which kernels store in
        their own layouts. If one of them has changed at a later call, all become inputs. False: they are inputs at once.
    any_size : bool
        Whether a graph with dynamic sizes becomes one artifact that takes any size, if it can be compiled so. False: one for
        each combination of sizes.
    size_limit : int
        Number of artifacts of one graph that take one combination of sizes each. Calls with further sizes are left to
        PyTorch.
    progress : bool or callable
        Called as `tvm_sched.relax.compile` calls it; true: each step is printed to the standard error stream. False: steps
        go to the logger ``tvm_sched.torch_compile``.
    """

    compile: CompileOptions
    fallback: bool = True
    freeze: bool = True
    any_size: bool = True
    size_limit: int = 8
    progress: bool | Callable[[str, int, int], None] = False

    def __post_init__(self) -> None:
        for name in ("fallback", "freeze", "any_size"):
            if not isinstance(value := getattr(self, name), bool):
                raise InputError(f"{name} is {shown(value)}; true and false are allowed")
        if isinstance(self.size_limit, bool) or not isinstance(self.size_limit, int) or self.size_limit < 1:
            raise InputError(f"size_limit is {shown(self.size_limit)}; 1 or more is allowed")
        if not isinstance(self.progress, bool) and not callable(self.progress):
            raise InputError(f"progress is {shown(self.progress)}; true, false or a function is allowed")

    @classmethod
    def of(cls, options: Mapping[str, Any] | None) -> BackendOptions:
        """Read the options of ``torch.compile``: these, ``topology`` or ``target``, ``time_limit``, `CompileOptions`'.

        Raises
        ------
        InputError
            An unknown option, or a value that is not allowed.
        """
        given = dict(options or {})
        own = {name: given.pop(name) for name in _OWN if name in given}
        if unknown := sorted(given.keys() - DEFAULTS.keys() - {"topology", "target", "time_limit"}):
            allowed = sorted({*_OWN, "topology", "target", "time_limit", *DEFAULTS})
            raise InputError(
                f"there is no option {unknown[0]!r} of the backend tvm_sched; there are {', '.join(allowed)}"
            )
        if "topology" in given and "target" in given:
            raise InputError("topology and target are given; a target names its topology: leave one of the two out")
        if (seconds := given.pop("time_limit", None)) is not None:
            require_kind("options", options := given.get("options") or {}, Mapping, "a mapping")
            given["options"] = {**options, "time_limit": seconds}
        machine = given.pop("topology", "cpu")
        if (target := given.pop("target", None)) is not None:
            import tvm

            machine = read_target(tvm.target.Target(target) if isinstance(target, str) else target)
        # Values that are not embedded share the memory of PyTorch's tensors.
        chosen = CompileOptions.of(machine, **{"parameters": "external", **given})
        check_before(chosen, "latency")
        return cls(chosen, **own)


def backend(
    graph: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compile a graph of Dynamo; ``torch.compile(model, backend="tvm_sched", options=options)`` calls this.

    The artifact for the sizes of a call is made in the first call with these sizes; that of a graph with dynamic sizes takes
    any size, if it can be compiled so.

    Parameters
    ----------
    graph, example_inputs
        As Dynamo gives them.
    mode
        None, for which ``torch.compile`` also takes ``"default"``.
    options
        As `BackendOptions.of` reads them.

    Raises
    ------
    InputError
        A mode, or a wrong option.

    Examples
    --------
    >>> import torch
    >>> model = torch.nn.Linear(3, 2).eval()
    >>> compiled = torch.compile(model, backend=backend, options={"topology": "cpu1", "scheduler": "single"})
    >>> with torch.no_grad():
    ...     torch.allclose(compiled(torch.ones(4, 3)), model(torch.ones(4, 3)))
    ...
    True
    """
    if mode is not None:
        raise InputError(
            f"mode is {mode!r}; the backend tvm_sched has the mode 'default' only: give options, such as "
            '{"topology": "cpu", "time_limit": 10}'
        )
    chosen = BackendOptions.of(options)
    trace = CompileContext.current_compile_id()
    name = f"graph {trace}" if trace else "graph"

    def training(reason: str) -> None:
        message = f"{name} {reason}, which artifacts do not compute; {_ASK_FOR_NO_GRADIENTS}"
        if not chosen.fallback:
            raise InputError(message)
        _warn(f"{message}. PyTorch runs it.")

    if torch.is_grad_enabled() and any(isinstance(x, torch.Tensor) and x.requires_grad for x in example_inputs):
        training("is called with gradients enabled and tensors that require them")
        return graph.forward

    def differentiated(functional: torch.fx.GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
        training("enables gradients inside the model")
        return make_boxed_func(functional.forward)

    def inference(functional: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        if _computes_nothing(functional):
            return make_boxed_func(functional.forward)
        _cast_by_aten(functional)
        return make_boxed_func(_Graph(name, functional, _static_inputs(), chosen))

    transform = aot_autograd(
        fw_compiler=differentiated,
        bw_compiler=lambda functional, _: make_boxed_func(functional.forward),
        inference_compiler=inference,
        decompositions=_FUSED,
    )
    return transform(graph, example_inputs)


def _cast_by_aten(functional: torch.fx.GraphModule) -> None:
    """Replace casts that Dynamo itself puts beside numbers that change, and torch.export does not decompose."""
    for node in functional.graph.find_nodes(op="call_function", target=torch.ops.prims.convert_element_type.default):
        value, dtype = node.args
        node.target, node.args, node.kwargs = torch.ops.aten._to_copy.default, (value,), {"dtype": dtype}
    functional.recompile()


def _attention(
    query: Any, key: Any, value: Any, embed_dim: int, num_head: int, qkv_weight: Any, qkv_bias: Any, proj_weight: Any,
    proj_bias: Any, mask: Any = None, need_weights: bool = True, average_attn_weights: bool = True, mask_type: Any = None,
) -> tuple[Any, Any]:  # fmt: skip
    """Compute `nn.MultiheadAttention`, one operator without gradients, in parts; true elements of the mask hide keys."""
    inputs = zip((query, key, value), qkv_weight.chunk(3), qkv_bias.chunk(3), strict=True)
    q, k, v = (functional.linear(x, w, b).unflatten(-1, (num_head, -1)).transpose(1, 2) for x, w, b in inputs)
    scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
    if mask is not None:
        hidden = mask.to(torch.bool)
        scores = scores.masked_fill(hidden[:, None, None] if mask_type == 1 else hidden, float("-inf"))
    shares = scores.softmax(-1)
    result = functional.linear((shares @ v).transpose(1, 2).flatten(2), proj_weight, proj_bias)
    return result, (shares.mean(1) if average_attn_weights else shares) if need_weights else None


def _encoder_layer(
    src: Any, embed_dim: int, num_heads: int, qkv_weight: Any, qkv_bias: Any, proj_weight: Any, proj_bias: Any,
    use_gelu: bool, norm_first: bool, eps: float, norm_weight_1: Any, norm_bias_1: Any, norm_weight_2: Any, norm_bias_2: Any,
    ffn_weight_1: Any, ffn_bias_1: Any, ffn_weight_2: Any, ffn_bias_2: Any, mask: Any = None, mask_type: Any = None,
) -> Any:  # fmt: skip
    """Compute `nn.TransformerEncoderLayer`, one operator without gradients, in parts."""

    def attend(x: Any) -> Any:
        weights = (qkv_weight, qkv_bias, proj_weight, proj_bias)
        return _attention(x, x, x, embed_dim, num_heads, *weights, mask, False, mask_type=mask_type)[0]

    def feed(x: Any) -> Any:
        inner = functional.linear(x, ffn_weight_1, ffn_bias_1)
        return functional.linear(functional.gelu(inner) if use_gelu else inner.relu(), ffn_weight_2, ffn_bias_2)

    def norm(x: Any, weight: Any, bias: Any) -> Any:
        return functional.layer_norm(x, (embed_dim,), weight, bias, eps)

    if norm_first:
        src = src + attend(norm(src, norm_weight_1, norm_bias_1))
        return src + feed(norm(src, norm_weight_2, norm_bias_2))
    src = norm(src + attend(src), norm_weight_1, norm_bias_1)
    return norm(src + feed(src), norm_weight_2, norm_bias_2)


_FUSED = {
    torch.ops.aten._native_multi_head_attention.default: _attention,
    torch.ops.aten._transformer_encoder_layer_fwd.default: _encoder_layer,
}


def _static_inputs() -> frozenset[int]:
    """Return the positions of parameters and buffers that the graph does not write, which AOTAutograd traces now."""
    context = TracingContext.try_get()
    about = context.fw_metadata if context is not None else None
    if about is None:
        return frozenset()
    return frozenset(k for k in about.static_input_indices if not about.input_info[k].mutates_data)


def _is_view(node: torch.fx.Node) -> bool:
    """Whether the result shares memory with the first operand."""
    return (
        isinstance(node.target, torch._ops.OpOverload)
        and len(node.target._schema.returns) == 1
        and node.target._schema.returns[0].alias_info is not None
        and bool(node.args)
        and isinstance(node.args[0], torch.fx.Node)
    )


def _split_views(graph: torch.fx.GraphModule) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule | None]:
    """Split a graph whose outputs share memory into one that computes tensors, and one that makes the outputs of them.

    The second takes the arguments of the graph, then the results of the first. It is None if no memory is shared.
    """
    output = graph.graph.output_node()
    bases: dict[Any, Any] = {}
    for result in (each for each in output.args[0] if isinstance(each, torch.fx.Node)):
        base = result
        while _is_view(base):
            base = base.args[0]
        bases[result] = base
    distinct = list(dict.fromkeys(bases.values()))
    computed = [base for base in distinct if base.op != "placeholder"]
    shared = len(distinct) < len(bases) or len(computed) < len(distinct) or len(bases) < len(output.args[0])
    head, copied = torch.fx.Graph(), dict[torch.fx.Node, torch.fx.Node]()
    head.graph_copy(graph.graph, copied)
    head.output(tuple(copied[base] for base in computed) if shared else torch.fx.map_arg(output.args[0], copied.get))
    computing = torch.fx.GraphModule(graph, head)
    if not shared:
        return computing, None
    tail = torch.fx.Graph()
    known = {node: tail.placeholder(node.name) for node in graph.graph.find_nodes(op="placeholder")}
    known |= {base: tail.placeholder(f"result_{k}") for k, base in enumerate(computed)}

    def copy(node: torch.fx.Node) -> torch.fx.Node:
        if node not in known:
            known[node] = tail.node_copy(node, copy)
        return known[node]

    tail.output(torch.fx.map_arg(output.args[0], copy))
    return computing, torch.fx.GraphModule(graph, tail)


def _lift_constants(graph: torch.fx.GraphModule) -> list[torch.Tensor]:
    """Turn the constant tensors of a graph into arguments behind the others, and return them."""
    constants = []
    last = (graph.graph.find_nodes(op="placeholder") or [graph.graph._root])[-1]
    for node in graph.graph.find_nodes(op="get_attr"):
        if isinstance(value := getattr(graph, node.target, None), torch.Tensor):
            with graph.graph.inserting_after(last):
                last = graph.graph.placeholder(node.name)
            node.replace_all_uses_with(last)
            graph.graph.erase_node(node)
            constants.append(value)
    for name, _ in list(graph.named_buffers(recurse=False)):
        delattr(graph, name)  # torch.export would make it an input, which nothing reads
    graph.recompile()
    return constants


def _computes_nothing(graph: torch.fx.GraphModule) -> bool:
    """Whether all operators are views, or arithmetic of sizes."""
    return all(
        not isinstance(node.target, torch._ops.OpOverload)
        or any(value.alias_info is not None for value in node.target._schema.returns)
        or not isinstance(node.meta.get("val"), (torch.Tensor, tuple, list))
        for node in graph.graph.nodes
        if node.op == "call_function"
    ) and not any(node.op == "get_attr" for node in graph.graph.nodes)


def _warn(message: str) -> None:
    warnings.warn(message, EagerWarning, stacklevel=3)


@dataclass(frozen=True)
class _Artifact:
    """An artifact for the sizes of one call, or for any size."""

    run: Callable[..., list[Any]]
    varying: tuple[int, ...]
    """Positions of the arguments that are its inputs."""
    results: tuple[Any, ...]
    """For each result of the graph the shape and the strides of a tensor, or the value of what is no tensor."""

    def __call__(self, arguments: Sequence[Any]) -> list[Any]:
        values = iter(self.run(*(arguments[k].detach() for k in self.varying)))
        return [self._result(next(values), form) if isinstance(form, _Layout) else form for form in self.results]

    @staticmethod
    def _result(value: Any, layout: _Layout) -> torch.Tensor:
        tensor = value if isinstance(value, torch.Tensor) else torch.from_dlpack(value)
        if layout.strides is None or tensor.stride() == layout.strides:
            return tensor
        return torch.empty_strided(layout.shape, layout.strides, dtype=tensor.dtype, device=tensor.device).copy_(tensor)


@dataclass(frozen=True)
class _Layout:
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    """None: those of a contiguous tensor."""


@dataclass
class _Artifacts:
    """The artifacts of a graph by sizes, and the tensors whose values they hold."""

    frozen: tuple[tuple[int, torch.Tensor, int], ...]
    """Position, the tensor, which keeps its memory from being used again, and its version."""
    by_sizes: dict[tuple[Any, ...], _Artifact | None] = field(default_factory=dict)
    """None: PyTorch computes these sizes."""
    any_size: _Artifact | None = None
    refused: set[tuple[Any, ...]] = field(default_factory=set)
    """Sizes that the artifact for any size does not take."""

    @classmethod
    def of(cls, arguments: Sequence[Any], static: frozenset[int]) -> _Artifacts:
        # Tensors of inference mode have no version, so a write to them could not be noticed.
        held = [k for k in sorted(static) if not arguments[k].is_inference()]
        return cls(tuple((k, arguments[k].detach(), arguments[k]._version) for k in held))

    def knows(self, key: tuple[Any, ...]) -> bool:
        """Whether it is decided what computes these sizes."""
        return key in self.by_sizes or (self.any_size is not None and key not in self.refused)

    def of_sizes(self, key: tuple[Any, ...]) -> _Artifact | None:
        """Return what computes these sizes; None: PyTorch."""
        return self.by_sizes.get(key) if key in self.by_sizes or key in self.refused else self.any_size

    def changed(self, arguments: Sequence[Any]) -> bool:
        """Whether a call brings other tensors, or these with values that were written since."""
        return any(
            arguments[k].data_ptr() != tensor.data_ptr() or arguments[k]._version != version
            for k, tensor, version in self.frozen
        )


@dataclass(frozen=True)
class _DynamicSizes:
    """Where sizes of a graph's arguments are dynamic."""

    dims: Mapping[int, tuple[int, ...]]
    """Dynamic dimensions of the tensors, by position."""
    numbers: Mapping[int, tuple[int, int]]
    """Of arguments that are sizes themselves: a tensor and its dimension of this size."""


def _dynamic_sizes(graph: torch.fx.GraphModule) -> _DynamicSizes | None:
    """Return the dynamic sizes; None if there are none, or if one is not the size of a tensor."""
    values = [node.meta.get("val") for node in graph.graph.find_nodes(op="placeholder")]
    dims = {
        k: tuple(dim for dim, size in enumerate(value.shape) if isinstance(size, torch.SymInt))
        for k, value in enumerate(values) if _is_tensor(value)
    }  # fmt: skip
    sources = {str(values[k].shape[dim]): (k, dim) for k in dims for dim in dims[k]}
    numbers = {k: str(value) for k, value in enumerate(values) if isinstance(value, torch.SymInt)}
    if not any(dims.values()) or not sources.keys() >= set(numbers.values()):
        return None
    return _DynamicSizes(dims, {k: sources[name] for k, name in numbers.items()})


class _Bound(torch.nn.Module):
    """A graph as a function of some of its arguments; the other tensors are buffers, and the numbers constants or sizes."""

    def __init__(
        self,
        graph: torch.fx.GraphModule,
        arguments: Sequence[Any],
        varying: Sequence[int],
        dynamic: _DynamicSizes | None = None,
    ) -> None:
        super().__init__()
        self.graph, self.varying, self.arguments = graph, varying, list(arguments)
        self.numbers = dynamic.numbers if dynamic else {}
        for k, (argument, node) in enumerate(zip(arguments, graph.graph.find_nodes(op="placeholder"), strict=True)):
            if _is_tensor(argument):
                self.arguments[k] = None
                if k not in varying:
                    self.register_buffer(node.name, argument.detach())
                    self.arguments[k] = node.name

    def forward(self, *inputs: Any) -> Any:
        given = dict(zip(self.varying, inputs, strict=True))
        held = [getattr(self, x) if isinstance(x, str) else x for x in self.arguments]
        given |= {k: given[tensor].shape[dim] for k, (tensor, dim) in self.numbers.items()}
        return self.graph(*(given.get(k, x) for k, x in enumerate(held)))


class _Graph:
    """A graph with its artifacts, one for any size or for each combination of sizes; callable from several threads."""

    def __init__(self, name: str, graph: torch.fx.GraphModule, static: frozenset[int], options: BackendOptions) -> None:
        self._name, self._graph, self._options = name, graph, options
        self._head, self._views = _split_views(graph)
        self._constants = _lift_constants(self._head)
        self._static = static if options.freeze else frozenset()
        self._made: _Artifacts | None = None
        self._full = False
        self._dynamic = _dynamic_sizes(self._head) if options.any_size and options.compile.takes_open_sizes else None

    def __call__(self, *arguments: Any) -> Any:
        key = tuple(tuple(x.shape) if _is_tensor(x) else x for x in arguments)
        made = self._made
        if made is None or made.changed(arguments) or not made.knows(key):
            with compile_lock:  # Dynamo's: neither it nor torch.export may run in two threads at once
                made = self._with_sizes(key, arguments)
        artifact = made.of_sizes(key)
        if artifact is None:
            return self._graph(*arguments)
        try:
            results = artifact(arguments)
        except InputError:
            if artifact is not made.any_size:
                raise
            made.refused.add(key)  # where an export found less general than Dynamo's graph
            return self(*arguments)
        return results if self._views is None else self._views(*arguments, *results)

    def _with_sizes(self, key: tuple[Any, ...], arguments: Sequence[Any]) -> _Artifacts:
        """Return the artifacts, now with one for these sizes, unless there are too many."""
        made = self._made
        if made is not None and made.changed(arguments):
            _LOG.warning(
                "%s: parameters or buffers differ from those of the first call, so they become inputs of the artifact; "
                "set them before the first call, or call torch.compiler.reset() afterwards",
                self._name,
            )
            made, self._static = None, frozenset()
        if made is None:
            made = self._made = _Artifacts.of(arguments, self._static)
        if self._dynamic is not None and made.any_size is None:
            made.any_size = self._make(arguments, made, self._dynamic)
            if made.any_size is None:
                self._dynamic = None
        if not made.knows(key):
            if len(made.by_sizes) >= self._options.size_limit:
                self._refuse_sizes(arguments)
            else:
                made.by_sizes[key] = self._make(arguments, made)
        return made

    def _refuse_sizes(self, arguments: Sequence[Any]) -> None:
        if not self._full:
            self._full = True
            sizes = ", ".join(
                str(list(x.shape)) for k, x in enumerate(arguments) if k not in self._static and _is_tensor(x)
            )
            self._refuse(
                f"{self._name} has artifacts for {self._options.size_limit} combinations of sizes, and is called with "
                f"another ({sizes}): raise size_limit, or pad inputs to fewer sizes"
            )
        elif not self._options.fallback:
            raise InputError(f"{self._name} is called with more sizes than size_limit={self._options.size_limit}")

    def _refuse(self, message: str, cause: Exception | None = None) -> None:
        if not self._options.fallback:
            raise InputError(message) from cause
        _warn(f"{message}. PyTorch runs it.")

    def _make(
        self, arguments: Sequence[Any], made: _Artifacts, dynamic: _DynamicSizes | None = None
    ) -> _Artifact | None:
        began = time.perf_counter()
        try:
            # In its first call of a compiled function, AOTAutograd watches all operators, which disturbs an export.
            with _disable_current_modes(), torch.inference_mode(False), torch.no_grad():
                artifact = self._compile(arguments, {k for k, _, _ in made.frozen}, dynamic)
        except Exception as error:  # torch.export and TVM raise many unrelated classes
            first = (str(error).strip().splitlines() or [type(error).__name__])[0]
            if dynamic is None:
                self._refuse(f"{self._name} is not compiled: {first}", error)
            else:
                _LOG.info("%s: is compiled for each combination of sizes, since for any: %s", self._name, first)
            return None
        _LOG.info("%s: compiled in %.1f s", self._name, time.perf_counter() - began)
        return artifact

    def _compile(self, arguments: Sequence[Any], frozen: set[int], dynamic: _DynamicSizes | None) -> _Artifact:
        for argument in arguments:
            if _is_tensor(argument) and argument.device.type not in _DEVICES[self._options.compile.backend == "cuda"]:
                raise InputError(
                    f"it reads a tensor on the device {argument.device}; move the model and its inputs to the CPU, or give "
                    "the options topology and backend='cuda' for GPUs"
                )
        self._progress("exporting", 0, 0)
        varying = tuple(k for k, x in enumerate(arguments) if k not in frozen and _is_tensor(x))
        program = self._export(arguments, varying, dynamic)
        with warnings.catch_warnings():
            if dynamic is not None:  # it advises to list sizes, for which there is no option here
                warnings.simplefilter("ignore", ModelWarning)
            compiled = compile(program, self._options.compile, name=self._name, progress=self._progress)
        self._progress("done", 1, 1)
        return _Artifact(compiled.module.run_tensors, varying, _results(program))

    def _export(self, arguments: Sequence[Any], varying: Sequence[int], dynamic: _DynamicSizes | None) -> Any:
        """Return the program of the graph for the sizes of a call or for any, with the frozen tensors as its buffers."""
        shapes = None
        if dynamic is not None:
            auto = torch.export.Dim.AUTO
            shapes = (tuple(dict.fromkeys(dynamic.dims.get(k, ()), auto) for k in varying),)
        inputs = tuple(arguments[k].detach() for k in varying)  # without the marks of mark_dynamic
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.export.export(
                _Bound(self._head, [*arguments, *self._constants], varying, dynamic), inputs,
                dynamic_shapes=shapes, strict=False,
            )  # fmt: skip

    def _progress(self, what: str, done: int, total: int) -> None:
        chosen = self._options.progress
        if callable(chosen):
            chosen(f"{self._name}: {what}", done, total)
            return
        text = f"{self._name}: {what} ({done} of {total})" if total else f"{self._name}: {what}"
        if chosen:
            print(text, file=sys.stderr)
        _LOG.info(text)


_DEVICES = {False: ("cpu",), True: ("cpu", "cuda")}


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _results(program: Any) -> tuple[Any, ...]:
    (output,) = (node for node in program.graph.nodes if node.op == "output")
    forms: list[Any] = []
    for value in output.args[0]:
        known = value.meta["val"] if isinstance(value, torch.fx.Node) else value
        is_open = _is_tensor(known) and any(isinstance(size, torch.SymInt) for size in known.shape)
        if isinstance(known, torch.SymInt) or (is_open and not known.is_contiguous()):
            raise InputError("a result is a size, or is not contiguous")
        if _is_tensor(known):
            forms.append(_Layout(tuple(known.shape), None if is_open else known.stride()))
        else:
            forms.append(known)
    return tuple(forms)
