"""Cost models: from an operator graph and a topology to latencies. They join by name, from here or from elsewhere.

A cost model is a function ``(graph, topology) -> Costs``. It joins with the decorator `register_cost_model`, or with no
import at all through an entry point of the group ``tvm_sched.cost_models``.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from importlib.metadata import entry_points

from ..errors import InputError
from ..problem import Costs, OpGraph, Topology
from .occupancy import occupancy
from .roofline import roofline

CostModel = Callable[[OpGraph, Topology], Costs]
GROUP = "tvm_sched.cost_models"

_models: dict[str, CostModel] = {}

__all__ = ["CostModel", "cost_model_names", "costs", "get_cost_model", "occupancy", "register_cost_model", "roofline"]


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

    Raises
    ------
    InputError
        No cost model has the name.
    """
    if name not in _models:
        for entry in entry_points(group=GROUP, name=name):
            _models[name] = entry.load()
    if name not in _models:
        close = difflib.get_close_matches(name, cost_model_names())
        hint = f"; did you mean {' or '.join(map(repr, close))}?" if close else ""
        raise InputError(f"no cost model is called {name!r}{hint}; there are {', '.join(cost_model_names())}")
    return _models[name]


def costs(graph: OpGraph, topology: Topology, model: str = "roofline") -> Costs:
    """Latencies of every operator on every device by the cost model of that name."""
    return get_cost_model(model)(graph, topology)


register_cost_model("roofline")(roofline)
register_cost_model("occupancy")(occupancy)
