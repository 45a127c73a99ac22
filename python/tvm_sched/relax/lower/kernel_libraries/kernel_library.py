"""Kernel libraries by name, and the kernels that they claim in a module."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tvm
from tvm import relax

from tvm_frontends.imported_model import data_address

from ....registry import Registry
from ...ir.attributes import get_compile_target
from ...ir.sizes import EXAMPLES, describe_sizes, example_for, example_of, examples_of, sizes_of

KERNELS = "tvm_sched.kernels"
"""Module attribute: for each function of a library, a JSON document ``{"library", "flops", "kernel", "in_place"}``; the last
is left out where the function updates no input (`kernel_in_place`)."""
VARIABLE = "TVM_SCHED_KERNEL_LIBRARIES"
"""Environment variable: comma-separated names of the libraries to use; empty for none."""

Names = dict[int, str]
Cores = Mapping[str, tuple[int, int]]
"""By function name: ``(k, n)`` for k n-ths of the machine's cores."""


@dataclass(frozen=True)
class KernelLibrary:
    """A library of kernels.

    Examples
    --------
    >>> from tvm_sched.relax.lower.kernel_libraries import get_library
    >>> get_library("onednn").device_kind, get_library("onednn").why_not()
    ('cpu', None)
    """

    name: str
    device_kind: str
    """The kind of devices that its kernels run on."""
    why_not: Callable[[], str | None]
    """Returns why the library cannot be used in this process (not installed, for instance); None if it can."""
    claim: Callable[[tvm.IRModule, KernelSet, Names], tvm.IRModule]
    """``(mod, kernels, names) -> mod``: replace operators of ``main`` by calls that ``kernels`` (a `KernelSet`) builds.
    ``names`` holds the names of constants by `data_address`; the library may add constants."""
    make_module: Callable[[Mapping[str, dict[str, Any]], Cores, int | None], tvm.runtime.Module]
    """``(kernels, cores, threads) -> module``: build the runtime module from the descriptions by function name, each
    function's share of the machine's cores, and the artifact's number of threads (None: all cores). The module must be
    serialisable, and loadable without a compiler."""


LIBRARIES: Registry[KernelLibrary] = Registry(
    "kernel library",
    "tvm_sched.kernel_libraries",
    {
        "onednn": f"{__package__}.onednn:LIBRARY",
        "handwritten_cuda": f"{__package__}.handwritten_cuda:LIBRARY",
        "nvidia": f"{__package__}.nvidia:LIBRARY",
        "language": f"{__package__}.language_library:LIBRARY",
    },
)


def register(library: KernelLibrary) -> KernelLibrary:
    """Register a library; it replaces a library of the same name.

    Examples
    --------
    >>> from tvm_sched.relax.lower.kernel_libraries import get_library, register
    >>> register(get_library("onednn")).name
    'onednn'
    """
    return LIBRARIES.add(library.name, library)


def get_library(name: str) -> KernelLibrary:
    """Return the library of a name; raises `InputError` for an unknown name.

    Examples
    --------
    >>> from tvm_sched.relax.lower.kernel_libraries import get_library
    >>> get_library("onednn").name
    'onednn'
    """
    return LIBRARIES.get(name)


def available_libraries(device_kind: str = "cpu") -> tuple[str, ...]:
    """Return the usable libraries for a kind of device, restricted to those in the environment variable if it is set.

    Examples
    --------
    >>> from tvm_sched.relax.lower.kernel_libraries import available_libraries
    >>> available_libraries("cpu")
    ('onednn', 'language')
    """
    asked = os.environ.get(VARIABLE)
    if asked is not None:
        names = [name.strip() for name in asked.split(",") if name.strip()]
        return tuple(name for name in names if get_library(name).device_kind == device_kind)
    LIBRARIES.names()
    known = dict.fromkeys([*LIBRARIES.own, *LIBRARIES.entries])  # the built-in libraries claim first
    return tuple(n for n in known if get_library(n).device_kind == device_kind and get_library(n).why_not() is None)


