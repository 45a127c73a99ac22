"""Errors of the front ends, and the arguments that would avoid them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias


@dataclass(frozen=True)
class MissingShape:
    """Dimensions of an input have no size; the argument ``shapes`` would set them.

    Examples
    --------
    >>> from tvm_frontends.errors import MissingShape
    >>> MissingShape("x", example=(1, 3), symbol="N")
    MissingShape(input='x', example=(1, 3), symbol='N')
    """

    input: str
    example: tuple[int, ...]
    """An allowed shape."""
    symbol: str | None = None
    """The symbol that the model declares for the first open dimension."""

    def __str__(self) -> str:
        by_symbol = f", or {self.symbol}=1 for all inputs" if self.symbol else ""
        return f"pass them, e.g. shapes={{{self.input!r}: {self.example}}}{by_symbol}"


@dataclass(frozen=True)
class MissingConstant:
    """A value that decides shapes or control flow is unknown; the argument ``constants`` would set it.

    Examples
    --------
    >>> from tvm_frontends.errors import MissingConstant
    >>> MissingConstant(("size",)).inputs
    ('size',)
    """

    inputs: tuple[str, ...] = ()
    """The inputs of the model from which the value is computed; empty if they are not known."""

    def __str__(self) -> str:
        entries = ", ".join(f"{name!r}: VALUE" for name in self.inputs) or "NAME: VALUE"
        return f"make it a constant: constants={{{entries}}}"


@dataclass(frozen=True)
class MissingWeights:
    """A folder has a configuration, but no weights.

    Examples
    --------
    >>> from pathlib import Path
    >>> from tvm_frontends.errors import MissingWeights, Path
    >>> MissingWeights(Path("gpt2/config.json"))
    MissingWeights(configuration=PosixPath('gpt2/config.json'))
    """

    configuration: Path

    def __str__(self) -> str:
        return "put them there"


Missing: TypeAlias = "MissingShape | MissingConstant | MissingWeights"


class FrontendError(Exception):
    """Base class of the errors of tvm_frontends.

    Attributes
    ----------
    problem : str
        What is wrong, where, and what is allowed.
    missing : MissingShape, MissingConstant or MissingWeights, optional
        What the caller may add; it ends the message.

    Examples
    --------
    >>> import tvm_frontends
    >>> from tvm_frontends import FrontendError
    >>> issubclass(tvm_frontends.ModelError, FrontendError)
    True
    """

    def __init__(self, problem: str, missing: Missing | None = None) -> None:
        self.problem, self.missing = problem, missing
        super().__init__(problem if missing is None else f"{problem}; {missing}")


class ModelError(FrontendError, ValueError):
    """The model, or one of the shapes or constants for it, is wrong or not supported.

    Examples
    --------
    >>> import tvm_frontends
    >>> tvm_frontends.load_model("model.onnx", {"x": (2, 4)})
    Traceback (most recent call last):
        ...
    tvm_frontends.errors.ModelError: model.onnx: input 'x': dimension 1 is given as 4, but the ...
    """


class UnsupportedNode(FrontendError):
    """A node of an ONNX graph cannot be converted; the importer raises a `ModelError` for it.

    Examples
    --------
    >>> import tvm_frontends
    >>> from tvm_frontends.errors import UnsupportedNode
    >>> issubclass(UnsupportedNode, tvm_frontends.FrontendError)
    True
    """


class ModelWarning(UserWarning):
    """The imported model differs from its file: a step is left out, the number format differs, or a part is missing.

    Examples
    --------
    >>> from tvm_frontends import ModelWarning
    >>> issubclass(ModelWarning, UserWarning)
    True
    """


def upstream_reason(error: BaseException) -> str:
    """Return the line of an error of TVM that has the reason: the last one of a traceback, else the first.

    Examples
    --------
    >>> from tvm_frontends.errors import upstream_reason
    >>> upstream_reason(ValueError("the shapes differ"))
    'the shapes differ'
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return lines[-1] if lines[0].startswith("Trace") else lines[0]


def text_input_error(where: str, name: str) -> ModelError:
    """Return the error for an input of strings.

    Examples
    --------
    >>> from tvm_frontends.errors import text_input_error
    >>> print(text_input_error("model.onnx", "s"))
    model.onnx: input 's' holds text, which TVM has no type for: cut the model behind its readers
    """
    return ModelError(
        f"{where}: input {name!r} holds text, which TVM has no type for: cut the model behind its readers"
    )


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or the name of its class if the message is empty.

    Examples
    --------
    >>> from tvm_frontends.errors import first_line
    >>> first_line(ValueError("the shapes differ")), first_line(KeyboardInterrupt())
    ('the shapes differ', 'KeyboardInterrupt')
    """
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
