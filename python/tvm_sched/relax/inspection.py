"""`Inspection`: the result of `tvm-sched inspect` and `inspect_model`; a stable JSON format."""

from __future__ import annotations

import msgspec

from ..problem import Demand


class Tensor(msgspec.Struct, frozen=True):
    """An input or output: of its shape each dimension is a size, the name or expression of a symbol, or unknown."""

    name: str
    dtype: str | None
    shape: list[int | str | None] | None


class Refusal(msgspec.Struct, frozen=True):
    """A reason why the model is refused: ``node`` names the node; empty where the reason names it."""

    node: str
    reason: str


class Inspection(msgspec.Struct, frozen=True, kw_only=True):
    """Result of `inspect_model`.

    Attributes
    ----------
    format, version : str, int
        Of this structure as JSON.
    model, kind : str
        Name; ``"onnx"``, ``"torch.export"``, ``"relax"``, ``"hugging face"``, ``"problem"`` or ``"artifact"``.
    about : dict of str to str
        What else such files say.
    inputs, outputs : list of Tensor
    symbols : list of str
        Sizes that can be given by name.
    operators : dict of str to int
        Number of each operator, most frequent first; of an artifact, the kernels of its first plan.
    parameters, parameter_bytes : int
    checked : str
        How far it was tried: ``"import"``: it was converted with its shapes; ``"operators"``: dimensions are open, so only
        the operators were looked up; ``"nothing"`` for a problem or an artifact.
    needs : str
        What has to be given for that, where dimensions are open.
    refused : list of Refusal
    notes : list of str
        What import would say.
    seconds : float
    demands : dict of str to Demand
        By operator, what its kernels take of a GPU; of problem files, and of artifacts for GPUs.
    """

    format: str = "tvm_sched.inspection"
    version: int = 1
    model: str
    kind: str
    about: dict[str, str]
    inputs: list[Tensor]
    outputs: list[Tensor]
    symbols: list[str]
    operators: dict[str, int]
    parameters: int
    parameter_bytes: int
    checked: str
    needs: str = ""
    refused: list[Refusal] = []
    notes: list[str] = []
    seconds: float = 0.0
    demands: dict[str, Demand] = {}
