"""CUDA source as C++ for a compiler of the host: what no macro can do is rewritten here, line by line.

Shared arrays become references to memory of the block, PTX becomes calls of functions, accesses to vectors are checked, and
a table of the kernels is added.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ptx import rewrite_ptx

_KERNEL = re.compile(r"__global__\s+(?:void\s+)?(?:__launch_bounds__\s*\(([^)]*)\)\s*)?(?:void\s+)?(\w+)\s*\(")
_SHARED = re.compile(
    r"(?P<extern>extern\s+)?__shared__\s+(?P<align>(?:__align__|alignas)\s*\(\s*\w+\s*\)\s*)?"
    r"(?P<type>(?:(?:unsigned|signed|long|short|volatile|const)\s+)*[A-Za-z_][\w:]*(?:\s*<[^;{}]*?>)?)\s+(?P<declarators>[^;{}]*);"
)
_VECTOR = (
    r"(?:const\s+)?((?:__)?(?:u?char|u?short|u?int|u?long|u?longlong|float|double|half|nv_bfloat16)[1234])\s*\*\s*"
)
_VECTOR_ACCESS = re.compile(rf"\*\s*(?:\(\s*{_VECTOR}\)|reinterpret_cast<\s*{_VECTOR}>)\s*\(")
_DECLARATOR = re.compile(r"(\w+)((?:\s*\[[^\]]*\])*)")


class SourceError(ValueError):
    """CUDA that the emulator does not know."""


@dataclass(frozen=True)
class HostSource:
    """What g++ compiles, and the kernels in it."""

    text: str
    kernels: tuple[str, ...]


def translate(source: str, arch: int) -> HostSource:
    """CUDA source for a GPU of compute capability ``arch`` (90) as C++."""
    bounds: dict[str, str] = {}
    for bound, name in _KERNEL.findall(source):
        bounds[name] = bounds.get(name) or bound.split(",")[0].strip()
    body = _Shared().rewrite(_VECTOR_ACCESS.sub(_aligned, rewrite_ptx(source)))
    table = ", ".join(f"CUDA_EMULATOR_KERNEL({name}, {bound or 0})" for name, bound in bounds.items())
    text = "\n".join(
        [
            '#include "cuda_emulator/device.h"',
            f"#define __CUDA_ARCH__ {10 * arch}",
            "#define __CUDACC_VER_MAJOR__ 13",
            "#define __CUDACC_VER_MINOR__ 0",
            '#line 1 "kernels.cu"',
            body,
            f"static const cuda_emulator::Kernel cuda_emulator_kernels[] = {{{table or '{}'}}};",
            f"cuda_emulator::Image cuda_emulator_image = {{nullptr, cuda_emulator_kernels, {len(bounds)}}};",
            "",
        ]
    )
    return HostSource(text, tuple(bounds))


def _aligned(found: re.Match[str]) -> str:
    return f"*cuda_emulator::Aligned<{found[1] or found[2]}>(__LINE__, "


class _Shared:
    """Shared arrays: each has a number, by which the block knows its memory."""

    def __init__(self) -> None:
        self.count = 0

    def rewrite(self, source: str) -> str:
        done = _SHARED.sub(self._declaration, source)
        if re.search(r"\b__shared__\b", done):
            line = next(line for line in done.splitlines() if "__shared__" in line)
            raise SourceError(f"a declaration of shared memory that the emulator does not know: {line.strip()}")
        return done

    def _declaration(self, found: re.Match[str]) -> str:
        lines = "\n" * found.group(0).count("\n")
        parts = [_DECLARATOR.fullmatch(part.strip()) for part in found["declarators"].split(",")]
        if not all(parts):
            raise SourceError(f"a declaration of shared memory that the emulator does not know: {found.group(0)}")
        made = [self._array(found, name, dims.replace(" ", "")) for name, dims in (p.groups() for p in parts if p)]
        return "".join(made) + lines

    def _array(self, found: re.Match[str], name: str, dims: str) -> str:
        if found["extern"]:
            pointer = f"static_cast<{found['type']}*>(cuda_emulator::TheDevice().dynamic_shared())"
            return f"\n#undef {name}\n#define {name} ({pointer})\n#line {self._line(found)}\n"
        self.count += 1
        kind = f"cuda_emulator::SharedArray<{found['type']}{dims}>"
        return f"auto& {name} = {kind}::Of({self.count}{self._alignment(found['align'] or '')});"

    @staticmethod
    def _alignment(align: str) -> str:
        number = re.search(r"\(\s*(\w+)\s*\)", align)
        return f", {number[1]}" if number else ""

    @staticmethod
    def _line(found: re.Match[str]) -> int:
        return found.string.count("\n", 0, found.end()) + 1
