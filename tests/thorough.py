"""How much is repeated: little in `make test`, all of it in `make test-thorough`."""

import os

THOROUGH = os.environ.get("TVM_SCHED_THOROUGH") == "1"
"""Whether to run the cases, too, that run no line which others do not."""


def examples(most: int) -> int:
    """Examples of a property: at most this number, a third of it unless all are asked for."""
    return most if THOROUGH else -(-most // 3)
