"""Cost models: from an operator graph and a topology to latencies. They join by name, from here or from elsewhere.

A cost model is a function ``(graph, topology) -> Costs``. It joins with the decorator `register_cost_model`, or with no
import at all through an entry point of the group ``tvm_sched.cost_models``.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path

from ..errors import InputError
from ..presets import did_you_mean
from ..problem import Costs, OpGraph, Topology
from .calibrated_model import calibrated, default_cost_model
from .database import CostWarning
from .learned_model import load_learned
from .occupancy_model import occupancy
from .predicted import costs_of, costs_of_profile, learned, measured
from .profile import Profile
from .roofline_model import roofline
from .table import costs_of_table

CostModel = Callable[[OpGraph, Topology], Costs]
GROUP = "tvm_sched.cost_models"

_models: dict[str, CostModel] = {}

__all__ = [
    "CostModel",
    "CostWarning",
    "calibrated",
    "cost_model_names",
    "costs",
    "default_cost_model",
    "get_cost_model",
    "learned",
    "measured",
    "occupancy",
    "register_cost_model",
    "roofline",
]


def register_cost_model(name: str) -> Callable[[CostModel], CostModel]:
    """Decorate a function ``(graph, topology) -> Costs`` so that `costs` knows it by ``name``.

    Raises
    ------
    InputError
        Another function has the name already.
    """

    def join(model: CostModel) -> CostModel:
        taken = _models.get(name)
        if taken is not None and _origin(taken) != _origin(model):
            raise InputError(f"a cost model {name!r} is registered already, by {taken.__module__}")
        _models[name] = model  # a cell of a notebook may be run again
        return model

    return join


def _origin(model: CostModel) -> tuple[str, str]:
    return model.__module__, getattr(model, "__qualname__", repr(model))


def cost_model_names() -> tuple[str, ...]:
    """Names of all cost models, those of installed packages too."""
    return tuple(sorted({*_models, *(entry.name for entry in entry_points(group=GROUP))}))


def get_cost_model(name: str) -> CostModel:
    """The cost model of a name; a package that offers it is imported now.

    The name may be that of a file: a table of latencies (``.csv``), a profile (``.parquet``, ``.json``), or a model that
    `tvm-sched learn` made (``.msgpack``).

    Raises
    ------
    InputError
        No cost model has the name, or there is no such file.
    """
    if Path(name).suffix.lower() in _FILES:
        return _from_file(name)
    if name not in _models:
        for entry in entry_points(group=GROUP, name=name):
            _models[name] = entry.load()
    if name not in _models:
        hint = did_you_mean(name, cost_model_names())
        raise InputError(
            f"no cost model is called {name!r}{hint}; there are {', '.join(cost_model_names())}, "
            f"and files in {', '.join(_FILES)}"
        )
    return _models[name]


def _from_file(path: str) -> CostModel:
    """The cost model that a file stands for; the file is read when it is asked."""
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


def costs(graph: OpGraph, topology: Topology, model: str = "roofline") -> Costs:
    """Latencies of every operator on every device by the cost model of that name."""
    return get_cost_model(model)(graph, topology)


register_cost_model("roofline")(roofline)
register_cost_model("occupancy")(occupancy)
register_cost_model("learned")(learned)
register_cost_model("measured")(measured)
register_cost_model("calibrated")(calibrated)
