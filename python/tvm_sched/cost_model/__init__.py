"""Cost models: functions from an operator graph and a topology to latencies, registered by name.

A cost model is a function ``(graph, topology) -> Costs``. The decorator `register_cost_model` registers one;
so does an entry point of the group ``tvm_sched.cost_models``, without an import.
"""

from .calibrated_model import calibrated, default_cost_model
from .cost_model_registry import COST_MODELS, CostModel, cost_model_names, costs, get_cost_model, register_cost_model
from .database import CostWarning
from .occupancy_model import occupancy
from .predicted import learned, measured
from .roofline_model import roofline

__all__ = [
    "COST_MODELS",
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
