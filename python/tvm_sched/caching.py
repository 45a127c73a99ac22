"""Switch for the disk caches: whether earlier results are read and new ones stored."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_avoided: ContextVar[bool] = ContextVar("tvm_sched_no_cache", default=False)


@contextmanager
def without_caches(avoid: bool = True) -> Iterator[None]:
    """Context without disk caches: nothing is read from or stored in them, unless ``avoid`` is false."""
    token = _avoided.set(avoid or _avoided.get())
    try:
        yield
    finally:
        _avoided.reset(token)


def caches_used() -> bool:
    """Whether results may be taken from disk: not within `without_caches`, nor where ``TVM_SCHED_NO_CACHE`` is set."""
    return not _avoided.get() and os.environ.get("TVM_SCHED_NO_CACHE", "0") in ("", "0")
