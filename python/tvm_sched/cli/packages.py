"""Heavy packages that a command can do without."""

from __future__ import annotations

import sys
from pathlib import Path


def import_without_torch(file: Path) -> None:
    """Import tvm_ffi without torch, where ``file`` is nothing of torch's.

    tvm_ffi imports torch where it is installed, to be loaded after it: symbols of the two clash on Windows. That is more than
    a second of each command. torch can still be imported later.
    """
    needed = file.is_dir() or file.suffix.lower() in (".pt2", ".py") or sys.platform == "win32"
    if needed or "torch" in sys.modules or "tvm_ffi" in sys.modules:
        return
    sys.modules["torch"] = None  # type: ignore[assignment]  # importing it raises ImportError
    try:
        import tvm_ffi  # noqa: F401
    finally:
        del sys.modules["torch"]
