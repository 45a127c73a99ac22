"""Delay the import of modules to their first use."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

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
