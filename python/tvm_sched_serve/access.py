"""Who may ask for what: bearer tokens of clients and of administrators."""

from __future__ import annotations

import hmac
import re
from dataclasses import dataclass
from pathlib import Path

from tvm_sched.errors import InputError

from .failures import Forbidden, Unauthorized


@dataclass(frozen=True)
class Access:
    """The tokens of a server."""

    clients: tuple[bytes, ...] = ()
    """Tokens of clients: a request with one of them is accepted. () accepts every request."""
    administrators: tuple[bytes, ...] = ()
    """Tokens of administrators, who may also load and unload models. () leaves that to the port for administration."""

    def check(self, authorization: bytes, *, administration: bool, own_port: bool = False) -> None:
        """Refuse a request with that ``Authorization`` header, if it must be.

        Raises
        ------
        Unauthorized, Forbidden
        """
        token = authorization[7:] if authorization[:7].lower() == b"bearer " else b""
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


def _among(token: bytes, tokens: tuple[bytes, ...]) -> bool:
    known = False
    for each in tokens:  # all of them, so that the time tells nothing
        known |= hmac.compare_digest(token, each)
    return known


def read_tokens(file: Path | None) -> tuple[bytes, ...]:
    """Return the tokens of a file, one a line.

    Raises
    ------
    InputError
        It cannot be read, or holds something else.
    """
    if file is None:
        return ()
    try:
        tokens = tuple(line.strip() for line in file.read_bytes().splitlines() if line.strip())
    except OSError as error:
        raise InputError(f"{file}: cannot be read ({error.strerror or error})") from None
    if not tokens or not all(re.fullmatch(rb"[A-Za-z0-9._~+/=-]{8,4096}", token) for token in tokens):
        raise InputError(f"{file}: expected tokens of at least 8 letters, digits or ._~+/=-, one a line")
    return tokens
