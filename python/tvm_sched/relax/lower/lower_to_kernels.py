"""LowerToKernels: libraries claim operators, TVM lowers and fuses the others; parameters are folded and named."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from threading import RLock
from typing import Any

import tvm
from tvm import relax

from tvm_frontends.errors import ModelWarning
from tvm_frontends.imported_model import PARAMETERS, data_address, lift_constants, main_constants, number_of_inputs
from tvm_sched_runtime.errors import InputError

from ...progress import report_progress
from ..ir.attributes import CONSTANTS, DEVICE_KIND, get_compile_target
from ..ir.loops import is_scheduled
from ..toolchain.compile_target import BFLOAT16, TF32
from . import comparisons, extremum_positions, half_precision, max_pools, open_reshapes, scatters, zero_factors
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
_LEGALIZED = (half_precision, comparisons, extremum_positions, max_pools, open_reshapes, scatters, zero_factors)
"""Modules whose legalisations replace TVM's; of two for one operator, the later one."""
_OPAQUE = 8
"""TVM's pattern of kernels that are not fused."""
_LOWERING = RLock()
"""Held while a module is lowered: TVM 0.27 keeps operator tags (`tvm.te.tag_scope`) in one variable for all threads."""


@tvm.transform.module_pass(opt_level=0, name="tvm_sched.LowerToKernels")
class LowerToKernels:
    """Lower the function ``main`` so that each of its bindings is a call of one kernel.

    Operators are decomposed, legalised to PrimFuncs and fused, and calls on parameters are folded. Then constants of
    ``main`` become arguments after the inputs (the function attribute ``num_input`` is the number of inputs), and the
    module attribute ``tvm_frontends.parameters`` holds their values by name. `steps` are the passes that do this.

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
    stop_after : str, optional
        Name of the last of the `steps` that runs.

    Raises
    ------
    tvm_sched_runtime.errors.InputError
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
        stop_after: str | None = None,
    ) -> None:
        self.fold = fold
        self.libraries = libraries
        self.device_kind = device_kind
        self.archs = tuple(archs)
        self.after_fusion = list(after_fusion)
        self.before_fusion = list(before_fusion)
        self.stop_after = stop_after

    def steps(self) -> list[tvm.transform.Pass]:
        """Return the passes that lower a module, in order; they hand over names of constants in `CONSTANTS`."""
        libraries = available_libraries(self.device_kind) if self.libraries is None else self.libraries
        half = self.device_kind == "cuda" and "nvidia" in libraries
        fuse = [
            relax.transform.AnnotateTIROpPattern(),
            relax.transform.FoldConstant(),
            _as_pass("KeepSchedules", _keep_schedules),
            relax.transform.FuseOps(),
            _as_pass("InlineGroupsWithoutKernels", _inline_groups_without_kernels),
        ]
        last = [
            relax.transform.FuseTIR(),
            relax.transform.CanonicalizeBindings(),
            relax.transform.DeadCodeElimination(),
        ]
        return [
            *([_as_pass("BindParameters", _named(_bind))] if self.fold else []),
            _as_pass("SimplifyOperators", simplify),
            _as_pass("SplitTail", _split_tail),
            *([_as_pass("WidenHalf", _widen_half)] if "onednn" in libraries else []),
            _as_pass("FoldParameters", _named(partial(_fold, "folding parameters"))),
            *([_as_pass("PrepareHalfConvolutions", _named(prepare_half_convolutions))] if half else []),
            *([_as_pass("ExpandPackedProducts", _named(_expand))] if "language" not in libraries else []),
            _as_pass("ClaimOperators", _named(partial(self._claim, libraries))),
            # Libraries also change the layout of other operators.
            _as_pass("FoldParametersAgain", _named(partial(_fold, "folding parameters again"))),
            _as_pass("LegalizeOperators", self._legalize),
            *self.before_fusion,
            _as_pass("FuseOperators", tvm.transform.Sequential(fuse)),
            *self.after_fusion,
            _as_pass("MakeKernels", tvm.transform.Sequential(last)),
            _as_pass("LiftParameters", self._lift),
        ]

    def transform_module(self, mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Transform a module."""
        models = sorted(v.name_hint for v, function in mod.functions_items() if isinstance(function, relax.Function))
        if "main" not in models:
            others = f"; of {', '.join(models)}, name the one to schedule 'main'" if models else ""
            raise InputError(f"the module has no Relax function 'main', so there is nothing to schedule{others}")
        steps = self.steps()
        if self.stop_after is not None:
            steps = steps[: names_of(steps).index(self.stop_after) + 1]
        current = tvm.transform.PassContext.current()
        config = {**current.config, "relax.FuseOps.max_depth": MOST_FUSED}
        context = tvm.transform.PassContext(
            current.opt_level, current.required_pass, current.disabled_pass, current.instruments, config
        )
        with _LOWERING, tvm.target.Target("llvm"), context:  # some passes need a target that TVM knows
            return tvm.transform.Sequential(steps)(mod)

    def _claim(self, libraries: Sequence[str], mod: tvm.IRModule, names: Names) -> tuple[tvm.IRModule, list[Any]]:
        """Let the libraries claim operators one after the other."""
        if self.libraries is None and self.device_kind == "cuda":
            _warn_of_missing_library(mod, libraries)
        precision = get_compile_target(mod).precision
        needed = {BFLOAT16: "onednn", TF32: "nvidia"}.get(precision)
        if needed is not None and needed not in libraries:
            raise InputError(f"precision {precision!r} takes the kernel library {needed!r}, which is not used here")
        documents, constants = dict(mod.attrs[KERNELS]) if mod.attrs and KERNELS in mod.attrs else {}, []
        for position, name in enumerate(libraries):
            report_progress(f"choosing kernels of {name}", position, len(libraries))
            kernels = KernelSet(name, self.archs)
            mod = get_library(name).claim(mod, kernels, names)
            documents.update(kernels.documents)
            constants += kernels.constants
        for name, text in documents.items() if self.device_kind == "cuda" else ():
            if get_library(library := json.loads(str(text))["library"]).device_kind != "cuda":
                raise InputError(
                    f"kernel {str(name)!r} is of the library {library!r} for CPUs, and none of the libraries "
                    f"{', '.join(libraries) or '(none)'} has it for GPUs: compile for CPUs, or allow "
                    f"'handwritten_cuda' in {VARIABLE}"
                )
        return mod.with_attr(KERNELS, documents) if documents else mod, constants

    def _legalize(self, mod: tvm.IRModule) -> tvm.IRModule:
        report_progress("fusing operators", 0, 0)
        with _operators_for(self.device_kind):
            return tvm.transform.Sequential(
                [
                    relax.backend.DispatchSampling(),
                    relax.backend.DispatchSortScan(),
                    relax.transform.LegalizeOps(
                        {name: rule for each in _LEGALIZED for name, rule in each.legalizations().items()}
                    ),
                ]
            )(widen_scans(mod))

    def _lift(self, mod: tvm.IRModule) -> tvm.IRModule:
        """Make the constants of ``main`` its last arguments, and leave their values."""
        values = dict(mod.attrs[PARAMETERS]) if mod.attrs and PARAMETERS in mod.attrs else {}
        mod, constants = _lifted(mod, _names_of_constants(mod))
        mod = mod.without_attr(CONSTANTS) if CONSTANTS in (mod.attrs or ()) else mod
        mod = mod.with_attr(DEVICE_KIND, self.device_kind) if self.device_kind != "cpu" else mod
        return mod.with_attr(PARAMETERS, {**values, **constants})


