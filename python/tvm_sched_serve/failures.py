"""What a request is refused for, in the terms of HTTP; gRPC's codes follow from them."""

from __future__ import annotations


class RequestError(Exception):
    """A request that is not answered with values.

    Parameters
    ----------
    message : str
        For the client; names nothing of this machine.
    """

    status = 400

    def __init_subclass__(cls, *, status: int) -> None:
        cls.status = status


class NotFound(RequestError, status=404):
    """A model, version or region that there is not."""


class Unauthorized(RequestError, status=401):
    """A request without the token."""


class Forbidden(RequestError, status=403):
    """Administration where it is not allowed."""


class UnknownCoding(RequestError, status=415):
    """A body in a coding that the server does not read."""


class TooLarge(RequestError, status=413):
    """A body above the limit."""


class TooSlow(RequestError, status=408):
    """A body that did not come in time."""


class Refused(RequestError, status=422):
    """A request that ended the process that computed it, more than once."""


class Late(RequestError, status=504):
    """The request's time is over."""


class Failed(RequestError, status=500):
    """The run failed."""


class Busy(RequestError, status=503):
    """All places are taken, or the server drains.

    Parameters
    ----------
    message : str
    retry_after : int
        Seconds.
    """

    def __init__(self, message: str, retry_after: int = 1) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class OverQuota(Busy, status=429):
    """The requests with the client's token that are under way have reached its limit."""
