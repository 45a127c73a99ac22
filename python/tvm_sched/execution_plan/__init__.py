"""From a schedule to a plan (docs/formats/plan.md): queues, buffers and steps. Needs no TVM."""

from .execution_plan import emit_plan, output_tensors
from .operator_calls import Calls, KernelCall, ShapesOnly
from .states import check_states
from .steps import StepMaker

__all__ = ["Calls", "KernelCall", "ShapesOnly", "StepMaker", "check_states", "emit_plan", "output_tensors"]
