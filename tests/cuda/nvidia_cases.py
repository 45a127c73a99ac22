"""Cases of `test_nvidia.py` that other tests use, too."""

import json

import numpy as np
from tvm import relax

from gpu_models import model
from tvm_sched.relax import passes
from tvm_sched.relax.lower.kernel_libraries import KERNELS
from tvm_sched.relax.toolchain.compile_target import CompileTarget


def constant(*shape, seed=0, dtype="float32"):
    return relax.const(np.random.default_rng(seed).standard_normal(shape).astype(dtype))


def claimed(function, *shapes, dtype="float32", precision="float32"):
    """The descriptions of the kernels that the library takes, and the parameters that remain."""
    mod = passes.SetCompileTarget(CompileTarget.of(precision=precision))(model(function, *shapes, dtype=dtype))
    mod = passes.LowerToKernels(libraries=("nvidia",), device_kind="cuda")(mod)
    documents = dict(mod.attrs.items()).get(KERNELS, {})
    kernels = [json.loads(str(document)) for document in documents.values()]
    assert all(kernel["library"] == "nvidia" for kernel in kernels)
    return [kernel["kernel"] for kernel in kernels], kernels, mod.attrs["tvm_frontends.parameters"]
