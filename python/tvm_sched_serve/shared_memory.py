"""System shared memory: named parts of POSIX segments that clients made, read and written without mapping them.

A mapped segment that its owner cuts off ends the process that reads it with a bus error, and values could change while
kernels read them. So inputs are read, and outputs are written, by system calls.
"""

from __future__ import annotations

import os
import re
import weakref
from dataclasses import dataclass

from .datatypes import aligned_bytes
from .failures import Failed, NotFound, RequestError

_FOLDER = "/dev/shm"
_KEY = re.compile(r"/?[A-Za-z0-9][A-Za-z0-9._-]{0,200}")
_REGIONS = 1024


@dataclass(frozen=True)
class Region:
    """A part of a segment that requests refer to by name.

    The segment stays open while a request uses the region, also if a client unregisters it meanwhile: the number of a
    closed descriptor may soon be that of another client's segment.
    """

    name: str
    key: str
    offset: int
    byte_size: int
    descriptor: int

    def read(self, offset: int, size: int) -> memoryview:
        """Return a copy of bytes of the region, aligned as kernels need it.

        Raises
        ------
        RequestError
            The bytes are not all in the region, or its segment was cut off.
        """
        self._check(offset, size)
        content = aligned_bytes(size)
        view = content.data
        done = 0
        while done < size:
            count = os.preadv(self.descriptor, [view[done:]], self.offset + offset + done)
            if not count:
                raise RequestError(f"shared memory region {self.name!r}: its segment is shorter than it was")
            done += count
        return view

    def write(self, offset: int, size: int, content: memoryview) -> None:
        """Write an output into the region.

        Raises
        ------
        RequestError
            It is larger than the ``size`` that the client gave, the region, or what is left of its segment; or there is no
            memory left.
        """
        self._check(offset, size)
        if content.nbytes > size:
            raise RequestError(
                f"shared memory region {self.name!r}: an output of {content.nbytes} bytes needs more than {size}"
            )
        if os.fstat(self.descriptor).st_size < self.offset + offset + content.nbytes:
            raise RequestError(f"shared memory region {self.name!r}: its segment is shorter than it was")
        done = 0
        try:
            while done < content.nbytes:
                done += os.pwrite(self.descriptor, content[done:], self.offset + offset + done)
        except OSError as error:  # a segment takes memory only where it was written
            raise Failed(f"shared memory region {self.name!r}: cannot be written ({error.strerror})") from None

    def _check(self, offset: int, size: int) -> None:
        if offset < 0 or size < 0 or offset + size > self.byte_size:
            raise RequestError(
                f"shared memory region {self.name!r} has {self.byte_size} bytes; {size} at {offset} are not in it"
            )


class SharedMemory:
    """The regions that clients registered.

    Parameters
    ----------
    allowed : bool
        Whether clients may register any: they then read and write all segments of this server's user.
    """

    def __init__(self, allowed: bool = False) -> None:
        self.allowed = allowed
        self.regions: dict[str, Region] = {}

    def register(self, name: str, key: str, offset: int, byte_size: int) -> None:
        """Open a segment for requests to name.

        Raises
        ------
        RequestError
            Shared memory is not allowed, the name is taken, or there is no such segment of that size.
        """
        if not self.allowed:
            raise RequestError("the server takes no shared memory; it was started without --shared-memory")
        if not name or len(name) > 256 or name in self.regions:
            raise RequestError(f"shared memory region {name[:64]!r}: a new name of 1 to 256 characters is needed")
        if len(self.regions) >= _REGIONS:
            raise RequestError(f"{_REGIONS} shared memory regions are registered, and no more are allowed")
        if not _KEY.fullmatch(key) or offset < 0 or byte_size <= 0:
            raise RequestError(f"shared memory region {name!r}: the key, offset or size is not allowed")
        try:
            descriptor = os.open(
                f"{_FOLDER}/{key.removeprefix('/')}", os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
            )
        except OSError:
            raise NotFound(f"shared memory region {name!r}: there is no segment {key!r}") from None
        if os.fstat(descriptor).st_size < offset + byte_size:
            os.close(descriptor)
            raise RequestError(f"shared memory region {name!r}: the segment is shorter than offset and size")
        region = self.regions[name] = Region(name, key, offset, byte_size, descriptor)
        weakref.finalize(region, os.close, descriptor)

    def unregister(self, name: str = "") -> None:
        """Forget a region, or all of them; a name that is not known is ignored, as the protocol wants it."""
        for each in [name] if name else list(self.regions):
            self.regions.pop(each, None)

    def find(self, name: object) -> Region:
        """Return a region.

        Raises
        ------
        RequestError
        """
        region = self.regions.get(name) if isinstance(name, str) else None
        if region is None:
            raise RequestError(f"there is no shared memory region {str(name)[:64]!r}")
        return region

    def status(self, name: str = "") -> list[Region]:
        """Return one region, or all."""
        return [self.find(name)] if name else list(self.regions.values())
