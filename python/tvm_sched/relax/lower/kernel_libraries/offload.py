"""`OffloadKernels`: kernels of a library in a build of TVM's own, without a schedule of ours."""

from __future__ import annotations

import json

import tvm

from tvm_sched_runtime.errors import InputError

from .kernel_library import KERNELS, KernelSet, get_library


@tvm.transform.module_pass(opt_level=0, name="OffloadKernels")
class OffloadKernels:
    """Replace operators of ``main`` by kernels of a library, and attach their module, for ``tvm.compile``.

    It stands where ``FuseOpsByPattern`` and ``RunCodegen`` stand for other libraries: before operators are lowered to TIR.
    It adds to the same module attribute ``external_mods``, which the build links. Weights should be constants
    (``relax.transform.BindParams``), so that the library can store them in its own layouts.

    Parameters
    ----------
    library : str
        Name of a kernel library; its kernels run on the device that the build is for (``nvidia``: cuBLASLt and cuDNN).
    threads : int, optional
        Threads of the kernels. Default: all cores.

    Raises
    ------
    InputError
        The library is unknown or, for CPUs, not usable here; or the module has no ``main``, or was offloaded to it before.

    Examples
    --------
    >>> import tvm_frontends
    >>> from tvm_sched.relax.lower.kernel_libraries import OffloadKernels, claimed_functions
    >>> offloaded = OffloadKernels("onednn")(tvm_frontends.load_model("model.onnx", {"x": (2, 3)}).mod)
    >>> sorted(claimed_functions(offloaded)), len(offloaded.attrs["external_mods"])
    (['onednn.matmul_tanh_0'], 1)
    """

    def __init__(self, library: str = "onednn", threads: int | None = None) -> None:
        self.library, self.threads = get_library(library), threads
        on_host = self.library.device_kind == "cpu"  # for GPUs, only the machine that runs the model needs the library
        if on_host and (reason := self.library.why_not()) is not None:
            raise InputError(f"the kernel library {library!r} cannot be used here: {reason}")

    def transform_module(self, mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Transform a module."""
        if "main" not in {each.name_hint for each in mod.get_global_vars()}:
            raise InputError("the module has no function 'main', in which operators are offloaded; rename the function")
        documents = dict(mod.attrs[KERNELS]) if mod.attrs and KERNELS in mod.attrs else {}
        if any(str(name).startswith(f"{self.library.name}.") for name in documents):
            raise InputError(f"the module was offloaded to {self.library.name!r} before; run this pass once")
        claimed = KernelSet(self.library.name)
        changed = self.library.claim(mod, claimed, {})
        if not claimed.documents:
            return mod
        kernels = {name: json.loads(text)["kernel"] for name, text in claimed.documents.items()}
        modules = list(mod.attrs["external_mods"]) if mod.attrs and "external_mods" in mod.attrs else []
        modules.append(self.library.make_module(kernels, {}, self.threads))
        changed = changed.with_attr("external_mods", modules)
        return changed.with_attr(KERNELS, {**documents, **claimed.documents})
