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


class NotFound(RequestError):
    """A model, version or region that there is not."""

    status = 404


class Unauthorized(RequestError):
    """A request without the token."""

    status = 401


class Forbidden(RequestError):
    """Administration where it is not allowed."""

    status = 403


class TooLarge(RequestError):
    """A body above the limit."""

    status = 413


class TooSlow(RequestError):
    """A body that did not come in time."""

    status = 408


class Late(RequestError):
    """The request's time is over."""

    status = 504


class Failed(RequestError):
    """The run failed."""

    status = 500


class Busy(RequestError):
    """All places are taken, or the server drains.

    Parameters
    ----------
    message : str
    retry_after : int
        Seconds.
    """

    status = 503

    def __init__(self, message: str, retry_after: int = 1) -> None:
        super().__init__(message)
        self.retry_after = retry_after
