"""What is called in nvcc's place: makes a "fat binary" whose kernels the emulated GPU runs on the host.

It takes the options of nvcc that tvm_sched uses, and refuses others, so that a new option is noticed here.
"""

from __future__ import annotations

import hashlib
import re
import struct
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from build import cache_folder, compile_flags, compiler, once, precompiled_header, sanitized
from cuda_source import SourceError, translate

ARCHITECTURES = (75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121)
_MAGIC = 0xBA55ED50


def main(arguments: list[str]) -> int:
    """Do what nvcc would; the exit status."""
    if arguments == ["--list-gpu-code"]:
        print(*(f"sm_{arch}" for arch in ARCHITECTURES), sep="\n")
        return 0
    if arguments == ["--list-gpu-arch"]:
        print(*(f"compute_{arch}" for arch in ARCHITECTURES), sep="\n")
        return 0
    if arguments == ["--version"]:
        print("nvcc: stand-in of tvm_sched's tests\nCuda compilation tools, release 13.0, V13.0.0")
        return 0
    try:
        source, target, targets = _parse(arguments)
        image = compile_image(Path(source).read_text(), targets)
    except SourceError as error:
        print(error, file=sys.stderr)
        return 1
    Path(target).write_bytes(image)
    return 0


def _parse(arguments: list[str]) -> tuple[str, str, list[str]]:
    """Source, target, and what is asked for: ``sm_90``, ``compute_90``."""
    source, target, targets = "", "", []
    rest = iter(arguments)
    for argument in rest:
        if argument in ("-gencode", "--generate-code"):
            code = next(rest).partition("code=")[2].strip("[]")
            targets += code.split(",")
        elif argument.startswith("-arch="):
            targets.append(argument.partition("=")[2])
        elif argument == "-o":
            target = next(rest)
        elif argument.endswith(".cu"):
            source = argument
        elif argument == "--keep-dir":
            next(rest)
        elif argument not in (
            "--fatbin",
            "-fatbin",
            "-O3",
            "-std=c++17",
            "--keep",
            "--use_fast_math",
            "-lineinfo",
            "-w",
        ):
            raise SourceError(f"the stand-in for nvcc does not know the option {argument!r}")
    if not (source and target and targets):
        raise SourceError("a source, -o and an architecture are expected")
    for name in targets:
        if not re.fullmatch(r"(sm|compute)_\d+[af]?", name):
            raise SourceError(f"{name!r} is no architecture")
    return source, target, targets


def compile_image(source: str, targets: list[str]) -> bytes:
    """The image of CUDA source for these targets; the same source is compiled once."""
    oldest = min(int(re.findall(r"\d+", name)[0]) for name in targets)
    text = translate(source, oldest).text
    named = hashlib.sha256("\0".join([text, *compile_flags()]).encode() + precompiled_header().key).hexdigest()[:24]
    library = once(cache_folder() / "kernels" / f"{named}.so", lambda made: compile_library(text, made))
    listed = " ".join(targets).encode()
    payload = b"EMULATED" + struct.pack("<I", len(listed)) + listed + library.read_bytes()
    return struct.pack("<IHHQ", _MAGIC, 1, 16, len(payload)) + payload


def compile_library(text: str, library: Path) -> None:
    source = cache_folder() / "kernels" / f"{library.stem}.cc"  # kept: faults name lines of it
    source.write_text(text)
    compiled = library.with_suffix(".o")
    linked = ["-fsanitize=address"] if sanitized() else []
    for command in (
        [compiler(), *precompiled_header().flags, *compile_flags(), "-c", str(source), "-o", str(compiled)],
        [compiler(), "-shared", *linked, str(compiled), "-o", str(library)],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SourceError(done.stderr)
    compiled.unlink()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
