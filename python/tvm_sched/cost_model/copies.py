"""Measure copies from and to GPUs with cupy events, and derive the bandwidths of a machine's routes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import numpy as np

from tvm_sched_runtime.checks import require_not_negative, require_positive
from tvm_sched_runtime.errors import InputError

from ..progress import Progress

REPEATS = 9
"""Repetitions of each copy; the median counts."""
LARGE = 256 << 20
"""Bytes of the copies that give a bandwidth: so many that the fixed time of a copy is negligible."""


class PeerCopy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Copies from one GPU's memory to another's, by PCI addresses; 0 bytes a second without peer access."""

    source: str
    target: str
    bandwidth: float


class Bandwidths(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Measured bytes a second of large copies."""

    from_host: dict[str, float] = {}
    """From pinned host memory to the GPU with this PCI address, without other copies."""
    at_once: dict[str, float] = {}
    """The same while all GPUs below its root port copy; only if there are several."""
    peers: tuple[PeerCopy, ...] = ()

    def __post_init__(self) -> None:
        for table in (self.from_host, self.at_once):
            for address, rate in table.items():
                require_positive(f"GPU {address}: bandwidth of copies", rate)
        for peer in self.peers:
            require_not_negative(f"bandwidth of copies from {peer.source} to {peer.target}", peer.bandwidth)


def import_cupy() -> Any:
    """Return the package cupy.

    Raises
    ------
    InputError
        It is not installed.
    """
    try:
        import cupy
    except ImportError as error:
        raise InputError(f"measuring on a GPU needs cupy ({error}): pip install 'tvm-sched[cuda]'") from None
    return cupy


def gpu_count(cupy: Any) -> int:
    """Return the number of GPUs that cupy sees.

    Raises
    ------
    InputError
        There is none, or no driver.
    """
    try:
        return int(cupy.cuda.runtime.getDeviceCount())
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise InputError(f"there is no GPU to measure on ({error})") from None


class EventTimer:
    """Timer of work on a stream of the current GPU, by events before and after it."""

    def __init__(self, cupy: Any) -> None:
        self.cupy = cupy
        self.stream = cupy.cuda.Stream(non_blocking=True)

    def event(self) -> Any:
        """Record an event on the stream."""
        event = self.cupy.cuda.Event()
        event.record(self.stream)
        return event

    def seconds(
        self, work: Callable[[], None], before: Callable[[], None] | None = None, repeats: int = REPEATS
    ) -> float:
        """Measure the median seconds of ``work`` on the stream; ``before`` runs first and is not counted."""
        times = []
        for _ in range(repeats):
            with self.stream:
                if before:
                    before()
                start = self.event()
                work()
                end = self.event()
            end.synchronize()
            times.append(self.cupy.cuda.get_elapsed_time(start, end) / 1e3)
        return float(np.median(times))


class CopyTimer:
    """Timer of copies from and to the current GPU."""

    def __init__(self, timer: EventTimer) -> None:
        self.timer = timer
        self.cuda = timer.cupy.cuda

    def host(self, size: int, down: bool, beside: Sequence[int] = ()) -> float:
        """Measure the seconds of a copy from (``down``) or to pinned host memory, while the GPUs ``beside`` copy, too."""
        pinned, memory = self.cuda.alloc_pinned_memory(size), self.cuda.alloc(size)

        def copy(memory: Any, pinned: Any, stream: Any) -> None:
            (memory.copy_from_host_async if down else memory.copy_to_host_async)(pinned.ptr, size, stream)

        with self._copying(beside, size, copy) as start_others:
            return self.timer.seconds(lambda: copy(memory, pinned, self.timer.stream), start_others)

    def peer(self, size: int, other: int) -> float:
        """Measure a copy to another GPU in seconds; cupy enables peer access where the GPUs have it."""
        source = self.cuda.alloc(size)
        with self.cuda.Device(other):
            target = self.cuda.alloc(size)
        return self.timer.seconds(lambda: target.copy_from_device_async(source, size, self.timer.stream))

    @contextmanager
    def _copying(self, others: Sequence[int], size: int, copy: Callable[..., None]) -> Iterator[Callable[[], None]]:
        """Yield a function that starts several copies on each other GPU, so that they outlast one copy on this GPU."""
        parts = []
        for other in others:
            device = self.cuda.Device(other)
            with device:
                memory, pinned = self.cuda.alloc(size), self.cuda.alloc_pinned_memory(size)
                parts.append((device, memory, pinned, self.cuda.Stream(non_blocking=True)))

        def start() -> None:
            for device, memory, pinned, stream in parts:
                with device:
                    for _ in range(4):
                        copy(memory, pinned, stream)

        yield start
        for _, _, _, stream in parts:
            stream.synchronize()


def measure_bandwidths(cupy: Any, ports: Mapping[int, tuple[str, str]], progress: Progress | None = None) -> Bandwidths:
    """Measure copies of `LARGE` bytes.

    Copies go from the host to each GPU, alone and together with the other GPUs below its root port, and between GPUs that
    have peer access.

    Parameters
    ----------
    cupy : module
    ports : mapping of int to (str, str)
        PCI addresses of a GPU and of its root port, by cupy's number of the GPU.
    progress : callable, optional
        Called with the current measurement, and the numbers of finished and of all measurements.

    Raises
    ------
    InputError
        A copy fails, for example because the GPU's memory is in use.
    """
    report = progress or (lambda *_: None)
    alone, together, peers = {}, {}, []
    try:
        for done, (gpu, (address, port)) in enumerate(ports.items()):
            report(f"copies of GPU {address}", done, len(ports))
            with cupy.cuda.Device(gpu):
                timer = CopyTimer(EventTimer(cupy))
                alone[address] = LARGE / timer.host(LARGE, down=True)
                beside = [other for other, (_, its) in ports.items() if its == port and other != gpu]
                if beside:
                    together[address] = LARGE / timer.host(LARGE, down=True, beside=beside)
                for other, (target, _) in ports.items():
                    if other != gpu:
                        reaches = cupy.cuda.runtime.deviceCanAccessPeer(gpu, other)
                        peers.append(PeerCopy(address, target, LARGE / timer.peer(LARGE, other) if reaches else 0.0))
    except (cupy.cuda.runtime.CUDARuntimeError, MemoryError) as error:
        raise InputError(f"copies of {LARGE >> 20} MiB cannot be measured ({error})") from None
    return Bandwidths(alone, together, tuple(peers))
