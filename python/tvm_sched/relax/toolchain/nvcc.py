"""Find nvcc, and compile CUDA source to a fat binary."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from tvm_sched_runtime.errors import InputError

from ...cost_model.cubin import CompiledKernel, read_cubin

ARCHITECTURES = "TVM_SCHED_CUDA_ARCHS"
"""Environment variable: GPU architectures to compile for (``sm_80,sm_90``) instead of the topology's."""
DEFAULT_ARCHITECTURE = "sm_80"


def find_nvcc() -> str:
    """Return the path of nvcc on the ``PATH``, in ``CUDA_HOME``, in NVIDIA's wheels or in ``/usr/local/cuda``.

    Raises
    ------
    InputError
        There is none; the message names what to install.
    """
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    wheels = sorted(Path(sysconfig.get_path("purelib")).glob("nvidia/*/bin/nvcc"))
    places = [shutil.which("nvcc"), home and f"{home}/bin/nvcc", *map(str, wheels), "/usr/local/cuda/bin/nvcc"]
    for place in places:
        if place and os.access(place, os.X_OK):
            return place
    raise InputError(
        "compiling for the backend 'cuda' needs nvcc, which is neither on the PATH nor in CUDA_HOME: install NVIDIA's CUDA "
        "toolkit (no GPU is needed), and put its bin folder on the PATH; the backend 'emulated' needs none"
    )


def has_nvcc() -> bool:
    """Whether `find_nvcc` finds nvcc."""
    try:
        find_nvcc()
    except InputError:
        return False
    return True


def architectures(asked: Iterable[str]) -> tuple[str, ...]:
    """Return the architectures to compile for, oldest first.

    Parameters
    ----------
    asked : iterable of str
        Architectures of the topology's devices; empty strings are ignored. The environment variable `ARCHITECTURES`
        overrides them.

    Raises
    ------
    InputError
        A name is not of the form ``sm_90`` or ``sm_90a``.
    """
    named = os.environ.get(ARCHITECTURES)
    wanted = [part.strip() for part in named.split(",")] if named else list(asked)
    archs = {arch for arch in wanted if arch} or {DEFAULT_ARCHITECTURE}
    for arch in archs:
        if not re.fullmatch(r"sm_\d+[a-z]?", arch):
            raise InputError(f"the GPU architecture {arch!r} is not of the form 'sm_90'")
    return tuple(sorted(archs, key=lambda arch: (int(re.findall(r"\d+", arch)[0]), arch)))


def ptx_architecture(archs: Sequence[str]) -> str | None:
    """Return the virtual architecture (``compute_90``) whose code the driver translates for GPUs newer than ``archs``.

    None if all ``archs`` are like ``sm_90a``, whose code runs on that architecture only.
    """
    portable = [arch for arch in archs if not arch[-1].isalpha()]
    return f"compute_{portable[-1][3:]}" if portable else None


def needed_architectures(asked: Iterable[str]) -> dict[str, Any]:
    """Return an artifact's metadata about the GPUs that it was compiled for; see `architectures`."""
    archs = architectures(asked)
    return {"architectures": list(archs), "ptx": ptx_architecture(archs)}


def check_architectures(archs: Iterable[str]) -> str:
    """Return the path of nvcc if it compiles for all architectures.

    Raises
    ------
    InputError
        There is no nvcc, or it does not know an architecture.
    """
    nvcc = find_nvcc()
    known = _known_architectures(nvcc)
    for arch in archs:
        if known and arch not in known:
            raise InputError(
                f"{nvcc} compiles for {', '.join(known)}, not for {arch}: install a CUDA toolkit that does (for sm_70, "
                f"12.9 is the last), or name the GPUs that shall run it in the environment variable {ARCHITECTURES}"
            )
    return nvcc


@lru_cache(maxsize=4)  # the resources of kernels are estimated before the artifact is built
def compile_source(source: str, archs: tuple[str, ...]) -> tuple[bytes, dict[str, CompiledKernel]]:
    """Compile a fat binary for ``archs`` and newer GPUs; return it with the kernels' resources by symbol.

    The resources are those of the code for the first architecture.

    Raises
    ------
    InputError
        There is no nvcc, or it does not know an architecture or refuses the source.
    """
    nvcc = check_architectures(archs)
    with tempfile.TemporaryDirectory(prefix="tvm_sched_cuda_") as folder:
        code, binary = Path(folder) / "kernels.cu", Path(folder) / "kernels.fatbin"
        code.write_text(source)
        kept = Path(folder) / "kept"
        kept.mkdir()
        options = ["--fatbin", "-O3", "-std=c++17", "--keep", "--keep-dir", str(kept)]
        command = [nvcc, *options, str(code), "-o", str(binary)]
        for arch in archs:
            command += ["-gencode", f"arch=compute_{arch[3:]},code={arch}"]
        if ptx := ptx_architecture(archs):
            command += ["-gencode", f"arch={ptx},code={ptx}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise InputError(_first_error(nvcc, archs, done.stderr or done.stdout))
        cubins = sorted(kept.glob("*.cubin"))  # named after the architecture if there are several
        cubins.sort(key=lambda path: not path.stem.endswith(f"_{archs[0][3:]}"))
        return binary.read_bytes(), read_cubin(cubins[0]) if cubins else {}  # a substitute for nvcc may keep none


def _first_error(nvcc: str, archs: Sequence[str], text: str) -> str:
    """Return a message with nvcc's first error on one line, and advice."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    first = next((line for line in lines if "error" in line.lower()), lines[-1] if lines else "it says nothing")
    return (
        f"{nvcc} refuses the code of kernels for {', '.join(archs)}: {first[:500]}; compute the operator in float32, "
        "compile for CPUs, or install another CUDA toolkit"
    )


@lru_cache(maxsize=4)
def _known_architectures(nvcc: str) -> tuple[str, ...]:
    done = subprocess.run([nvcc, "--list-gpu-code"], capture_output=True, text=True, check=False)
    return tuple(done.stdout.split())
