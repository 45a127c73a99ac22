"""`Document`: a problem, schedule or plan in a module's attributes, encoded as JSON only when the module is saved."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tvm_sched_runtime.core_library import load_library
from tvm_sched_runtime.startup import without_torch

with without_torch():  # a plain import would import torch if it is installed
    import tvm_ffi

load_library()


@tvm_ffi.register_object("tvm_sched.Document")
class Document(tvm_ffi.Object):
    """A Python object with its JSON document: ``DocumentObj`` in ``cpp/ffi/document.cc``.

    It is encoded only when the module is saved, compared or hashed. A document loaded from a file holds only JSON until it
    is decoded.
    """

    if TYPE_CHECKING:

        @staticmethod
        def make(value: Any, encode: Callable[[Any], str]) -> Document:
            """Wrap an object that ``encode`` can write as JSON."""

        def text(self) -> str:
            """Return the JSON."""

        def object(self) -> Any:
            """Return the object; None if the JSON has not been decoded."""

        def set_object(self, value: Any) -> None:
            """Store the decoded object."""
