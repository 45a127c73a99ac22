"""Every kernel of whole networks against PyTorch; `test_emulated_gpu` runs this in a process that has an emulated GPU."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is the peer (make test installs it)")

import networks  # noqa: E402

from tvm_sched.relax import compile  # noqa: E402
from tvm_sched.relax.autoload import register  # noqa: E402

pytestmark = pytest.mark.gpu
# The kernels that TVM generates alone, or those of our libraries first: cuBLASLt, cuDNN, kernels written in CUDA C++.
LIBRARIES = {"tvm": "", "libraries": "handwritten_cuda,nvidia"}
ALWAYS = {
    ("float32", "tvm"): ("unet", "shufflenet"),
    ("float32", "libraries"): ("vit",),
    ("float16", "tvm"): ("gru",),
    ("float16", "libraries"): ("resnext", "llama"),
    ("bfloat16", "tvm"): ("bert",),
    ("bfloat16", "libraries"): ("densenet",),
}
"""Convolutions (grouped and transposed, too), recurrent layers and attention, each element type with both kinds of kernels;
all networks are thorough."""


def _cases():
    for name in networks.NETWORKS:
        for dtype in networks.TYPES:
            for library in LIBRARIES:
                marks = [] if name in ALWAYS[dtype, library] else [pytest.mark.thorough]
                yield pytest.param(name, dtype, library, marks=marks)


def as_numpy(tensor):
    return (
        tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16) if tensor.dtype == torch.bfloat16 else tensor.numpy()
    )


@pytest.mark.parametrize(("name", "dtype", "library"), list(_cases()))
def test_like_pytorch(name, dtype, library, monkeypatch):
    register()
    monkeypatch.setenv("TVM_SCHED_KERNEL_LIBRARIES", LIBRARIES[library])
    case = networks.case(name, dtype)
    made = compile(case.model, "v100-server", "single", backend="cuda")
    made.module.configure(devices=[0] * len(made.module.plans()[0]["devices"]))
    (found,) = made.module.run(as_numpy(case.x))
    assert case.difference(torch.from_numpy(np.asarray(found).astype("float32"))) < case.tolerance
