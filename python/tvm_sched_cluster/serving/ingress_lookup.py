"""Find the ingress of a deployment by Ray, in a process of its own: ``python -m`` this module, name and address.

A gateway does not join Ray itself: Ray ends a process that has joined it when the head is gone.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Sequence

import msgspec

from tvm_sched_runtime.errors import InputError, ServingError, TvmSchedError

from .tensor_channel import Endpoint

LOG = logging.getLogger("tvm_sched.serving")
_SECONDS = 120.0


class Found(msgspec.Struct, frozen=True):
    """What the process prints: the endpoint, or an error and whether there is no such deployment or cluster."""

    endpoint: Endpoint | None = None
    error: str = ""
    unknown: bool = False


async def look_up(name: str, address: str | None) -> Endpoint:
    """Return where the ingress of a deployment listens.

    Raises
    ------
    InputError
        There is no such deployment, or no cluster at the address.
    ServingError
        It does not answer.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tvm_sched_cluster.serving.ingress_lookup", name, *([address] if address else []),
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        output, said = await asyncio.wait_for(process.communicate(), _SECONDS)
        found = msgspec.json.decode((output.splitlines() or [b""])[-1], type=Found)
    except asyncio.TimeoutError:
        raise ServingError(f"deployment {name!r}: Ray does not tell within {_SECONDS:g} s where it is") from None
    except msgspec.MsgspecError:
        LOG.warning("the look-up of deployment %s failed:\n%s", name, said.decode(errors="replace"))
        raise ServingError(f"deployment {name!r}: Ray does not tell where it is") from None
    finally:
        if process.returncode is None:
            process.kill()
    if found.endpoint is None:
        raise (InputError if found.unknown else ServingError)(found.error)
    return found.endpoint


def main(arguments: Sequence[str]) -> int:
    """Print the endpoint of a deployment at an address."""
    from .client import find_ingress
    from .ray_connection import connect

    name, *address = arguments
    try:
        connect(address[0] if address else None)
        found = Found(find_ingress(name)[1])
    except TvmSchedError as error:
        found = Found(None, str(error), isinstance(error, InputError))
    print(msgspec.json.encode(found).decode(), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
