"""Correction of TVM 0.27: the block builders of one thread are not seen by others.

`relax.BlockBuilder` keeps those that are at work in one list for all threads, so that two threads that build functions at
once end with "BlockBuilder.current() must be self". The list is replaced by one for each thread.
"""

from __future__ import annotations

import threading
from collections.abc import MutableSequence
from typing import Any

from tvm import relax


class _StackOfThread(MutableSequence[Any]):
    """A list that each thread finds empty at first, and that only the thread itself changes."""

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
        stack.extend(relax.BlockBuilder._stack)  # of this thread, where it builds a function just now
        relax.BlockBuilder._stack = stack
