"""`ModelSource`: a model that was read, but not yet imported."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from .constants import Constants, Values, check_constants
from .errors import MissingShape, ModelError, text_input_error
from .imported_model import ImportedModel
from .shape_examples import Hints, Proposals
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
    """Empty if unknown before the import."""
    operators: dict[str, int] = field(default_factory=dict)
    """Number of each operator in the model; empty if unknown before the import."""
    parameters: int = 0
    parameter_bytes: int = 0
    refused: tuple[tuple[str, str], ...] = ()
    """Operators that cannot be converted: the node and the reason."""


@dataclass(frozen=True)
class ModelSource:
    """A model that can be imported with several shapes; work that does not depend on the shapes is done once.

    Examples
    --------
    >>> import tvm_frontends
    >>> source = tvm_frontends.open_model("model.onnx")
    >>> source.inputs[0].name, source.load({"x": (1, 3)}).inputs
    ('x', {'x': ((1, 3), 'float32')})
    """

    name: str
    where: str
    """The model in messages, usually its file."""
    inputs: tuple[DeclaredInput, ...]
    import_with: Importer
    describe: Callable[[], Description]
    defaults: Mapping[str, int] = field(default_factory=dict)
    """Sizes of symbols that the caller leaves open."""
    loose: bool = False
    """Whether inputs may have different sizes for one symbol, see `expand_shapes`."""
    hints: Callable[[], Hints] = Hints
    """What the file says of sizes that its inputs leave open, for messages."""
    fits: Callable[[StaticShapes, Values], bool | None] | None = None
    """Whether shapes fit the model, for messages; None if that is not known in time."""
    symbolic: Callable[[Values], ImportedModel] | None = None
    """Import the model with its symbols as they are; None if its kind can be imported with static shapes only."""
    ranges: Mapping[str, tuple[int, int | None]] = field(default_factory=dict)
    """Least and largest size of symbols for which the model is valid."""
    texts: tuple[str, ...] = ()
    """Inputs of text that operators read: no shape makes the model one that can be imported."""

    def combinations(
        self, shapes: InputShapes | None = None, constants: Constants | None = None
    ) -> list[tuple[StaticShapes, Values]]:
        """Return the arguments of `import_with` for each combination of sizes.

        Raises
        ------
        ModelError
            As `expand_shapes` and `check_constants`; an input has both a shape and a constant, or holds text.
        """
        for name in self.texts:
            if name not in (constants or {}):
                raise text_input_error(self.where, name)
        values = check_constants(self.inputs, constants, self.where)
        for name in values:
            if isinstance(shapes, Mapping) and name in shapes:
                raise ModelError(
                    f"{self.where}: input {name!r} is frozen as a constant, so no shape can be given for it; leave one out"
                )
        numbers = {name for name, value in values.items() if value.ndim == 0}
        all_shapes = shapes
        if values and (shapes is None or isinstance(shapes, Mapping)):
            all_shapes = {**(shapes or {}), **{name: v.shape for name, v in values.items() if name not in numbers}}
        proposals = Proposals(self.hints, self._trial(values))
        pairs = []
        for static in expand_shapes(self.inputs, all_shapes, self.where, numbers, self.defaults, self.loose, proposals):
            frozen = {name: np.broadcast_to(v, static[name]).copy() for name, v in values.items()}
            pairs.append(({name: shape for name, shape in static.items() if name not in values}, frozen))
        return pairs

    def with_examples(self, shapes: InputShapes | None, constants: Constants | None) -> tuple[InputShapes | None, bool]:
        """Return the shapes with example sizes of what they leave open, and whether anything was open.

        Raises
        ------
        ModelError
            As `combinations`.
        """
        try:
            self.combinations(shapes, constants)
        except ModelError as error:
            if self.symbolic is None or not isinstance(error.missing, MissingShape):
                raise
            return {**(shapes or {}), **{n: self._within(n, size) for n, size in error.missing.sizes.items()}}, True
        return shapes, False

    def _within(self, name: str, size: tuple[int, ...] | int) -> tuple[int, ...] | int:
        """Return an example size inside the symbol's range."""
        least, most = self.ranges.get(name, (0, None))
        return max(min(size, size if most is None else most), least) if isinstance(size, int) else size

    def _trial(self, values: Values) -> Callable[[StaticShapes], bool | None] | None:
        """Return a function that tries shapes of the inputs that are no constants."""
        fits = self.fits
        if fits is None:
            return None
        return lambda shapes: fits(
            {name: shape for name, shape in shapes.items() if name not in values},
            {name: np.broadcast_to(value, shapes.get(name, value.shape)) for name, value in values.items()},
        )

    def load(self, shapes: InputShapes | None = None, constants: Constants | None = None) -> ImportedModel:
        """Import the model with one shape for each input."""
        combinations = self.combinations(shapes, constants)
        if len(combinations) > 1:
            raise ModelError(f"{self.where}: {len(combinations)} combinations of shapes are given; one is allowed here")
        return self.import_with(*combinations[0])
