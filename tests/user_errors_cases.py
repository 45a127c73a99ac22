"""Cases of `test_user_errors.py` that other tests use, too."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from thorough import repeated_here
from tvm_sched_runtime.errors import TvmSchedError

FOREIGN = re.compile(
    r"Traceback|\b(?!Traceback)[A-Z]\w*(?:Error|Exception)\b|\.(?:cc|cpp|py|h):\d|Check failed|ir\.Op\(|positional argument|"
    r"subscriptable|has no attribute|unhashable|unsupported operand|not supported between"
)


ODD: list[Any] = [
    None, -1, 0, 1, "x", "", [], {}, True, 1.5, 2**70, float("nan"), b"x", object(), {1, 2}, range(3), ("a",), ["heft"],
    {"x": 1}, {1: 2}, type, np.ones(3), "a/b", "{", ":", "cpu0", "cpu-1", "cpu2:",
]  # fmt: skip
"""Values of which no argument takes more than a few."""


COUNT = 200 if repeated_here() else 50
"""Damaged or random things of each kind that an entry is given."""


def check(wrong: object, use: Callable[..., object], *arguments: Any, **named: Any) -> None:
    """Use a wrong thing: accepted, or refused in our form."""
    try:
        use(*arguments, **named)
    except TvmSchedError as error:
        text = str(error)
        assert text.strip(), wrong
        assert not FOREIGN.search(text), (wrong, text)


def damaged(content: bytes, seed: int) -> Iterator[bytes]:
    """Cut off, replace, insert or remove bytes."""
    rng = random.Random(seed)
    for _ in range(COUNT):
        changed, place = bytearray(content), rng.randrange(len(content))
        match rng.randrange(4):
            case 0:
                del changed[place:]
            case 1:
                changed[place] = rng.randrange(256)
            case 2:
                changed[place:place] = bytes([rng.randrange(256)] * 3)
            case _:
                del changed[place : place + 5]
        yield bytes(changed)
