"""Measured float32 products and convolutions of NVIDIA's libraries, such as ``benchmarks/data/h100_launches.json``."""

from __future__ import annotations

import os

import msgspec
import numpy as np

from tvm_sched.cost_model.device_properties import GPUS
from tvm_sched.cost_model.features import KernelWork, matrix_products
from tvm_sched.cost_model.samples import Samples
from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.files import read_bytes

FORMAT = "library-launches"


def is_launches(path: str | os.PathLike[str]) -> bool:
    """Return whether a file is of this format."""
    return FORMAT.encode() in read_bytes(path)[:200]


def read(path: str | os.PathLike[str]) -> Samples:
    """Read the kernels of a file, each a group of its own; a case takes as long as its kernels together.

    Raises
    ------
    InputError
        The file is not of this format.
    """
    try:
        rows = msgspec.json.decode(read_bytes(path))["rows"]
        seconds: dict[str, float] = {}
        for case, *_, microseconds in rows:
            seconds[case] = seconds.get(case, 0.0) + microseconds * 1e-6
        work = KernelWork.concatenate([_work(*case.split()) for case in seconds])
    except (msgspec.DecodeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{os.fspath(path)}: not a file of launches of libraries ({error!r})") from None
    return Samples.on(GPUS["H100"], work, list(seconds.values()), list(seconds))


def _work(name: str, *sizes: str) -> KernelWork:
    if name == "conv":
        channels, filters, extent, kernel, stride = (int(size) for size in sizes)
        pixels, window = (-(-extent // stride)) ** 2, kernel**2
        k = channels * window
        moved = {"read": 4 * channels * extent**2, "parameters": 4 * k * filters, "written": 4 * pixels * filters}
        return KernelWork.of(
            "conv2d", "float32", flops=np.array([2.0 * pixels * filters * k]), m=pixels, n=filters, k=k, window=window,
            library=1, **moved,
        )  # fmt: skip
    *batches, m, n, k = (int(size) for size in sizes)
    if name == "mm":
        return matrix_products([m], [n], [k], "float32", 32)
    (batch,) = batches
    moved = {"read": 4 * batch * (m * k + k * n), "written": 4 * batch * m * n}
    return KernelWork.of(
        "matmul", "float32", flops=np.array([2.0 * batch * m * n * k]), batch=batch, m=m, n=n, k=k, library=1, **moved
    )
