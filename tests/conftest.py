"""All tests: schedules must not depend on how fast the machine is just now, nor on what is kept on disk."""

from __future__ import annotations

import os
import tempfile

os.environ.setdefault("TVM_SCHED_COSTS", "roofline")
os.environ["TVM_SCHED_NO_CACHE"] = "1"  # tests of the cache take it away
_cache = tempfile.TemporaryDirectory(prefix="tvm_sched_tests.")  # removed when the process ends
os.environ["TVM_SCHED_CACHE"] = _cache.name
