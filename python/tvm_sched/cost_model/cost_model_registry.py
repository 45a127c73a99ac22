"""Cost models by name or file: a table, a profile or a trained model can stand in place of a name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tvm_sched_runtime.errors import InputError, did_you_mean
from tvm_sched_runtime.problem import Costs, OpGraph, Topology

from ..registry import Registry
from .calibrated_model import default_cost_model
from .latency_table import costs_of_table
from .learned_model import load_learned
from .predicted import costs_of, costs_of_profile
from .profile import Profile

CostModel = Callable[[OpGraph, Topology], Costs]

COST_MODELS: Registry[CostModel] = Registry(
    "cost model",
    "tvm_sched.cost_models",
    {
        "roofline": "tvm_sched.cost_model.roofline_model:roofline",
        "occupancy": "tvm_sched.cost_model.occupancy_model:occupancy",
        "contention": "tvm_sched.cost_model.contention:contention",
        "learned": "tvm_sched.cost_model.predicted:learned",
        "measured": "tvm_sched.cost_model.predicted:measured",
        "calibrated": "tvm_sched.cost_model.calibrated_model:calibrated",
    },
)


def register_cost_model(name: str) -> Callable[[CostModel], CostModel]:
    """Decorate a function ``(graph, topology) -> Costs`` so that `costs` knows it by ``name``.

    Raises
    ------
    InputError
        Another function has the name already.

    Examples
    --------
    >>> from tvm_sched.cost_model import costs, register_cost_model
    >>> from tvm_sched_runtime.problem import Costs
    >>> @register_cost_model("a-microsecond")
    ... def microseconds(graph, topology):
    ...     return Costs([[1000] * len(topology.devices)] * len(graph.operators))
    ...
    >>> costs(graph, topology, "a-microsecond").operator_ns.tolist()
    [[1000, 1000], [1000, 1000], [1000, 1000]]
    """
    return lambda model: COST_MODELS.add(name, model)


def cost_model_names() -> tuple[str, ...]:
    """Return the names of all cost models, including those of installed packages.

    Examples
    --------
    >>> from tvm_sched.cost_model import cost_model_names
    >>> cost_model_names()
    ('calibrated', 'contention', 'learned', 'measured', 'occupancy', 'roofline')
    """
    return tuple(COST_MODELS.names())


def get_cost_model(name: str) -> CostModel:
    """Return the cost model of a name or of a file.

    A file is a table of latencies (``.csv``), a profile (``.parquet``, ``.json``), or a model of `tvm-sched learn`
    (``.msgpack``).

    Raises
    ------
    InputError
        No cost model has the name, or there is no such file.

    Examples
    --------
    >>> from tvm_sched.cost_model import get_cost_model
    >>> get_cost_model("roofline")(graph, topology).source
    'roofline'
    """
    if Path(name).suffix.lower() in _FILES:
        return _from_file(name)
    if name not in COST_MODELS.names():
        raise InputError(
            f"no cost model is called {name!r}{did_you_mean(name, cost_model_names())}; there are "
            f"{', '.join(cost_model_names())}, and files in {', '.join(_FILES)}"
        )
    return COST_MODELS.get(name)


def _from_file(path: str) -> CostModel:
    """Return the cost model of a file, which is read on first use."""
    if not Path(path).is_file():
        raise InputError(f"{path}: no such file; latencies are read from {', '.join(_FILES)}")

    def model(graph: OpGraph, topology: Topology) -> Costs:
        return _FILES[Path(path).suffix.lower()](graph, topology, path)

    return model


def _of_model(graph: OpGraph, topology: Topology, path: str) -> Costs:
    return costs_of(graph, topology, load_learned(path).predict, Path(path).name)


def _of_profile(graph: OpGraph, topology: Topology, path: str) -> Costs:
    return costs_of_profile(graph, topology, Profile.load(path), Path(path).name)


_FILES: dict[str, Callable[[OpGraph, Topology, str], Costs]] = {
    ".csv": costs_of_table, ".parquet": _of_profile, ".json": _of_profile, ".msgpack": _of_model,
}  # fmt: skip


def costs(graph: OpGraph, topology: Topology, model: str = "") -> Costs:
    """Return the latencies of every operator on every device by the named cost model, by default `default_cost_model`.

    Examples
    --------
    >>> from tvm_sched.cost_model import costs
    >>> costs(graph, topology, "roofline").operator_ns.tolist()
    [[2000, 2000], [1000, 1000], [1000, 1000]]
    """
    return get_cost_model(model or default_cost_model(topology))(graph, topology)
