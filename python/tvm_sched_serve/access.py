"""Who may ask for what: bearer tokens of clients and of administrators."""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path

from tvm_sched_runtime.errors import InputError

from .failures import Forbidden, OverQuota, Unauthorized


@dataclass
class Quota:
    """Requests with one token that are under way, and how many may be."""

    limit: int
    running: int = 0


_QUOTA: ContextVar[Quota | None] = ContextVar("quota", default=None)
"""Of the request that the current task answers."""


@contextmanager
def quota_place() -> Iterator[None]:
    """Count the current request against the quota of its token while it is under way.

    Raises
    ------
    OverQuota
    """
    quota = _QUOTA.get()
    if quota is None:
        yield
        return
    if quota.running >= quota.limit:
        raise OverQuota(f"{quota.running} requests with this token are under way, and no more are allowed at once")
    quota.running += 1
    try:
        yield
    finally:
        quota.running -= 1


@dataclass(frozen=True)
class Access:
    """The tokens of a server."""

    clients: Mapping[bytes, Quota | None] = field(default_factory=dict)
    """Tokens of clients: a request with one of them is accepted. None of them: every request is accepted."""
    administrators: Mapping[bytes, Quota | None] = field(default_factory=dict)
    """Tokens of administrators, who may also load and unload models. None: that is left to the port for administration."""

    def check(self, authorization: bytes, *, administration: bool, own_port: bool = False) -> None:
        """Refuse a request with that ``Authorization`` header, if it must be.

        Raises
        ------
        Unauthorized, Forbidden
        """
        token = authorization[7:] if authorization[:7].lower() == b"bearer " else b""
        _QUOTA.set(None)
        administrator = _among(token, self.administrators)
        if administrator:
            return
        if administration:
            if own_port and not self.administrators:
                return
            if not self.administrators:
                raise Forbidden(
                    "administration needs the server's own port or token for it (--admin-port, --admin-token-file)"
                )
            raise Unauthorized("administration needs the administrator's token")
        if self.clients and not _among(token, self.clients):
            raise Unauthorized("a bearer token is needed")
        _QUOTA.set(self.clients.get(token))


def _among(token: bytes, tokens: Iterable[bytes]) -> bool:
    known = False
    for each in tokens:  # all of them, so that the time tells nothing
        known |= hmac.compare_digest(token, each)
    return known


def read_tokens(file: Path | None) -> dict[bytes, Quota | None]:
    """Return the tokens of a file, one a line; a number after it is how many requests with it may be under way.

    Raises
    ------
    InputError
        It cannot be read, or holds something else.
    """
    if file is None:
        return {}
    try:
        lines = [line.split() for line in file.read_bytes().splitlines() if line.strip()]
    except OSError as error:
        raise InputError(f"{file}: cannot be read ({error.strerror or error})") from None
    for token, *limit in lines:
        if not re.fullmatch(rb"[A-Za-z0-9._~+/=-]{8,4096}", token) or len(limit) > 1:
            raise InputError(f"{file}: expected tokens of at least 8 letters, digits or ._~+/=-, one a line")
        if limit and not re.fullmatch(rb"[1-9][0-9]{0,8}", limit[0]):
            raise InputError(f"{file}: the number after a token is how many requests may be under way, at least 1")
    if not lines:
        raise InputError(f"{file}: holds no token")
    return {token: Quota(int(limit[0])) if limit else None for token, *limit in lines}
