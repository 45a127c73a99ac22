"""From a schedule to a plan (docs/formats/plan.md) and the runtime module that executes it."""

from .executor import Executor, make_executor
from .plan import emit_plan

__all__ = ["Executor", "emit_plan", "make_executor"]
