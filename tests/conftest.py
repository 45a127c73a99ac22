"""All tests: schedules must not depend on how fast the machine is just now, nor on what is kept on disk."""

from __future__ import annotations

import os
import signal
import tempfile

os.environ.setdefault("TVM_SCHED_COSTS", "roofline")
os.environ["TVM_SCHED_NO_CACHE"] = "1"  # tests of the cache take it away
_cache = tempfile.TemporaryDirectory(prefix="tvm_sched_tests.")  # removed when the process ends
os.environ["TVM_SCHED_CACHE"] = _cache.name

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # So it is where a shell started the tests in the background; tests of Ctrl-C need it as it is otherwise.
    signal.signal(signal.SIGINT, signal.default_int_handler)
