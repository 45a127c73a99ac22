"""Lower a schedule to a plan (docs/formats/plan.md) and make the runtime module that executes it."""

from ...execution_plan import emit_plan
from .executor import Executor, make_executor

__all__ = ["Executor", "emit_plan", "make_executor"]
