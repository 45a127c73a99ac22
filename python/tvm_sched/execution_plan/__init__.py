"""Lower a schedule to a plan (docs/formats/plan.md) of queues, buffers and steps; needs no TVM."""

from .execution_plan import emit_plan, output_tensors
from .operator_calls import Calls, KernelCall
from .states import check_states
from .steps import StepMaker

__all__ = ["Calls", "KernelCall", "StepMaker", "check_states", "emit_plan", "output_tensors"]
