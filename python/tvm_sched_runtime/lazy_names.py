"""Import the public names of a package at first use, so that importing the package is cheap."""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # as in `tvm_sched`
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any


def lazy_names(package: str, where: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package: ``where`` has the module of each public name, empty for modules."""

    def attribute(name: str) -> Any:
        if name not in where:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = import_module(f"{package}.{where[name] or name}")
        return getattr(module, name) if where[name] else module

    return attribute
