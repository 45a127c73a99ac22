"""Contents of the disk caches: summary, table and removal."""

from __future__ import annotations

import time

import msgspec
from rich.table import Table

from tvm_sched_runtime.files import cache_directory

from ..blob_cache import choice_cache, kernel_cache
from ..cost_model.database import Database
from ..file_cache import compiled_cache
from .tables import table
from .units import format_bytes

_LINES = ("cuda_algorithms.txt", "cuda_values.txt", "onednn_values.txt")
"""Files of lines that the kernel libraries add to: algorithms chosen on GPUs, and what the libraries' values were."""


class CachedModel(msgspec.Struct, frozen=True):
    """A compiled model in the cache; ``last_used`` in seconds since 1970."""

    key: str
    model: str | None
    bytes: int
    last_used: int


class CacheSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Contents of all caches."""

    path: str
    compiled: list[CachedModel]
    compiled_bytes: int
    limit_bytes: int
    kernels: int
    kernels_bytes: int
    choices: int
    choices_bytes: int
    measurements_bytes: int

    def tables(self) -> list[Table]:
        """Return the compiled models, and the size of each cache."""
        models = [
            (each.model or "?", format_bytes(each.bytes), _ago(each.last_used), each.key[:12]) for each in self.compiled
        ]
        sizes = [
            (
                f"{len(self.compiled)} compiled models",
                format_bytes(self.compiled_bytes),
                format_bytes(self.limit_bytes),
            ),
            (
                f"{self.kernels:,} compiled kernels",
                format_bytes(self.kernels_bytes),
                format_bytes(kernel_cache().limit),
            ),
            (
                f"{self.choices:,} measured choices",
                format_bytes(self.choices_bytes),
                format_bytes(choice_cache().limit),
            ),
            ("measured kernels", format_bytes(self.measurements_bytes), f"{Database().entries:,} kernels"),
        ]
        disk = [table(("what", "size", "limit"), sizes, self.path)]
        return [table(("model", "size", "last used", "key"), models, "Compiled models"), *disk] if models else disk


class ClearedCache(msgspec.Struct, frozen=True):
    """Numbers of removed entries of the caches."""

    compiled_removed: int
    kernels_removed: int
    measurements_removed: bool


class CachePath(msgspec.Struct, frozen=True):
    """The folder of the caches."""

    path: str


def cache_contents() -> CacheSummary:
    """Read the contents of all caches."""
    cache = compiled_cache()
    entries = cache.entries()
    (kernels, kernels_bytes), (choices, choices_bytes) = kernel_cache().contents(), choice_cache().contents()
    return CacheSummary(
        path=str(cache_directory()),
        compiled=[CachedModel(e.key, e.about.get("model"), e.size, round(e.used)) for e in entries],
        compiled_bytes=sum(entry.size for entry in entries),
        limit_bytes=cache.limit,
        kernels=kernels,
        kernels_bytes=kernels_bytes,
        choices=choices,
        choices_bytes=choices_bytes,
        measurements_bytes=Database().size(),
    )


def clear_caches(measurements: bool) -> ClearedCache:
    """Remove compiled models, kernels and choices of kernels; with ``measurements`` also the measured times of kernels."""
    count, kernels = compiled_cache().clear(), kernel_cache().contents()[0]
    kernel_cache().clear()
    choice_cache().clear()
    for name in _LINES:
        (cache_directory() / name).unlink(missing_ok=True)
    return ClearedCache(count, kernels, measurements and Database().clear())


def _ago(used: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(used))