@dataclass
class KernelSet:
    """The kernels that a library has claimed in a module.

    ``constants`` keeps new constants alive, since `data_address` is valid only while a constant lives. ``archs`` are the GPU
    architectures to compile for, as `tvm_sched.relax.codegen.cuda.architectures` takes them.

    Examples
    --------
    >>> from tvm_sched.relax.lower.kernel_libraries import KernelSet
    >>> KernelSet("onednn").documents
    {}
    """

    library: str
    archs: Sequence[str] = ()
    documents: dict[str, str] = field(default_factory=dict)
    constants: list[Any] = field(default_factory=list)
    with_sizes: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    """The descriptions with open sizes as `Size`, by function."""
    examples: dict[tuple[Any, ...], list[list[int]]] = field(default_factory=dict)
    """Sizes for which a library checks kernels before an artifact is written, by the symbols that they are examples of."""

    def call(
        self, kind: str, kernel: Mapping[str, Any], arguments: list[relax.Expr], ty: Any, flops: Any
    ) -> relax.Call:
        """Call a new function that computes what ``kernel`` describes.

        Parameters
        ----------
        kind : str
            Name of the operator, such as ``"conv2d_bias_relu"``.
        kernel : mapping
            The library's own description.
        ty : TensorType
            Type of the result.
        flops : int or Size
            Floating-point operations.
        """
        name = f"{self.library}.{kind}_{len(self.documents)}"
        content = {"library": self.library, "flops": max(0, example_of(flops, example_for([flops]) or EXAMPLES[0]))}
        self.documents[name] = json.dumps({**content, "kernel": {}})
        self.with_sizes[name] = kernel
        taken = self.takes_shapes(name, [*(sizes_of(argument) or () for argument in arguments), sizes_of(ty) or ()])
        assert taken, f"the sizes of {name} do not follow from its tensors"
        return relax.call_dps_packed(name, relax.Tuple(arguments), out_ty=relax.TensorType(ty.shape, ty.dtype.dtype))

    def takes_shapes(self, function: str, shapes: Sequence[Sequence[Any]]) -> bool:
        """Describe a function for tensors of these shapes; return False if its sizes do not follow from them."""
        described = describe_sizes(self.with_sizes[function], shapes)
        if described is None:
            return False
        kernel, symbols, sizes = described
        if symbols:
            examples = self.examples[sizes] = self.examples.get(sizes) or examples_of(sizes)
            kernel = {**kernel, "symbols": symbols, "examples": examples}
        content = json.loads(self.documents[function])
        content["kernel"] = kernel
        self.documents[function] = json.dumps(content)
        return True

    def describe(self, function: str, **fields: Any) -> None:
        """Add fields to the library's description of a function."""
        content = json.loads(self.documents[function])
        self.documents[function] = json.dumps({**content, "kernel": {**content["kernel"], **fields}})

    def constant(self, value: Any, name: str | None, names: Names) -> relax.Expr:
        """Make a constant, named ``name`` if it is not None."""
        result = relax.const(tvm.runtime.tensor(value))
        if name is not None:
            names[data_address(result)] = name
        self.constants.append(result)
        return result

    def derived_constant(self, value: Any, source: Any, names: Names, suffix: str = "") -> relax.Expr:
        """Make a constant, named after the constant ``source`` with a suffix; unnamed if ``source`` has no name."""
        name = names.get(data_address(source)) if isinstance(source, tvm.ir.GenericConst) else None
        return self.constant(value, None if name is None else name + suffix, names)


def claimed_functions(mod: tvm.IRModule) -> set[str]:
    """Return the functions of a module that kernel libraries compute.

    Examples
    --------
    >>> from tvm_sched.relax.lower.kernel_libraries import claimed_functions
    >>> sorted(claimed_functions(lowered))
    ['onednn.matmul_tanh_0']
    """
    return {str(name) for name in _documents(mod)}


def kernel_flops(mod: tvm.IRModule, function: str) -> int:
    """Return the floating-point operations of a library's function; 0 for other functions.

    Examples
    --------
    >>> from tvm_sched.relax.lower.kernel_libraries import claimed_functions, kernel_flops
    >>> [kernel_flops(lowered, name) for name in claimed_functions(lowered)]
    [28]
    """
    documents = _documents(mod)
    return int(json.loads(str(documents[function]))["flops"]) if function in documents else 0


def kernel_in_place(mod: tvm.IRModule, function: str) -> dict[int, int]:
    """Return the inputs that a library's function updates in place (`tvm_sched.execution_plan.KernelCall.in_place`).

    Examples
    --------
    >>> from tvm_sched.relax.lower.kernel_libraries import claimed_functions, kernel_in_place
    >>> [kernel_in_place(lowered, name) for name in claimed_functions(lowered)]
    [{}]
    """
    documents = _documents(mod)
    if function not in documents:
        return {}
    return {
        int(output): position for output, position in json.loads(str(documents[function])).get("in_place", {}).items()
    }


def kernel_document(mod: tvm.IRModule, function: str) -> tuple[str, dict[str, Any]]:
    """Return the name of the library that computes a function, and the library's description.

    Examples
    --------
    >>> from tvm_sched.relax.lower.kernel_libraries import claimed_functions, kernel_document
    >>> [kernel] = claimed_functions(lowered)
    >>> kernel_document(lowered, kernel)[0]
    'onednn'
    """
    content = json.loads(str(_documents(mod)[function]))
    return content["library"], content["kernel"]


def make_modules(mod: tvm.IRModule, functions: Mapping[str, str], cores: Cores) -> list[tvm.runtime.Module]:
    """Build the runtime modules for the functions of a module that libraries compute.

    Parameters
    ----------
    functions : mapping of str to str
        Name in the artifact of each function.
    cores : mapping of str to (int, int)
        Share of the machine's cores of each function, by its name in ``mod``.
    """
    shares = {name: cores[function] for function, name in functions.items() if function in cores}
    by_library: dict[str, dict[str, Any]] = {}
    for function, document in _documents(mod).items():
        if str(function) in functions:
            content = json.loads(str(document))
            by_library.setdefault(content["library"], {})[functions[str(function)]] = content["kernel"]
    threads = get_compile_target(mod).threads
    return [get_library(library).make_module(kernels, shares, threads) for library, kernels in by_library.items()]


def _documents(mod: tvm.IRModule) -> Mapping[Any, Any]:
    """Return the JSON documents by function, as TVM strings, since callers decode only a few of possibly thousands."""
    return mod.attrs[KERNELS] if mod.attrs and KERNELS in mod.attrs else {}
