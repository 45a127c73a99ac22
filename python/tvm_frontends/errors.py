"""Errors that the front ends raise on purpose, and the arguments that would avoid them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias


@dataclass(frozen=True)
class MissingShape:
    """An input has dimensions without a size: ``shapes`` would give them."""

    input: str
    example: tuple[int, ...]
    """A shape that would do."""
    symbol: str | None = None
    """The symbol that the model declares for the first open dimension."""

    def __str__(self) -> str:
        by_symbol = f", or {self.symbol}=1 for all inputs" if self.symbol else ""
        return f"pass them, e.g. shapes={{{self.input!r}: {self.example}}}{by_symbol}"


@dataclass(frozen=True)
class MissingConstant:
    """A value decides about shapes or control flow: ``constants`` would give it."""

    inputs: tuple[str, ...] = ()
    """The inputs of the model from which the value is computed; empty if they are not known."""

    def __str__(self) -> str:
        given = ", ".join(f"{name!r}: VALUE" for name in self.inputs) or "NAME: VALUE"
        return f"make it a constant: constants={{{given}}}"


@dataclass(frozen=True)
class MissingWeights:
    """A folder has a configuration and no weights."""

    configuration: Path

    def __str__(self) -> str:
        return "put them there"


Missing: TypeAlias = "MissingShape | MissingConstant | MissingWeights"


class FrontendError(Exception):
    """Base of all errors of tvm_frontends.

    Attributes
    ----------
    problem : str
        What was found, where, and what is allowed.
    missing : MissingShape, MissingConstant or MissingWeights, optional
        What the caller may add; the message ends with it.
    """

    def __init__(self, problem: str, missing: Missing | None = None) -> None:
        self.problem, self.missing = problem, missing
        super().__init__(problem if missing is None else f"{problem}; {missing}")


class ModelError(FrontendError, ValueError):
    """The model, or a shape or constant given for it, is wrong or not supported."""


class UnsupportedNode(FrontendError):
    """A node of an ONNX graph cannot be converted; the import makes a `ModelError` of it."""


class ModelWarning(UserWarning):
    """The imported model differs from its file: a step is left out, the number format is another, or a part is missing."""


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or the name of its class if the message is empty."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
