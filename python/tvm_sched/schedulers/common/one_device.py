"""The option ``device`` of schedulers that use one device."""

from __future__ import annotations

from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.problem import Scenario


def device_names(scenario: Scenario, scheduler: str, chosen: str) -> list[str]:
    """Return the names of all devices; raise `InputError` if ``chosen`` is neither one of them nor empty."""
    names = [device.name for device in scenario.topology.devices]
    if chosen and chosen not in names:
        raise InputError(f"scheduler {scheduler!r} has no device {chosen!r}; there are {', '.join(names)}")
    return names
