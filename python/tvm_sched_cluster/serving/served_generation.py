"""What a deployment serves at the moment, kept where the cluster keeps its own state, so that a new entry finds it."""

from __future__ import annotations

import msgspec
from ray.experimental import internal_kv

from .deployment import Generation


def current_generation(name: str) -> Generation | None:
    """Return what a rollout stored; None if there was none."""
    found = internal_kv._internal_kv_get(_key(name))
    return None if found is None else msgspec.msgpack.decode(found, type=Generation)


def store_generation(generation: Generation) -> None:
    """Keep what is served now."""
    internal_kv._internal_kv_put(_key(generation.deployment.name), msgspec.msgpack.encode(generation))


def forget_generation(name: str) -> None:
    """Forget what was stored of a deployment."""
    internal_kv._internal_kv_del(_key(name))


def _key(name: str) -> bytes:
    return f"tvm_sched/deployment/{name}".encode()
