"""The environment variable that switches the disk caches off."""

from __future__ import annotations

import os

VARIABLE = "TVM_SCHED_NO_CACHE"
"""Environment variable: any value but 0 keeps all caches from being read and written."""


def caches_allowed() -> bool:
    """Whether results may be read from and stored in the disk caches, as far as `VARIABLE` says."""
    return os.environ.get(VARIABLE, "0") in ("", "0")
