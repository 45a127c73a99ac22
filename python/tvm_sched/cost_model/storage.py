"""Measure reads of a file from its disk, past the page cache."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from time import perf_counter

import msgspec

from ..errors import InputError
from ..problem import Storage

DEPTHS = (1, 2, 4, 8, 16)
"""Measured numbers of simultaneous reads."""
_PIECE, _SMALL = 1 << 20, 4096  # bytes of a read; both are multiples of the blocks of all disks
_MOST = 64 << 20  # bytes that are read at each depth
_SMALL_READS = 64  # at each depth
_ROUNDS = 3  # through all depths, since a disk that others use changes from second to second; medians count
_ENOUGH = 0.95  # of the best bandwidth: a smaller depth that reaches it is taken
LEAST_SIZE = 16 << 20
"""Bytes of the smallest file that is measured."""


class MeasuredDepth(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Measured reads at one number of simultaneous reads."""

    depth: int
    bandwidth: float
    """Bytes a second of reads of 1 MiB, in order."""
    small_reads: float
    """Reads of 4 KiB a second, scattered."""


class MeasuredStorage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The reads of a file past the page cache."""

    depths: tuple[MeasuredDepth, ...]
    size: int
    """Bytes of the file."""

    def to_storage(self, name: str = "disk") -> Storage:
        """Return the storage of a topology: the smallest depth with nearly the best bandwidth.

        Its latency is the part of a small read's time at this depth that its bytes do not explain. Reads overlap, so it is
        less than the time from request to answer.
        """
        best = max(each.bandwidth for each in self.depths)
        chosen = next(each for each in self.depths if each.bandwidth >= _ENOUGH * best)
        latency = max(1 / chosen.small_reads - _SMALL / chosen.bandwidth, 0.0)
        return Storage(name, float(f"{chosen.bandwidth:.3g}"), float(f"{latency:.2g}"), chosen.depth)


def measure_storage(place: str | os.PathLike[str]) -> MeasuredStorage:
    """Read a file past the page cache (``O_DIRECT``), at most 64 MiB and 64 small reads at each of `DEPTHS`, three times.

    Parameters
    ----------
    place
        A file of at least 16 MiB, which is read; or a folder, in which a file of 64 MiB is written, read and removed.

    Raises
    ------
    InputError
        The place is missing, too small or not accessible, or its file system has no reads past the page cache.
    """
    try:
        with _file_at(Path(place)) as file:
            return _measured(file)
    except OSError as error:
        raise InputError(
            f"{place}: cannot be read past the page cache ({error.strerror or error}); name a file or folder on a disk"
        ) from None


@contextmanager
def _file_at(place: Path) -> Iterator[Path]:
    if not place.is_dir():
        yield place
        return
    with tempfile.TemporaryDirectory(dir=place, prefix="tvm-sched-storage-") as folder:
        file = Path(folder) / "data"
        with file.open("wb") as opened:
            for _ in range(_MOST // _PIECE):
                opened.write(os.urandom(_PIECE))
            opened.flush()
            os.fsync(opened.fileno())
        yield file


def _measured(file: Path) -> MeasuredStorage:
    opened = os.open(file, os.O_RDONLY | os.O_DIRECT)
    try:
        size = os.fstat(opened).st_size
        if size < LEAST_SIZE:
            raise InputError(f"{file}: has {size} bytes; a file of at least {LEAST_SIZE} bytes can be measured")
        pieces = [n * _PIECE for n in range(min(size, _MOST) // _PIECE)]
        step = (size // _SMALL - 1) // _SMALL_READS * _SMALL
        scattered = [n * 7919 % _SMALL_READS * step for n in range(_SMALL_READS)]  # a prime: no two follow each other
        rounds = [
            [(_seconds(opened, pieces, _PIECE, depth), _seconds(opened, scattered, _SMALL, depth)) for depth in DEPTHS]
            for _ in range(_ROUNDS)
        ]
        depths = []
        for depth, times in zip(DEPTHS, zip(*rounds, strict=True), strict=True):
            seconds, small = (median(each) for each in zip(*times, strict=True))
            depths.append(MeasuredDepth(depth, len(pieces) * _PIECE / seconds, _SMALL_READS / small))
        return MeasuredStorage(tuple(depths), size)
    finally:
        os.close(opened)


def _seconds(opened: int, offsets: list[int], size: int, depth: int) -> float:
    """Return the time of reads at these offsets, ``depth`` of them at once."""
    buffers = [mmap.mmap(-1, size) for _ in range(depth)]  # aligned to pages, as such reads must be

    def read(worker: int) -> None:
        for offset in offsets[worker::depth]:
            if os.preadv(opened, [buffers[worker]], offset) != size:
                raise OSError("the file was cut off while it was read")

    with ThreadPoolExecutor(depth) as pool:
        list(pool.map(lambda _: None, range(depth)))  # threads are there before the clock runs
        begin = perf_counter()
        list(pool.map(read, range(depth)))
        return max(perf_counter() - begin, 1e-9)
