"""Errors that the front ends raise on purpose."""

from __future__ import annotations


class FrontendError(Exception):
    """Base of all errors of tvm_frontends."""


class ModelError(FrontendError, ValueError):
    """The model, or a shape or constant given for it, is wrong or not supported.

    The message says what was found, where, and what is allowed.
    """


class ModelWarning(UserWarning):
    """The imported model differs from its file: a step is left out, the number format is another, or a part is missing."""


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or the name of its class if the message is empty."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
