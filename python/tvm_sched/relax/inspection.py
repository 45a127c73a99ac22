"""`inspect_model`: a model's contents, the shapes it needs, and the reasons why it would be refused, without compiling.

Its result, `Inspection`, is a stable JSON format.
"""

from __future__ import annotations

import time
import warnings
from typing import TYPE_CHECKING, Any

import msgspec

from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.problem import Demand

if TYPE_CHECKING:
    from tvm_frontends import ImportedModel
    from tvm_frontends.constants import Constants
    from tvm_frontends.shapes import DeclaredInput, InputShapes

    from .model_loading import OpenModel


class Tensor(msgspec.Struct, frozen=True):
    """An input or output; each dimension of its shape is a size, the name or expression of a symbol, or unknown."""

    name: str
    dtype: str | None
    shape: list[int | str | None] | None


class Refusal(msgspec.Struct, frozen=True):
    """A reason why the model is refused; ``node`` is empty if the reason names the node."""

    node: str
    reason: str


class Inspection(msgspec.Struct, frozen=True, kw_only=True):
    """Result of `inspect_model`."""

    format: str = "tvm_sched.inspection"
    version: int = 1
    """Format of this structure as JSON."""
    model: str
    kind: str
    """Name; ``"onnx"``, ``"torch.export"``, ``"relax"``, ``"hugging face"``, ``"problem"`` or ``"artifact"``."""
    about: dict[str, str]
    """Other metadata of the file."""
    inputs: list[Tensor]
    outputs: list[Tensor]
    symbols: list[str]
    """Symbols whose sizes can be set by name."""
    operators: dict[str, int]
    """Number of each operator, most frequent first; for an artifact, the kernels of its first plan."""
    parameters: int
    parameter_bytes: int
    checked: str
    """Extent of the check. ``"import"``: the model was imported with its shapes. ``"operators"``: dimensions are open, so
    only the operators were looked up. ``"nothing"``: a problem or an artifact."""
    needs: str = ""
    """The options that an import needs, if dimensions are open."""
    refused: list[Refusal] = []
    notes: list[str] = []
    """Warnings of the import."""
    seconds: float = 0.0
    demands: dict[str, Demand] = {}
    """Each operator's demand on a GPU; for problem files and for artifacts for GPUs."""


def inspect_model(
    model: Any,
    input_shapes: InputShapes | None = None,
    constants: Constants | None = None,
    name: str | None = None,
    *,
    backend: str = "cpu",
) -> Inspection:
    """Inspect a model without compiling it.

    Parameters
    ----------
    model, input_shapes, constants, name
        As for `load_model`. If no dimension is open, or there are shapes, the model is imported with the first
        combination of sizes, which shows all refusals.
    backend : {"cpu", "cuda"}
        ``"cuda"``: an imported model is also lowered to kernels; ``refused`` names those that have none for GPUs, and
        ``notes`` those that run on one thread of a GPU.

    Raises
    ------
    InputError
        The model cannot be read, a shape or constant does not fit its inputs, or there is no such backend.

    Examples
    --------
    >>> from tvm_sched.relax import inspect_model
    >>> inspection = inspect_model("model.onnx", {"x": (2, 3)})
    >>> inspection.inputs
    [Tensor(name='x', dtype='float32', shape=['N', 3])]
    """
    if backend not in ("cpu", "cuda"):
        raise InputError(f"backend is {backend!r}, expected 'cpu' or 'cuda'")
    from tvm_frontends.errors import ModelWarning  # imports TVM, which readers of an `Inspection` may lack
    from tvm_frontends.relax_modules import describe_module
    from tvm_frontends.shapes import symbols_of

    from .model_loading import open_model

    begin = time.perf_counter()
    source = open_model(model, name)
    contents = source.describe()
    refused, notes, needs = [Refusal(node, why) for node, why in contents.refused], [], ""
    slow: list[str] = []
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
                named = [Refusal(node, reason) for node, reason in contents.refused if node in why]
                refused = named or [Refusal("", why)]
            if imported is not None and backend == "cuda":
                refused, slow = _on_gpus(imported)
        notes = [str(warning.message) for warning in caught if issubclass(warning.category, ModelWarning)] + slow
    description = contents
    if imported is not None and not (contents.operators and contents.outputs):
        description = describe_module(imported)
    return Inspection(
        model=source.name,
        kind=contents.kind,
        about=contents.about,
        inputs=[_tensor(item) for item in source.inputs],
        outputs=[_tensor(item) for item in contents.outputs or description.outputs],
        symbols=symbols_of(source.inputs),
        operators=contents.operators or description.operators,
        parameters=contents.parameters,
        parameter_bytes=contents.parameter_bytes,
        checked="operators" if needs else "import",
        needs=needs,
        refused=refused,
        notes=notes,
        seconds=round(time.perf_counter() - begin, 3),
    )


def _on_gpus(imported: ImportedModel) -> tuple[list[Refusal], list[str]]:
    """Return the refusals for GPUs, and notes on kernels that are slow there."""
    from .api import model_with_name
    from .gpu_support import check_for_gpus

    support = check_for_gpus(model_with_name(imported))
    slow = support.one_thread
    shown = ", ".join(slow[:8]) + (f" and {len(slow) - 8} more" if len(slow) > 8 else "")
    note = (
        f"without loops for GPUs, so that one thread of a GPU runs them, which is right but slow: {shown}; compile for "
        "CPUs, or leave these operators out of the model"
    )
    return [Refusal(kernel, reason) for kernel, reason in support.refused.items()], [note] if slow else []


def _tensor(item: DeclaredInput) -> Tensor:
    shape = None if item.shape is None else [d if isinstance(d, int) or d is None else str(d) for d in item.shape]
    return Tensor(item.name, item.dtype, shape)


def _without_source(message: str, source: OpenModel) -> str:
    return message.removeprefix(f"{source.where}: ")
