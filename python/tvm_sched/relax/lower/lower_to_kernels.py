"""LowerToKernels: libraries claim operators, TVM lowers and fuses the others; parameters are folded and named."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from threading import RLock

import tvm
from tvm import relax

from tvm_frontends.errors import ModelWarning
from tvm_frontends.imported_model import PARAMETERS, data_address, lift_constants, main_constants, number_of_inputs

from ...errors import InputError
from ...progress import report_progress
from ..ir.attributes import DEVICE_KIND, get_compile_target
from ..toolchain.compile_target import BFLOAT16, TF32
from . import comparisons, extremum_positions, half_precision, max_pools, scatters, zero_factors
from .dynamic_tail import tail_operators
from .fold_parameters import Names, fold_parameters
from .half_convolutions import prepare_half_convolutions
from .kernel_libraries import KERNELS, KernelSet, available_libraries, get_library
from .kernel_libraries.kernel_library import VARIABLE
from .kernel_libraries.packed_products import expand_packed_products
from .kernel_libraries.rewrite import operation
from .operators_without_kernel import simplify
from .scans import widen_scans
from .split_tail import split_tail

MOST_FUSED = 32
"""Most operators of a fused kernel. LLVM's time for a kernel grows faster than its length; TVM's own limit is 256."""
_LOWERING = RLock()
"""Held while a module is lowered: TVM 0.27 keeps operator tags (`tvm.te.tag_scope`) in one variable for all threads."""


@tvm.transform.module_pass(opt_level=0, name="tvm_sched.LowerToKernels")
class LowerToKernels:
    """Lower the function ``main`` so that each of its bindings is a call of one kernel.

    Operators are decomposed, legalised to PrimFuncs and fused, and calls on parameters are folded. Then constants of
    ``main`` become arguments after the inputs (the function attribute ``num_input`` is the number of inputs), and the
    module attribute ``tvm_frontends.parameters`` holds their values by name.

    Parameters of an imported model keep their names. Folded constants are named after their parameter
    (``conv1.bias.reshape``). Operators whose sizes are known only at run time are first moved out of ``main`` (`SplitTail`),
    with a `ModelWarning`.

    Parameters
    ----------
    fold : bool
        Whether to fold calls on parameters. If not, they remain operators, and parameters are as in the model's file.
    libraries : sequence of str, optional
        Kernel libraries that claim operators, in this order; TVM compiles all other operators. The module attribute
        ``tvm_sched.kernels`` describes the claimed kernels. Default: `available_libraries`.
    device_kind : {"cpu", "cuda"}
        The device kind of the kernels, which selects the libraries. GPU loops are scheduled at compilation.
    archs : sequence of str
        The GPUs that libraries compile kernels for, such as ``"sm_90"``.
    after_fusion : sequence of passes
        Passes such as `tvm_sched.relax.passes.OfferVariants`, run after operators are fused and before fused functions
        become kernels.
    before_fusion : sequence of passes
        Passes such as `tvm_sched.relax.passes.SplitRows`, run when each call of ``main`` is one of a PrimFunc.

    Raises
    ------
    tvm_sched.errors.InputError
        The module has no Relax function ``main``.

    Examples
    --------
    >>> import tvm_frontends
    >>> from tvm_sched.relax.passes import LowerToKernels
    >>> imported = tvm_frontends.load_model("model.onnx", {"x": (2, 3)})
    >>> kernels = LowerToKernels(libraries=())(imported.mod)
    >>> sorted(variable.name_hint for variable in kernels.functions)
    ['fused_matmul_tir_tanh', 'main']
    """

    def __init__(
        self,
        fold: bool = True,
        libraries: Sequence[str] | None = None,
        device_kind: str = "cpu",
        archs: Sequence[str] = (),
        after_fusion: Sequence[tvm.transform.Pass] = (),
        before_fusion: Sequence[tvm.transform.Pass] = (),
    ) -> None:
        self.fold = fold
        self.libraries = libraries
        self.device_kind = device_kind
        self.archs = tuple(archs)
        self.after_fusion = list(after_fusion)
        self.before_fusion = list(before_fusion)

    def transform_module(self, mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Transform a module."""
        with _LOWERING:
            return self._transformed(mod)

    def _transformed(self, mod: tvm.IRModule) -> tvm.IRModule:
        if "main" not in [v.name_hint for v in mod.get_global_vars()] or not isinstance(mod["main"], relax.Function):
            raise InputError("the module has no Relax function 'main', so there is nothing to schedule")
        values = dict(mod.attrs[PARAMETERS]) if mod.attrs and PARAMETERS in mod.attrs else {}
        names: Names = {}
        if self.fold and values:
            mod = _bind(mod, values, names)
            values = {}
        with tvm.target.Target("llvm"):  # some passes need a target that TVM knows
            mod = split_tail(simplify(mod))
            _warn_of_tail(mod)
            report_progress("folding parameters", 0, 0)
            mod, kept = fold_parameters(mod, names)
            libraries = available_libraries(self.device_kind) if self.libraries is None else self.libraries
            if self.libraries is None and self.device_kind == "cuda":
                _warn_of_missing_library(mod, libraries)
            precision = get_compile_target(mod).precision
            needed = {BFLOAT16: "onednn", TF32: "nvidia"}.get(precision)
            if needed is not None and needed not in libraries:
                raise InputError(f"precision {precision!r} takes the kernel library {needed!r}, which is not used here")
            transposed: list[object] = []
            if self.device_kind == "cuda" and "nvidia" in libraries:
                mod, transposed = prepare_half_convolutions(mod, names)
            dequantized = KernelSet("")
            if "language" not in libraries:
                mod = expand_packed_products(mod, dequantized, names)
            mod, claimed = _claim(mod, libraries, names, self.archs)
            report_progress("folding parameters again", 0, 0)
            mod, laid_out = fold_parameters(mod, names)  # libraries also change the layout of other operators
            report_progress("fusing operators", 0, 0)
            mod = self._legalize_and_fuse(mod)
        mod, constants = _lift(mod, names)
        del kept, transposed, dequantized, laid_out
        documents = dict(mod.attrs[KERNELS]) if KERNELS in mod.attrs else {}
        documents |= {name: text for kernels in claimed for name, text in kernels.documents.items()}
        mod = mod.with_attr(KERNELS, documents) if documents else mod
        mod = mod.with_attr(DEVICE_KIND, self.device_kind) if self.device_kind != "cpu" else mod
        return mod.with_attr(PARAMETERS, {**values, **constants})

    def _legalize_and_fuse(self, mod: tvm.IRModule) -> tvm.IRModule:
        transform = relax.transform
        with _operators_for(self.device_kind):
            legal = tvm.transform.Sequential(
                [
                    relax.backend.DispatchSampling(),
                    relax.backend.DispatchSortScan(),
                    transform.LegalizeOps(
                        {
                            **half_precision.legalizations(),
                            **comparisons.legalizations(),
                            **extremum_positions.legalizations(),
                            **max_pools.legalizations(),
                            **scatters.legalizations(),
                            **zero_factors.legalizations(),
                        }
                    ),
                ]
            )(widen_scans(mod))
        fuse = [transform.AnnotateTIROpPattern(), transform.FoldConstant(), transform.FuseOps()]
        last = [transform.FuseTIR(), transform.CanonicalizeBindings(), transform.DeadCodeElimination()]
        current = tvm.transform.PassContext.current()
        config = {**current.config, "relax.FuseOps.max_depth": MOST_FUSED}
        with tvm.transform.PassContext(
            current.opt_level, current.required_pass, current.disabled_pass, current.instruments, config
        ):
            return tvm.transform.Sequential([*self.before_fusion, *fuse, *self.after_fusion, *last])(legal)


