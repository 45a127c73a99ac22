"""Connect to an existing Ray cluster."""

from __future__ import annotations

import logging
import os
import socket

import ray

from tvm_sched_runtime.errors import InputError

from .actor_names import NAMESPACE

_START = (
    "start one with `ray start --head --resources='{\"h100\": 8}'`, or name it: connect('HOST:PORT'), "
    "--address HOST:PORT"
)
_PORT_SECONDS = 5.0


def connect(address: str | None = None) -> None:
    """Make this process a driver of a running cluster; one that is connected stays so.

    Parameters
    ----------
    address : str, optional
        ``HOST:PORT``, or ``auto`` for a cluster that runs on this machine; default: the variable ``RAY_ADDRESS``, then
        ``auto``.

    Raises
    ------
    InputError
        There is no cluster, or the process is connected to another namespace than ours.
    """
    if ray.is_initialized():
        namespace = ray.get_runtime_context().namespace
        if namespace != NAMESPACE:
            raise InputError(
                f"this process has joined Ray in the namespace {namespace!r}; deployments are in {NAMESPACE!r}: "
                f"call ray.init(..., namespace={NAMESPACE!r})"
            )
        return
    where = address or os.environ.get("RAY_ADDRESS") or "auto"
    _check_port(where)
    try:
        ray.init(where, namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR)
    except ConnectionError as error:
        raise InputError(f"no Ray cluster answers at {where!r} ({_first_sentence(error)}); {_START}") from None
    except ValueError as error:
        raise InputError(f"the address {where!r} is not one of a Ray cluster ({_first_sentence(error)})") from None


def _check_port(address: str) -> None:
    """Ray itself takes 20 seconds to say that nobody listens."""
    host, colon, port = address.rpartition(":")
    if not colon or "/" in host or not port.isdecimal():
        return
    try:
        socket.create_connection((host, int(port)), _PORT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise InputError(f"no server listens at {address} ({error}); {_START}") from None


def _first_sentence(error: BaseException) -> str:
    return " ".join(str(error).split()).partition(". ")[0]
