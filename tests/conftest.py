"""All tests: schedules must not depend on how fast the machine is just now."""

from __future__ import annotations

import os

os.environ.setdefault("TVM_SCHED_COSTS", "roofline")
