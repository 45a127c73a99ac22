"""``python -m tvm_sched.cli`` is ``tvm-sched``."""

from . import main

main()
