"""What we change in other packages, so that the command starts sooner and TVM knows our targets.

The table in ``docs/architecture.md`` (Changes to other packages) has the reason and the gain of each.
``tests/test_startup.py`` fails when a release of the other package makes one needless.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import importlib.abc
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any


class _WithoutTorch(importlib.abc.MetaPathFinder):
    """Import hook that hides PyTorch from the thread that creates it."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name == "torch" and threading.get_ident() == self.thread:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


@functools.cache
def ffi() -> Any:
    """Import ``tvm_ffi`` without PyTorch, which it imports if it is installed.

    That import takes seconds and serves types that we don't use; tensors of PyTorch come by DLPack. If PyTorch or tvm_ffi
    are imported already, nothing changes.
    """
    with without_torch():
        return importlib.import_module("tvm_ffi")


def without_backtraces() -> None:
    """Make errors of TVM from now on without the backtrace of C++, of which the first one takes half a second.

    TVM raises and catches errors while it is imported. A process that has loaded tvm_ffi keeps them.
    """
    path = Path(__file__).parent / "_lib" / "libtvm_sched_no_backtrace.so"
    if "tvm_ffi" not in sys.modules and path.is_file():
        ctypes.CDLL(str(path), mode=os.RTLD_GLOBAL | os.RTLD_NOW)


@contextlib.contextmanager
def without_torch() -> Iterator[None]:
    """Hide PyTorch from this thread's imports within the context, unless it is imported already."""
    if "torch" in sys.modules:
        yield
        return
    hides = _WithoutTorch()
    sys.meta_path.insert(0, hides)
    try:
        yield
    finally:
        sys.meta_path.remove(hides)


_loading = threading.RLock()


class _LateModule(ModuleType):
    """A module that loads itself at the first access to an attribute other than its import metadata.

    The lazy module of `importlib.util.LazyLoader` loads already at the statement ``import``, which reads ``__spec__``.
    """

    def __getattr__(self, name: str) -> Any:
        with _loading:
            spec = self.__spec__
            if type(self) is _LateModule and spec is not None and isinstance(spec.loader, _LateLoader):
                self.__class__ = ModuleType  # type: ignore[assignment]
                spec.loader = self.__loader__ = spec.loader.loader
                if spec.submodule_search_locations is not None:
                    self.__path__ = spec.submodule_search_locations
                spec.loader.exec_module(self)
        return getattr(self, name)


class _LateLoader(Loader):
    def __init__(self, loader: Loader) -> None:
        self.loader = loader

    def create_module(self, spec: ModuleSpec) -> None:
        return None  # an ordinary module, whose attributes the importer sets

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__.pop("__path__", None)  # importing a submodule counts as a use
        module.__class__ = _LateModule


class _LateFinder(MetaPathFinder):
    def __init__(self) -> None:
        self.names: set[str] = set()

    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path) if name in self.names else None
        if spec is not None and spec.loader is not None:
            spec.loader = _LateLoader(spec.loader)
        return spec


_finder = _LateFinder()


def import_when_used(*names: str) -> None:
    """Delay the import of modules to their first use; missing modules raise as usual at that point."""
    _finder.names.update(names)
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


LISTING = "list_global_func_names"
"""Name of tvm_ffi's function."""


def import_tvm() -> Any:
    """Import TVM, fifty modules of which ask for the list of global functions: it is made anew only if it has grown."""
    if "tvm" in sys.modules:
        return sys.modules["tvm"]
    ffi()
    registry = importlib.import_module("tvm_ffi.registry")
    make_functor = registry.get_global_func("ffi.FunctionListGlobalNamesFunctor", allow_missing=True)
    original = getattr(registry, LISTING, None)
    if make_functor is None or original is None:  # of another version
        return importlib.import_module("tvm")
    kept: list[str] = []

    def names() -> list[str]:
        functor = make_functor()
        count = functor(-1)
        if count != len(kept):
            kept[:] = [functor(k) for k in range(count)]
        return list(kept)

    setattr(registry, LISTING, names)
    try:
        return importlib.import_module("tvm")
    finally:
        setattr(registry, LISTING, original)


def register_targets_on_demand(prefix: str, register: Callable[[str], None]) -> None:
    """Register a target tag that begins with ``prefix`` when ``tvm.target.Target`` meets it first.

    TVM has no hook for unknown tags, so this wraps the constructor of ``Target``. ``register`` raises an error that names
    the allowed tags, if there is no such tag.
    """
    target_class = importlib.import_module("tvm.target").Target
    construct = target_class.__init__
    if hasattr(construct, "__wrapped__"):
        return

    @wraps(construct)
    def construct_or_register(self: Any, target: Any, host: Any = None) -> None:
        try:
            construct(self, target, host)
        except ValueError:
            if not isinstance(target, str) or not target.startswith(prefix):
                raise
            register(target)
            construct(self, target, host)

    target_class.__init__ = construct_or_register
