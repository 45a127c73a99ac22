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

from ...cost_model.cubin import CompiledKernel, read_cubin
from ...errors import InputError

ARCHITECTURES = "TVM_SCHED_CUDA_ARCHS"
"""Environment variable: the GPUs to compile for (``sm_80,sm_90``), in place of the topology's."""
DEFAULT_ARCHITECTURE = "sm_80"


def find_nvcc() -> str:
    """Path of nvcc: on the ``PATH``, in ``CUDA_HOME``, in NVIDIA's wheels, or in ``/usr/local/cuda``.

    Raises
    ------
    InputError
        It is not there; the message names what to install.
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
    """Whether `find_nvcc` finds it."""
    try:
        find_nvcc()
    except InputError:
        return False
    return True


def architectures(asked: Iterable[str]) -> tuple[str, ...]:
    """The architectures to compile for, oldest first.

    Parameters
    ----------
    asked : iterable of str
        Those of the topology's devices; empty ones say nothing. The environment variable `ARCHITECTURES` overrides them.

    Raises
    ------
    InputError
        One is not of the form ``sm_90`` or ``sm_90a``.
    """
    named = os.environ.get(ARCHITECTURES)
    wanted = [part.strip() for part in named.split(",")] if named else list(asked)
    found = {arch for arch in wanted if arch} or {DEFAULT_ARCHITECTURE}
    for arch in found:
        if not re.fullmatch(r"sm_\d+[a-z]?", arch):
            raise InputError(f"the GPU architecture {arch!r} is not of the form 'sm_90'")
    return tuple(sorted(found, key=lambda arch: (int(re.findall(r"\d+", arch)[0]), arch)))


def ptx_architecture(archs: Sequence[str]) -> str | None:
    """The virtual architecture whose code the driver translates for GPUs that are newer than all ``archs``: ``compute_90``.

    None where there is none: code for ``sm_90a`` is for these GPUs alone.
    """
    portable = [arch for arch in archs if not arch[-1].isalpha()]
    return f"compute_{portable[-1][3:]}" if portable else None


def needed_architectures(asked: Iterable[str]) -> dict[str, Any]:
    """Metadata of an artifact on the GPUs that it was compiled for; see `architectures`."""
    archs = architectures(asked)
    return {"architectures": list(archs), "ptx": ptx_architecture(archs)}


def check_architectures(archs: Iterable[str]) -> str:
    """The path of nvcc, which compiles for all of these.

    Raises
    ------
    InputError
        It is not there, or does not know one of them.
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


@lru_cache(maxsize=4)  # what kernels take is asked before the artifact is made of them
def compile_source(source: str, archs: tuple[str, ...]) -> tuple[bytes, dict[str, CompiledKernel]]:
    """A fat binary with code for each architecture, and for those that come after the newest; and what the kernels take.

    That is by the code for the first of them, by symbol.

    Raises
    ------
    InputError
        nvcc is not there, or does not know one of the architectures, or refuses the source.
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
        cubins = sorted(kept.glob("*.cubin"))  # named after the architecture where there are several
        cubins.sort(key=lambda path: not path.stem.endswith(f"_{archs[0][3:]}"))
        return binary.read_bytes(), read_cubin(cubins[0]) if cubins else {}  # what stands in for nvcc may keep none


def _first_error(nvcc: str, archs: Sequence[str], text: str) -> str:
    """Nvcc's first error on one line, and what to do."""
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
