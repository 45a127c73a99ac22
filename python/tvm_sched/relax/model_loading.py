"""Open and import models through `tvm_frontends`; its errors become `InputError`s here, and nowhere else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from shlex import quote
from typing import Any

import tvm_frontends
from tvm_frontends import ImportedModel
from tvm_frontends.constants import Constants, Values
from tvm_frontends.errors import Missing, MissingConstant, MissingShape, ModelError
from tvm_frontends.shapes import DeclaredInput, InputShapes, StaticShapes
from tvm_frontends.source import Description
from tvm_sched_runtime.errors import InputError


@contextmanager
def _input_errors() -> Iterator[None]:
    try:
        yield
    except ModelError as error:
        advice = f"; {_advice(error.missing)}" if error.missing else ""
        raise InputError(f"{error.problem}{advice}") from error.__cause__


def _advice(missing: Missing) -> str:
    """Return the option and the argument that set what the front end lacks."""
    if isinstance(missing, MissingShape):
        options = " ".join(f"--shape {quote(_shape_text(name, size))}" for name, size in missing.sizes.items())
        return (
            f"pass them, for example {options} (input_shapes={dict(missing.sizes)}), with the sizes that the model is to "
            "run with; '{1,8}' in place of a size stands for several"
        )
    if isinstance(missing, MissingConstant):
        if not missing.examples:
            return "make it a constant: --constant NAME=VALUE (constants={NAME: VALUE})"
        options = " ".join(f"--constant {quote(f'{name}={_value_text(v)}')}" for name, v in missing.examples.items())
        return (
            f"make it a constant, for example {options} (constants={dict(missing.examples)}), with the value that the model "
            "is to run with"
        )
    return f"to schedule a language model without weights, give {missing.configuration}"


def _shape_text(name: str, size: tuple[int, ...] | int) -> str:
    return f"{name}={size}" if isinstance(size, int) else f"{name}:{','.join(map(str, size))}"


def _value_text(value: Any) -> str:
    """Return a value as ``--constant`` takes it."""
    if isinstance(value, list) and any(isinstance(each, list) for each in value):
        return str(value).replace(" ", "")
    return ",".join(map(_value_text, value)) if isinstance(value, list) else str(value).lower()


@dataclass(frozen=True)
class OpenModel:
    """A model that was read, with its declared inputs; see `tvm_frontends.ModelSource`."""

    source: tvm_frontends.ModelSource

    @property
    def name(self) -> str:
        """The name of the model."""
        return self.source.name

    @property
    def where(self) -> str:
        """The model in messages, usually the path of its file."""
        return self.source.where

    @property
    def inputs(self) -> tuple[DeclaredInput, ...]:
        """The inputs as the model declares them."""
        return self.source.inputs

    def describe(self) -> Description:
        """Return the contents of the file."""
        with _input_errors():
            return self.source.describe()

    def combinations(
        self, shapes: InputShapes | None = None, constants: Constants | None = None
    ) -> list[tuple[StaticShapes, Values]]:
        """Return the arguments of `import_with` for each combination of sizes."""
        with _input_errors():
            return self.source.combinations(shapes, constants)

    def with_examples(self, shapes: InputShapes | None, constants: Constants | None) -> tuple[InputShapes | None, bool]:
        """Return the shapes with example sizes of what they leave open, and whether anything was open."""
        with _input_errors():
            return self.source.with_examples(shapes, constants)

    def import_symbolic(self, constants: Values) -> ImportedModel:
        """Import the model with its symbols as they are."""
        assert self.source.symbolic is not None
        with _input_errors():
            return self.source.symbolic(constants)

    def import_with(self, shapes: StaticShapes, constants: Values) -> ImportedModel:
        """Import the model with static shapes of its inputs, and values of the inputs that are frozen."""
        with _input_errors():
            return self.source.import_with(shapes, constants)


def open_model(model: Any, name: str | None = None) -> OpenModel:
    """Read a model and find out what it declares, as `tvm_frontends.open_model`.

    Raises
    ------
    InputError
        The model cannot be read.
    """
    with _input_errors():
        return OpenModel(tvm_frontends.open_model(model, name))


def load_model(
    model: Any, input_shapes: InputShapes | None = None, name: str | None = None, constants: Constants | None = None
) -> ImportedModel:
    """Import a model with static shapes.

    Parameters
    ----------
    model, input_shapes, name, constants
        As ``model``, ``shapes``, ``name`` and ``constants`` of `tvm_frontends.load_model`.

    Raises
    ------
    InputError
        The model cannot be read or converted; or a shape or constant does not fit it.

    Examples
    --------
    >>> from tvm_sched.relax import load_model
    >>> load_model("model.onnx", {"x": (2, 3)}).inputs
    {'x': ((2, 3), 'float32')}
    """
    with _input_errors():
        return tvm_frontends.load_model(model, input_shapes, name=name, constants=constants)
