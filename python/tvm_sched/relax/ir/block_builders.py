"""Workaround for TVM 0.27: give each thread its own stack of block builders.

`relax.BlockBuilder` keeps active builders in one list for all threads. Two threads that build functions at the same time
fail with "BlockBuilder.current() must be self".
"""

from __future__ import annotations

import threading
from collections.abc import MutableSequence
from typing import Any

from tvm import relax


class _StackOfThread(MutableSequence[Any]):
    """A list with separate, initially empty contents per thread."""

    def __init__(self) -> None:
        self._of = threading.local()

    @property
    def _items(self) -> list[Any]:
        if not hasattr(self._of, "items"):
            self._of.items = []
        items: list[Any] = self._of.items
        return items

    def __getitem__(self, index: Any) -> Any:
        return self._items[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        self._items[index] = value

    def __delitem__(self, index: Any) -> None:
        del self._items[index]

    def __len__(self) -> int:
        return len(self._items)

    def insert(self, index: int, value: Any) -> None:
        """Insert a value before a position."""
        self._items.insert(index, value)


def separate_block_builders() -> None:
    """Give each thread a stack of block builders of its own."""
    if not isinstance(relax.BlockBuilder._stack, _StackOfThread):
        stack = _StackOfThread()
        stack.extend(relax.BlockBuilder._stack)  # this thread may be building a function
        relax.BlockBuilder._stack = stack
