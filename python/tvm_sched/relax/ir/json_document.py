"""`Document`: a problem, schedule or plan in a module's attributes, encoded as JSON only when the module is saved."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..._library import load_library, without_torch

with without_torch():  # which a plain import brings along where it is installed
    import tvm_ffi

load_library()


@tvm_ffi.register_object("tvm_sched.Document")
class Document(tvm_ffi.Object):
    """A Python object with its JSON document: ``DocumentObj`` in ``cpp/ffi/document.cc``.

    The document is made where the module is saved, compared or hashed, and not before. What was loaded from a file has the
    document alone, until somebody decodes it.
    """

    if TYPE_CHECKING:

        @staticmethod
        def make(value: Any, encode: Callable[[Any], str]) -> Document:
            """Put an object into a document that ``encode`` writes."""

        def text(self) -> str:
            """The document as JSON."""

        def object(self) -> Any:
            """The object, or None where nobody has decoded the document yet."""

        def set_object(self, value: Any) -> None:
            """Keep the object that the document was decoded to."""