def names_of(passes: Sequence[tvm.transform.Pass]) -> list[str]:
    """Return the names of passes, as ``--stop-after`` takes them.

    Examples
    --------
    >>> from tvm_sched.relax.lower.lower_to_kernels import names_of
    >>> from tvm_sched.relax.passes import LowerToKernels
    >>> names_of(LowerToKernels(libraries=()).steps())[-2:]
    ['MakeKernels', 'LiftParameters']
    """
    return [str(each.info.name).removeprefix("tvm_sched.") for each in passes]


def _as_pass(name: str, step: Callable[[tvm.IRModule], tvm.IRModule]) -> tvm.transform.Pass:
    @tvm.transform.module_pass(opt_level=0, name=f"tvm_sched.{name}")
    def run(mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tvm.IRModule:
        return step(mod)

    return run


def _keep_schedules(mod: tvm.IRModule) -> tvm.IRModule:
    """Keep kernels that have a schedule apart: fused to others, they would lose it."""
    result = mod.clone()
    for variable, function in mod.functions_items():
        if isinstance(function, tvm.tirx.PrimFunc) and is_scheduled(function):
            result.update_func(variable, function.with_attr("op_pattern", _OPAQUE))
    return result


def _inline_groups_without_kernels(mod: tvm.IRModule) -> tvm.IRModule:
    """Inline groups that only take fields of nested tuples, of which `FuseTIR` cannot make a kernel."""
    main, groups = mod["main"], {}
    for variable, function in mod.functions_items():
        if isinstance(function, relax.Function) and function.attrs and "Primitive" in function.attrs:
            bindings = [binding for block in function.body.blocks for binding in block.bindings]
            if not any(isinstance(binding.value, relax.Call) for binding in bindings):
                groups[variable] = function
    if not groups:
        return mod
    result = mod.clone()
    result["main"] = main.inline_functions(groups)
    return relax.transform.DeadCodeElimination()(relax.transform.CanonicalizeBindings()(result))


def _named(
    step: Callable[[tvm.IRModule, Names], tuple[tvm.IRModule, list[Any]]],
) -> Callable[[tvm.IRModule], tvm.IRModule]:
    """Return a step that reads the names of constants, and leaves those of its result.

    Names belong to addresses (`data_address`), so the step returns its new constants, which live until their values are in
    the attribute.
    """

    def run(mod: tvm.IRModule) -> tvm.IRModule:
        names = _names_of_constants(mod)
        changed, _kept = step(mod, names)
        found = [constant for constant in main_constants(changed) if data_address(constant) in names]
        values = [constant.value for constant in found]
        return changed.with_attr(CONSTANTS, [values, [names[data_address(constant)] for constant in found]])

    return run


def _names_of_constants(mod: tvm.IRModule) -> Names:
    values, names = mod.attrs[CONSTANTS] if mod.attrs and CONSTANTS in mod.attrs else ((), ())
    return {int(value.data_ptr()): str(name) for value, name in zip(values, names, strict=True)}


def _operators_for(device_kind: str) -> tvm.target.Target:
    """Return the target by which TVM chooses the algorithm of operators such as scatters."""
    return tvm.target.Target({"kind": "cuda", "arch": "sm_80"} if device_kind == "cuda" else "llvm", host="llvm")


def _split_tail(mod: tvm.IRModule) -> tvm.IRModule:
    mod = split_tail(mod)
    kinds = tail_operators(mod)
    if kinds:
        warnings.warn(
            f"{sum(kinds.values())} operators ({', '.join(kinds)}) depend on what is known only when the model runs: "
            "they run after the schedule, whose latency does not include them",
            ModelWarning,
            stacklevel=2,
        )
    return mod


def _widen_half(mod: tvm.IRModule) -> tvm.IRModule:
    return half_precision.WidenHalf(mod).run()


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


def _bind(mod: tvm.IRModule, names: Names) -> tuple[tvm.IRModule, list[Any]]:
    """Replace parameters with known values by constants, and record their names."""
    if not mod.attrs or PARAMETERS not in mod.attrs:
        return mod, []
    function, values = mod["main"], dict(mod.attrs[PARAMETERS])
    bound = {v: values[v.name] for v in function.params[number_of_inputs(function) :] if v.name in values}
    for variable, value in bound.items():
        names[int(value.data_ptr())] = variable.name
    return relax.transform.BindParams("main", bound)(mod.without_attr(PARAMETERS)), list(bound.values())


def _fold(doing: str, mod: tvm.IRModule, names: Names) -> tuple[tvm.IRModule, list[Any]]:
    report_progress(doing, 0, 0)
    return fold_parameters(mod, names)


def _expand(mod: tvm.IRModule, names: Names) -> tuple[tvm.IRModule, list[Any]]:
    kernels = KernelSet("")
    return expand_packed_products(mod, kernels, names), kernels.constants


def _lifted(mod: tvm.IRModule, names: Names) -> tuple[tvm.IRModule, dict[str, tvm.runtime.Tensor]]:
    """Return the module with the constants of ``main`` as its last arguments, and their values by name."""
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
