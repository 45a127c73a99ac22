"""Build libtvm_sched with CMake as a part of the package; everything else is in pyproject.toml."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
LIBRARY = Path("tvm_sched") / "_lib" / "libtvm_sched.so"
# Built where the headers of oneDNN and TBB are (cmake/TvmSchedOneDnn.cmake).
KERNELS = ("libtvm_sched_threads.so", "libtvm_sched_onednn.so", "libimf.so", "libintlc.so.5")


class CMakeExtension(Extension):
    """The library, as setuptools sees it: no sources, for CMake knows them."""

    def __init__(self) -> None:
        super().__init__("tvm_sched._lib.libtvm_sched", sources=[])


class CMakeBuild(build_ext):
    """Run CMake in ``build/`` (incremental) and put the library where setuptools wants it."""

    def run(self) -> None:
        """Configure and build in the source tree; a wheel gets a copy of what came out."""
        cmake = self._tool("cmake")
        build = ROOT / "build"
        if Path(cmake).is_relative_to(tempfile.gettempdir()):
            # pip's isolated build: its tools are gone afterwards, and a folder that was configured with them is of no
            # use to anybody else.
            build = build / "isolated"
        subprocess.check_call([cmake, "-S", ROOT, "-B", build, *self._options(build)])
        subprocess.check_call([cmake, "--build", build, "--target", "tvm_sched", "--parallel", str(self._jobs())])
        if not self._in_source_tree():
            for library in self._libraries():
                wanted = Path(self.build_lib) / library
                wanted.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(ROOT / "python" / library, wanted)

    def get_outputs(self) -> list[str]:
        """Return what a wheel takes from this command."""
        folder = Path("python" if self._in_source_tree() else self.build_lib)
        return [str(folder / library) for library in self._libraries()]

    def get_output_mapping(self) -> dict[str, str]:
        """Nothing is copied into the source tree afterwards: CMake wrote it there."""
        return {}

    def _libraries(self) -> list[Path]:
        beside = [LIBRARY.with_name(name) for name in KERNELS]
        return [LIBRARY, *(library for library in beside if (ROOT / "python" / library).is_file())]

    def _in_source_tree(self) -> bool:
        return bool(self.inplace or self.editable_mode)

    def _options(self, build: Path) -> list[str]:
        options = [f"-DPython_EXECUTABLE={sys.executable}"]
        ninja = self._tool("ninja", required=False)
        cache = build / "CMakeCache.txt"
        made_with_ninja = cache.is_file() and "CMAKE_GENERATOR:INTERNAL=Ninja" in cache.read_text()
        if ninja and (made_with_ninja or not cache.is_file()):
            # Named each time: pip's ninja lives in a folder that is gone after the build.
            options += ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"]
        elif made_with_ninja:
            cache.unlink()
        return options

    def _jobs(self) -> int:
        return int(self.parallel or os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL") or 2)

    @staticmethod
    def _tool(name: str, required: bool = True) -> str:
        """Find a tool beside this Python (pip puts it there) or on the path."""
        beside = Path(sys.executable).parent / name
        found = shutil.which(name) or (str(beside) if beside.is_file() else None)
        if found is None and required:
            raise SystemExit(f"{name} was not found; `pip install {name}` brings it")
        return found or ""


setup(ext_modules=[CMakeExtension()], cmdclass={"build_ext": CMakeBuild})