def _operators_for(device_kind: str) -> tvm.target.Target:
    """Return the target by which TVM chooses the algorithm of operators such as scatters."""
    return tvm.target.Target({"kind": "cuda", "arch": "sm_80"} if device_kind == "cuda" else "llvm", host="llvm")


def _warn_of_tail(mod: tvm.IRModule) -> None:
    kinds = tail_operators(mod)
    if kinds:
        warnings.warn(
            f"{sum(kinds.values())} operators ({', '.join(kinds)}) have sizes that are known only when the model runs: "
            "TVM's virtual machine runs them after the schedule, whose latency does not include them",
            ModelWarning,
            stacklevel=2,
        )


def _warn_of_missing_library(mod: tvm.IRModule, libraries: Sequence[str]) -> None:
    """Warn if only the machine lacks NVIDIA's libraries, and the model has operators that they compute."""
    reason = get_library("nvidia").why_not()
    operators: list[str] = []
    relax.analysis.post_order_visit(mod["main"], lambda expr: operators.append(operation(expr)))
    count = sum(name in ("matmul", "nn.conv2d") for name in operators)
    if reason is None or not count or VARIABLE in os.environ or "nvidia" in libraries:
        return
    warnings.warn(
        f"TVM compiles {count} products and convolutions, which makes them several times slower on GPUs: {reason}. "
        f"{VARIABLE}=handwritten_cuda,nvidia uses the libraries all the same; then only the machine that runs the artifact "
        "needs them",
        ModelWarning,
        stacklevel=2,
    )


def _bind(mod: tvm.IRModule, values: dict[str, tvm.runtime.Tensor], names: Names) -> tvm.IRModule:
    """Replace parameters with known values by constants, and record their names."""
    function = mod["main"]
    bound = {v: values[v.name] for v in function.params[number_of_inputs(function) :] if v.name in values}
    for variable, value in bound.items():
        names[int(value.data_ptr())] = variable.name
    return relax.transform.BindParams("main", bound)(mod)


def _claim(
    mod: tvm.IRModule, libraries: Sequence[str], names: Names, archs: Sequence[str]
) -> tuple[tvm.IRModule, list[KernelSet]]:
    """Let the libraries claim operators one after the other; return the module and the claimed kernels."""
    claimed = []
    for position, name in enumerate(libraries):
        report_progress(f"choosing kernels of {name}", position, len(libraries))
        kernels = KernelSet(name, tuple(archs))
        mod = get_library(name).claim(mod, kernels, names)
        claimed.append(kernels)
    return mod, claimed


def _lift(mod: tvm.IRModule, names: Names) -> tuple[tvm.IRModule, dict[str, tvm.runtime.Tensor]]:
    """Make the constants of ``main`` its last arguments; return the module and their values by name."""
    used_names = {variable.name for variable in mod["main"].params}
    variables: dict[int, relax.Var] = {}
    values: dict[str, tvm.runtime.Tensor] = {}
    for constant in main_constants(mod):
        address = data_address(constant)
        name = base = names.get(address, "constant")
        count = 1
        while name in used_names:
            count += 1
            name = f"{base}.{count}"
        used_names.add(name)
        variables[address] = relax.Var(name, constant.ty)
        values[name] = constant.value
    return lift_constants(mod, variables), values
