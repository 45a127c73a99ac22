"""`ModelSource`: a model that was read and not yet imported; it knows the declared inputs and how to import."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from .constants import Constants, Values, check_constants
from .errors import ModelError
from .imported_model import ImportedModel
from .shapes import DeclaredInput, InputShapes, StaticShapes, expand_shapes

Importer = Callable[[StaticShapes, Values], ImportedModel]
"""Import a model from the static shapes of its inputs and the values of the inputs that become constants."""


@dataclass(frozen=True)
class Description:
    """Contents of a model as its file describes them, without conversion."""

    kind: str
    """``"onnx"``, ``"torch.export"``, ``"relax"`` or ``"hugging face"``."""
    about: dict[str, str] = field(default_factory=dict)
    """Further information of the file: versions, the program that wrote it."""
    outputs: tuple[DeclaredInput, ...] = ()
    """Empty where nothing is known before import."""
    operators: dict[str, int] = field(default_factory=dict)
    """Number of each operator in the model; empty where nothing is known before import."""
    parameters: int = 0
    parameter_bytes: int = 0
    refused: tuple[tuple[str, str], ...] = ()
    """Operators that cannot be converted: the node, and why."""


@dataclass(frozen=True)
class ModelSource:
    """A model that can be imported with several shapes; what does not depend on them is done once."""

    name: str
    where: str
    """What messages call it: the file's name, mostly."""
    inputs: tuple[DeclaredInput, ...]
    import_with: Importer
    describe: Callable[[], Description]
    defaults: Mapping[str, int] = field(default_factory=dict)
    """Sizes of symbols that are not given."""
    loose: bool = False
    """Whether inputs may contradict each other about a symbol, see `expand_shapes`."""

    def combinations(
        self, shapes: InputShapes | None = None, constants: Constants | None = None
    ) -> list[tuple[StaticShapes, Values]]:
        """For each combination of sizes the arguments of `import_with`.

        Raises
        ------
        ModelError
            As `expand_shapes` and `check_constants`; an input that has both a shape and a value.
        """
        values = check_constants(self.inputs, constants, self.where)
        for name in values:
            if isinstance(shapes, Mapping) and name in shapes:
                raise ModelError(
                    f"{self.where}: input {name!r} is frozen as a constant, so no shape can be given for it"
                )
        numbers = {name for name, value in values.items() if value.ndim == 0}
        given = shapes
        if values and (shapes is None or isinstance(shapes, Mapping)):
            given = {**(shapes or {}), **{name: v.shape for name, v in values.items() if name not in numbers}}
        found = []
        for static in expand_shapes(self.inputs, given, self.where, numbers, self.defaults, self.loose):
            frozen = {name: np.broadcast_to(v, static[name]).copy() for name, v in values.items()}
            found.append(({name: shape for name, shape in static.items() if name not in values}, frozen))
        return found

    def load(self, shapes: InputShapes | None = None, constants: Constants | None = None) -> ImportedModel:
        """Import with one shape for each input."""
        found = self.combinations(shapes, constants)
        if len(found) > 1:
            raise ModelError(f"{self.where}: {len(found)} combinations of shapes are given; one is allowed here")
        return self.import_with(*found[0])
