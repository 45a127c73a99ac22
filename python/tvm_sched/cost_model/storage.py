"""Measure reads of a file from its disk, as a cold start reads its parameters."""

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

from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.problem import Storage

DEPTHS = (1, 2, 4, 8, 16)
"""Measured numbers of simultaneous reads."""
_PIECE, _SMALL = 1 << 20, 4096  # bytes of a read; both are multiples of the blocks of all disks
MOST_BYTES = 64 << 20  # bytes that are read at each depth
_SMALL_READS = 64  # at each depth
_POPULATE_READ = 22  # MADV_POPULATE_READ, which the module mmap does not name
_ROUNDS = 3  # through all depths, since a disk that others use changes from second to second; medians count
_ENOUGH = 0.95  # of the best bandwidth: a smaller depth that reaches it is taken
LEAST_SIZE = 16 << 20
"""Bytes of the smallest file that is measured."""


class MeasuredDepth(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Measured reads at one number of simultaneous reads."""

    depth: int
    bandwidth: float
    """Bytes a second of pieces of 1 MiB, in order, of a mapped file that is not in the page cache."""
    small_reads: float
    """Reads of 4 KiB a second, scattered, past the page cache."""


class MeasuredStorage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The reads of a file."""

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
    """Read a file, at most 64 MiB and 64 small reads at each of `DEPTHS`, three times.

    The 64 MiB are read as a cold start does (``cpp/runtime/read_ahead.cc``): their pages are dropped, then asked for
    ``depth`` pieces of 1 MiB ahead and mapped piece by piece. Small reads go past the page cache (``O_DIRECT``).

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
            for _ in range(MOST_BYTES // _PIECE):
                opened.write(os.urandom(_PIECE))
            opened.flush()
            os.fsync(opened.fileno())
        yield file


def _measured(file: Path) -> MeasuredStorage:
    opened, cached = os.open(file, os.O_RDONLY | os.O_DIRECT), os.open(file, os.O_RDONLY)
    try:
        size = os.fstat(opened).st_size
        if size < LEAST_SIZE:
            raise InputError(f"{file}: has {size} bytes; a file of at least {LEAST_SIZE} bytes can be measured")
        pieces = [n * _PIECE for n in range(min(size, MOST_BYTES) // _PIECE)]
        step = (size // _SMALL - 1) // _SMALL_READS * _SMALL
        scattered = [n * 7919 % _SMALL_READS * step for n in range(_SMALL_READS)]  # a prime: no two follow each other
        rounds = [
            [(_read_ahead_seconds(cached, pieces, depth), _seconds(opened, scattered, depth)) for depth in DEPTHS]
            for _ in range(_ROUNDS)
        ]
        depths = []
        for depth, times in zip(DEPTHS, zip(*rounds, strict=True), strict=True):
            seconds, small = (median(each) for each in zip(*times, strict=True))
            depths.append(MeasuredDepth(depth, len(pieces) * _PIECE / seconds, _SMALL_READS / small))
        return MeasuredStorage(tuple(depths), size)
    finally:
        os.close(opened)
        os.close(cached)


def _read_ahead_seconds(opened: int, offsets: list[int], depth: int) -> float:
    """Return the time in which pieces of a file come into memory, if ``depth`` of them are asked for ahead."""
    os.posix_fadvise(opened, 0, 0, os.POSIX_FADV_DONTNEED)
    with mmap.mmap(opened, offsets[-1] + _PIECE, prot=mmap.PROT_READ) as mapped:
        begin = perf_counter()
        for k, offset in enumerate(offsets):
            for ahead in offsets[k + depth - 1 : k + depth] if k else offsets[:depth]:
                os.posix_fadvise(opened, ahead, _PIECE, os.POSIX_FADV_WILLNEED)
            try:
                mapped.madvise(_POPULATE_READ, offset, _PIECE)
            except OSError:  # a system before 5.14
                for place in range(offset, offset + _PIECE, mmap.PAGESIZE):
                    mapped[place]
        return max(perf_counter() - begin, 1e-9)


def _seconds(opened: int, offsets: list[int], depth: int) -> float:
    """Return the time of small reads at these offsets, ``depth`` of them at once."""
    buffers = [mmap.mmap(-1, _SMALL) for _ in range(depth)]  # aligned to pages, as such reads must be

    def read(worker: int) -> None:
        for offset in offsets[worker::depth]:
            if os.preadv(opened, [buffers[worker]], offset) != _SMALL:
                raise OSError("the file was cut off while it was read")

    with ThreadPoolExecutor(depth) as pool:
        list(pool.map(lambda _: None, range(depth)))  # threads are there before the clock runs
        begin = perf_counter()
        list(pool.map(read, range(depth)))
        return max(perf_counter() - begin, 1e-9)
