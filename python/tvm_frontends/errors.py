"""Errors of the front ends, and the arguments that would avoid them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias


@dataclass(frozen=True)
class MissingShape:
    """Dimensions of an input have no size; the argument ``shapes`` would set them.

    Examples
    --------
    >>> from tvm_frontends.errors import MissingShape
    >>> print(MissingShape({"batch": 1, "x": (1, 3, 224, 224)}))
    pass them, for example shapes={'batch': 1, 'x': (1, 3, 224, 224)}, with the sizes that the model is to run with
    """

    sizes: Mapping[str, tuple[int, ...] | int]
    """Examples: shapes of inputs, and sizes of symbols that the model declares, by name."""

    def __str__(self) -> str:
        return f"pass them, for example shapes={dict(self.sizes)}, with the sizes that the model is to run with"


@dataclass(frozen=True)
class MissingConstant:
    """A value that decides shapes or control flow is unknown; the argument ``constants`` would set it.

    Examples
    --------
    >>> from tvm_frontends.errors import MissingConstant
    >>> print(MissingConstant({"size": [2, -1]}))
    make it a constant, for example constants={'size': [2, -1]}, with the value that the model is to run with
    """

    examples: Mapping[str, Any] = field(default_factory=dict)
    """The inputs of the model from which the value is computed, each with an example of its value; empty if they are not
    known."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """The inputs of the model from which the value is computed."""
        return tuple(self.examples)

    def __str__(self) -> str:
        entries = str(dict(self.examples)) if self.examples else "{NAME: VALUE}"
        return f"make it a constant, for example constants={entries}, with the value that the model is to run with"


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


@contextmanager
def refused(where: str, doing: str) -> Iterator[None]:
    """Turn errors of other libraries in the block into `ModelError`s; their own text stays behind as the cause.

    Parameters
    ----------
    where : str
        The model in messages.
    doing : str
        What fails, as ``"cannot be read"``.

    Examples
    --------
    >>> from tvm_frontends.errors import refused
    >>> with refused("model.onnx", "cannot be read"):
    ...     {}["scale"]
    Traceback (most recent call last):
        ...
    tvm_frontends.errors.ModelError: model.onnx: cannot be read: 'scale' is missing
    """
    try:
        yield
    except (FrontendError, MemoryError, Warning):
        raise
    except Exception as error:
        raise ModelError(f"{where}: {doing}: {first_line(error)}") from error


_INTERNAL = (
    (re.compile(r"^In ir\.Op\(.*?support_level=\d+\), ", re.DOTALL), ""),  # TVM prints the whole operator
    (re.compile(r"ir\.Op\(.*?support_level=\d+\)", re.DOTALL), "the operator"),
    (re.compile(r"^In Op\([\w.]+\), "), ""),
    (re.compile(r"\b(?:[\w.]+\.)?[A-Z]\w*(?:Error|Exception|Warning): "), ""),
    (re.compile(r"\[\w*Error\] ?"), ""),  # ONNX's [ShapeInferenceError]
    (re.compile(r" ?==> Context: .*", re.DOTALL), ""),
    (re.compile(r"(?:/[^\s:]+/|\b)[\w.-]+\.(?:cc|cpp|cxx|h|hpp|py):\d+:? ?(?:\w+: )?"), ""),
    (re.compile(r"(?:Check|Assertion) failed: .*? (?:is false|\([^()]* vs\. [^()]*\)) ?: ?(?=\S)", re.DOTALL), ""),
    (re.compile(r"Assertion `[^`']*[`'] failed: ?(?=\S)"), ""),
    (re.compile(r" at 0x[0-9a-f]+"), ""),
)
"""What libraries write into their messages for their own developers, and what stands in its place."""


def first_line(error: BaseException | str) -> str:
    """Return what an error of another library says, on one line and without the library's internals.

    Of a traceback it is the last line, else the first one that says something. Names of classes, places in source code and
    failed conditions before an explanation are left out.

    Examples
    --------
    >>> from tvm_frontends.errors import first_line
    >>> first_line(ValueError("the shapes differ")), first_line(KeyError("axis"))
    ('the shapes differ', "'axis' is missing")
    >>> first_line(RuntimeError("Check failed: (ndim == 2) is false: the input must have 2 dimensions"))
    'the input must have 2 dimensions'
    """
    if isinstance(error, KeyError) and len(error.args) == 1:
        return f"{error.args[0]!r} is missing"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if lines and lines[0].startswith("Trace"):
        lines.reverse()
    for line in lines:
        for pattern, text in _INTERNAL:
            line = pattern.sub(text, line)
        if line.strip():
            return next((text for pattern, text in _OF_PYTHON if pattern.search(line)), line.strip())
    return _WITHOUT_TEXT.get(type(error), "it gives no reason")


_OF_PYTHON = (
    (re.compile(r"values to unpack|index out of range|object of type '\w+' has no len|is not iterable"),
     "a list has more or fewer entries than it should"),
    (re.compile(r"^Python int too large|cannot fit .* into"), "a number is too large"),
    (re.compile(r"object has no attribute|is not subscriptable|unsupported operand type|'NoneType'|positional argument"),
     "a value is missing, or of another kind than it should be"),
)  # fmt: skip
"""What Python's own messages mean in a converter."""


_WITHOUT_TEXT: dict[type, str] = {
    AssertionError: "something that it takes for granted does not hold", KeyboardInterrupt: "it was interrupted",
    NotImplementedError: "this is not implemented", IndexError: "there are too few entries",
}  # fmt: skip
"""What errors without a message mean."""
