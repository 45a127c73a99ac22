"""Send an artifact's files from the deploying machine to the nodes that run its stages.

They lie on the head node's disk and travel through Ray's object store, in parts. Each node keeps what it got, by content, so
that a stage that starts again finds it, and so do other deployments of the same artifact.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from tvm_sched_runtime.errors import InputError, ServingError
from tvm_sched_runtime.files import cache_directory
from tvm_sched_runtime.pipeline import Manifest
from tvm_sched_runtime.pipeline.pipeline_artifact import check_files

PART_BYTES = 32 << 20
"""Most bytes that are read or written at once."""


def local_folder(manifest: Manifest) -> Path:
    """Return the folder in which this node keeps the files of an artifact."""
    digest = hashlib.sha256(msgspec.json.encode(manifest)).hexdigest()
    return cache_directory() / "artifacts" / digest[:32]


def absent(folder: Path, manifest: Manifest, names: Iterable[str]) -> list[str]:
    """Return the files that are missing in a folder, or differ from the manifest."""
    return [name for name in names if not _is_whole(folder, manifest, name)]


def fetch(manifest: Manifest, names: Iterable[str], read: Callable[[str, int], bytes]) -> Path:
    """Return the folder of this node with some files; files that the node lacks are read from other nodes.

    Parameters
    ----------
    read : callable
        Of a file's name and an offset, what stands there: at most `PART_BYTES`, and at least a byte before its end.

    Raises
    ------
    ServingError
        They cannot be written here.
    InputError
        What was read is not what the manifest says.
    """
    folder = local_folder(manifest)
    for name in absent(folder, manifest, names):
        with _Incoming(folder, name) as incoming:
            while incoming.size < manifest.files[name].bytes:
                incoming.add(read(name, incoming.size))
            incoming.keep(manifest)
    return folder


class ArtifactStore:
    """The actor on the head node that has the files of a deployment's stages, for as long as it is deployed.

    Calls run in parallel: nodes may ask for a file before it is whole, and wait for it.
    """

    def __init__(self, manifest: Manifest) -> None:
        self.manifest, self.folder = manifest, local_folder(manifest)
        self.incoming: _Incoming | None = None
        self.whole = {name: threading.Event() for stage in manifest.stages for name in stage.files}
        for name in self.whole.keys() - set(self.missing()):
            self.whole[name].set()

    def missing(self) -> list[str]:
        """Return the stages' files that it has not received yet."""
        return absent(self.folder, self.manifest, self.whole)

    def write(self, name: str, part: bytes) -> None:
        """Take the next part of a file; parts come in order, one file after the other."""
        if self.incoming is None or self.incoming.name != name:
            self.incoming = _Incoming(self.folder, name)
        self.incoming.add(part)
        if self.incoming.size >= self.manifest.files[name].bytes:
            self.incoming.keep(self.manifest)
            self.incoming = None
            self.whole[name].set()

    def read(self, name: str, offset: int) -> bytes:
        """Return a part of a file."""
        self.whole[name].wait()
        with (self.folder / name).open("rb") as file:
            file.seek(offset)
            return file.read(PART_BYTES)


class _Incoming:
    """A file that is being written, beside its place until it is whole."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name, self.size = folder, name, 0
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._path = folder / f".{name}.{os.getpid()}.part"
            self._file = self._path.open("wb")
        except OSError as error:
            raise self._failed(error) from None

    def add(self, part: bytes) -> None:
        if not part:
            raise ServingError(f"{self.name} ended after {self.size} bytes")
        try:
            self._file.write(part)
        except OSError as error:
            raise self._failed(error) from None
        self.size += len(part)

    def keep(self, manifest: Manifest) -> None:
        """Put it into its place, if it is what the manifest says."""
        self._file.close()
        os.replace(self._path, self.folder / self.name)
        check_files(self.folder, manifest, [self.name])

    def __enter__(self) -> _Incoming:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()
        self._path.unlink(missing_ok=True)

    def _failed(self, error: OSError) -> ServingError:
        return ServingError(
            f"{self.folder / self.name}: cannot be written ({error.strerror or error}); give this node another place with "
            "TVM_SCHED_CACHE"
        )


def _is_whole(folder: Path, manifest: Manifest, name: str) -> bool:
    try:
        check_files(folder, manifest, [name])
    except InputError:
        return False
    return True
