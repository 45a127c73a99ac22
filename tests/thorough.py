"""How much is repeated: little in `make test`, all of it in `make test-thorough`, a part in `.ci/run`.

``TVM_SCHED_THOROUGH`` is ``1`` for everything, or ``K/N`` for part K (from 0) of N: the N parts together are everything.
A test belongs to a part by the CRC of its name, so it stays there when others come or go.
"""

import os
import sys
import zlib
from pathlib import Path

TESTS = Path(__file__).parent


def part_of(value: str) -> tuple[int, int]:
    """Return (part, number of parts) for a value of ``TVM_SCHED_THOROUGH``; (0, 0) if nothing is repeated."""
    if value in ("", "0", "1"):
        return 0, int(value or 0)
    part, slash, parts = value.partition("/")
    if not (slash and part.isdecimal() and parts.isdecimal() and int(part) < int(parts)):
        raise ValueError(f"TVM_SCHED_THOROUGH={value!r}; it is 1 (all), 0 (nothing) or K/N (part K of N, from 0)")
    return int(part), int(parts)


PART, PARTS = part_of(os.environ.get("TVM_SCHED_THOROUGH", ""))


def repeated(name: str) -> bool:
    """Whether the test or file of this name is repeated in full in this run."""
    return PARTS > 0 and zlib.crc32(name.encode()) % PARTS == PART


def repeated_here() -> bool:
    """Whether the calling file is repeated in full in this run."""
    return repeated(_file(sys._getframe(1)))


def examples(most: int) -> int:
    """Return how many examples of a property, or turns of a loop, the calling file tries.

    It is `most` where everything is repeated, half of it in the file's part, and else a sixteenth, at least 4.
    """
    if repeated(_file(sys._getframe(1))):
        return most if PARTS == 1 else -(-most // 2)
    return min(most, max(4, -(-most // 16)))


def _file(frame) -> str:
    return Path(frame.f_globals["__file__"]).name
