"""`inspect_model`: a model's contents, the shapes it needs, and what would be refused, before anything is compiled."""

from __future__ import annotations

import time
import warnings
from typing import Any

from tvm_frontends import ImportedModel, ModelSource, open_model
from tvm_frontends.constants import Constants
from tvm_frontends.model import ModelWarning
from tvm_frontends.relax_modules import describe_module
from tvm_frontends.shapes import DeclaredInput, InputShapes, symbols_of

from ..errors import InputError
from .inspection import Inspection, Refusal, Tensor


def inspect_model(
    model: Any, input_shapes: InputShapes | None = None, constants: Constants | None = None, name: str | None = None
) -> Inspection:
    """Inspect a model without compiling it.

    Parameters
    ----------
    model, input_shapes, constants, name
        As for `load_model`. Where no dimension is open, or the shapes are given, the model is imported with the first of
        them, so that what is refused is known.

    Raises
    ------
    InputError
        The model cannot be read, or what is given for its inputs is wrong.
    """
    begin = time.perf_counter()
    source = open_model(model, name)
    found = source.describe()
    refused, notes, needs = [Refusal(node, why) for node, why in found.refused], [], ""
    imported: ImportedModel | None = None
    try:
        combinations = source.combinations(input_shapes, constants)
    except InputError as error:
        if input_shapes or constants:
            raise
        needs = _without_source(str(error), source)
    else:
        refused = []
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", ModelWarning)
            try:
                imported = source.import_with(*combinations[0])
            except InputError as error:
                why = _without_source(str(error), source)
                named = [Refusal(node, reason) for node, reason in found.refused if node in why]
                refused = named or [Refusal("", why)]
        notes = [str(warning.message) for warning in caught if issubclass(warning.category, ModelWarning)]
    description = found
    if imported is not None and not (found.operators and found.outputs):
        description = describe_module(imported)
    return Inspection(
        model=source.name,
        kind=found.kind,
        about=found.about,
        inputs=[_tensor(item) for item in source.inputs],
        outputs=[_tensor(item) for item in found.outputs or description.outputs],
        symbols=symbols_of(source.inputs),
        operators=found.operators or description.operators,
        parameters=found.parameters,
        parameter_bytes=found.parameter_bytes,
        checked="operators" if needs else "import",
        needs=needs,
        refused=refused,
        notes=notes,
        seconds=round(time.perf_counter() - begin, 3),
    )


def _tensor(item: DeclaredInput) -> Tensor:
    shape = None if item.shape is None else [d if isinstance(d, int) or d is None else str(d) for d in item.shape]
    return Tensor(item.name, item.dtype, shape)


def _without_source(message: str, source: ModelSource) -> str:
    return message.removeprefix(f"{source.where}: ")
