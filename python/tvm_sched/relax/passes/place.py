"""Place: a scheduler's answer to the module's problem."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import tvm

from ...schedulers import get, solve
from ..attributes import SCHEDULE, SUBMODELS, get_problem, leave


@tvm.transform.module_pass(opt_level=0, name="tvm_sched.Place")
class Place:
    """Choose the device of each operator, how each parameter gets there, and the order of everything.

    Reads the attribute ``tvm_sched.problem``, and the sizes of submodels that `SplitByDominators` left if the scheduler
    knows such options; leaves the schedule as a JSON document in ``tvm_sched.schedule``.

    Parameters
    ----------
    scheduler : str
        Name of a registered scheduler.
    options : mapping, optional
        Its options.
    progress : callable, optional
        Called with what is being done, how many parts are done, and how many there are.
    """

    def __init__(
        self,
        scheduler: str = "anytime",
        options: Mapping[str, Any] | None = None,
        progress: Callable[[str, int, int], None] | None = None,
    ) -> None:
        self.scheduler = scheduler
        self.options = dict(options or {})
        self.progress = progress

    def transform_module(self, mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Transform a module."""
        options = {**self._submodel_options(mod), **self.options}
        schedule = solve(get_problem(mod), self.scheduler, options, self.progress)
        return leave(mod, SCHEDULE, schedule)

    def _submodel_options(self, mod: tvm.IRModule) -> dict[str, Any]:
        if not mod.attrs or SUBMODELS not in mod.attrs:
            return {}
        known = {field.name for field in msgspec.structs.fields(get(self.scheduler).options)}
        return {k: v for k, v in json.loads(str(mod.attrs[SUBMODELS]))["options"].items() if k in known}
