"""The models that a server holds, and where they come from: a folder of artifacts with versions, or one artifact."""

from __future__ import annotations

import asyncio
import logging
import re
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tvm_sched_runtime.errors import InputError, TvmSchedError

from .execution_queue import ExecutionQueue, QueueOptions
from .failures import Failed, NotFound, RequestError
from .served_model import NOT_JOINED, ServedModel
from .served_text import ServedText, load_served
from .text_queue import TextQueue

LOG = logging.getLogger("tvm_sched.serve")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_VERSION = re.compile(r"[1-9][0-9]{0,9}")
Stamp = tuple[tuple[str, int, int], ...]
"""Name, size and time of change of an artifact and of the file of parameters beside it."""
Queue = ExecutionQueue | TextQueue
"""What is before a version of a model."""
OnChange = Callable[[Queue, bool], None]
"""Called with a queue that was opened (True) or closed (False)."""
MODEL_FILE = "model.so"
"""Name of the artifact in the folder of a version."""
PIPELINE_FILE = "manifest.json"
"""In the folder of a pipeline artifact; its module is not imported, which takes as long as all else."""


@dataclass(frozen=True)
class LoadOptions:
    """How artifacts are loaded."""

    threads: int | None = None
    watchdog: float | None = None
    follow_links: bool = True
    """Whether artifacts are opened which links take out of the repository."""
    verify: bool | None = None
    """As for `tvm_sched_runtime.load`."""


@dataclass
class IndexEntry:
    """A version as the index of the repository lists it."""

    name: str
    version: str
    state: str
    reason: str = ""


class Models(ABC):
    """The models that a server has, each with its versions; a subclass says where they come from.

    Parameters
    ----------
    on_change : callable
        Called with a queue that was opened (True) or closed (False).
    """

    def __init__(self, on_change: OnChange) -> None:
        self.on_change = on_change
        self._ready = False
        self._watchers: set[asyncio.Event] = set()
        self._served: dict[str, dict[str, Queue]] = {}
        self._latest: dict[str, Queue] = {}
        self._failed: dict[str, str] = {}
        self._asleep: dict[str, dict[str, tuple[Stamp, ServedModel | ServedText]]] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._drains: set[asyncio.Task[None]] = set()

    @property
    def ready(self) -> bool:
        """Whether requests should be sent here: all models are loaded, and the server does not end."""
        return self._ready

    @ready.setter
    def ready(self, ready: bool) -> None:
        self._ready = ready
        self._tell_watchers()

    async def changes(self) -> AsyncGenerator[None, None]:
        """Yield once, then whenever a model or the server may have become ready, or no longer ready."""
        changed = asyncio.Event()
        self._watchers.add(changed)
        try:
            while True:
                yield
                await changed.wait()
                changed.clear()
        finally:
            self._watchers.discard(changed)

    def _tell_watchers(self) -> None:
        for changed in self._watchers:
            changed.set()

    @abstractmethod
    def names(self) -> list[str]:
        """Return the names of all models that there are, loaded or not."""

    @abstractmethod
    def known_versions(self, name: str) -> Collection[str]:
        """Return the versions of a model that there are, loaded or not."""

    @abstractmethod
    async def open(self, name: str) -> dict[str, Queue]:
        """Return a queue for each version of a model.

        Raises
        ------
        TvmSchedError, OSError
            A version cannot be loaded.
        """

    def stamps(self, name: str) -> dict[str, Stamp]:
        """Return what tells whether the versions of a model that sleep have changed.

        Raises
        ------
        RequestError
            These models cannot sleep.
        """
        raise RequestError(f"model {name[:128]!r} cannot sleep: it does not run in this process")

    def find(self, name: str, version: str = "") -> Queue:
        """Return the queue of a version, by default of the highest.

        Raises
        ------
        NotFound
        """
        queue = self._served.get(name, {}).get(version) if version else self._latest.get(name)
        if queue is None:
            of_version = f" version {version[:16]!r}" if version else ""
            if name in self._asleep:
                raise NotFound(f"model {name!r}{of_version} sleeps; load it to wake it")
            raise NotFound(f"there is no model {name[:128]!r}{of_version}")
        return queue

    def has(self, name: str, version: str = "") -> bool:
        """Return whether a version of a model, or any, is served."""
        return version in self._served.get(name, ()) if version else name in self._latest

    def versions(self, name: str) -> list[str]:
        """Return the versions of a model that are served."""
        return list(self._served.get(name, ()))

    def latest(self) -> list[Queue]:
        """Return the queue of each model's highest version."""
        return list(self._latest.values())

    def queues(self, name: str = "", version: str = "") -> Iterator[Queue]:
        """Return the queues of all versions, of one model's, or one."""
        if version:
            yield self.find(name, version)
        elif name:
            self.find(name)
            yield from self._served[name].values()
        else:
            for versions in list(self._served.values()):
                yield from versions.values()

    def index(self) -> list[IndexEntry]:
        """Return all versions with their state."""
        entries = []
        for name in sorted({*self.names(), *self._served}):
            served = self._served.get(name, {})
            for version in sorted({*self.known_versions(name), *served}, key=int):
                if version in served:
                    entries.append(IndexEntry(name, version, "READY"))
                    continue
                asleep = "asleep" if version in self._asleep.get(name, ()) else ""
                entries.append(IndexEntry(name, version, "UNAVAILABLE", self._failed.get(name, asleep)))
        return entries

    async def load_all(self) -> None:
        """Load every model; the server is ready afterwards.

        Raises
        ------
        InputError
            An artifact cannot be loaded.
        """
        for name in self.names():
            await self._load(name)
        self.ready = True

    async def load(self, name: str) -> None:
        """Load all versions of a model again, then send requests to them.

        Versions that sleep (`unload`) wake instead if their files are the same. The versions that served until then keep the
        requests that they have, and end when these are answered. If an artifact cannot be loaded, everything stays as it
        was.

        Raises
        ------
        NotFound, RequestError
        """
        try:
            await self._load(name)
        except TvmSchedError as error:
            LOG.error("model %s was not loaded: %s", name, error)
            self._failed[name] = "an artifact was refused; the server's log says why"
            raise RequestError(f"model {name!r} was not loaded: {self._failed[name]}") from None
        except OSError as error:
            LOG.error("model %s was not loaded: %s", name, error)
            raise Failed(f"model {name!r} was not loaded") from None

    async def unload(self, name: str, *, sleep: bool = False) -> None:
        """Stop serving a model; requests that wait or run are answered.

        With ``sleep``, the model's compiled kernels and threads stay in memory without its parameters, so that `load`
        brings it back sooner (`ScheduledModule.sleep`).

        Raises
        ------
        NotFound, RequestError
            There is no such model, or it cannot sleep.
        """
        # Who asked may go: gRPC then cancels the call.
        await asyncio.shield(self._in_background(self._unload(name, sleep)))

    def record_timelines(self, wanted: bool) -> None:
        """Let the executor record the timelines of all models' further runs, or no more."""
        for queue in self.queues():
            queue.record_timelines(wanted)

    async def drain(self) -> None:
        """Refuse readiness, and wait until every request is answered."""
        self.ready = False
        closing = asyncio.gather(*self._drains, return_exceptions=True)
        await asyncio.gather(*(queue.drain() for queue in self.queues()), closing)

    async def _load(self, name: str) -> None:
        if not self.known_versions(name):
            raise NotFound(f"there is no model {name[:128]!r} in the repository")
        async with self._lock(name):
            loaded = await self.open(name)
            for queue in loaded.values():
                self.on_change(queue, True)
                queue.record_timelines(queue.recorder.timelines)  # a trace may have begun, or ended while it slept
            old = self._served.get(name, {})
            self._served[name] = loaded
            self._latest[name] = loaded[max(loaded, key=int)]
            self._failed.pop(name, None)
            self._asleep.pop(name, None)
            self._tell_watchers()
            for queue in old.values():
                self._in_background(self._close(queue))
            LOG.info("model %s: serving versions %s", name, ", ".join(loaded))
            for queue in loaded.values():
                if isinstance(queue, ExecutionQueue) and queue.options.batch_delay is not None and not queue.joins:
                    LOG.warning(
                        "model %s version %s: requests are not joined: %s", name, queue.model.version, NOT_JOINED
                    )

    def _lock(self, name: str) -> asyncio.Lock:
        return self._locks.setdefault(name, asyncio.Lock())

    def _in_background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Do what must go on when nobody waits for it."""
        task = asyncio.create_task(work)
        self._drains.add(task)
        task.add_done_callback(self._drains.discard)
        return task

    async def _unload(self, name: str, sleep: bool) -> None:
        async with self._lock(name):
            self.find(name)
            stamps = self.stamps(name) if sleep else {}
            self._latest.pop(name)
            queues = self._served.pop(name)
            self._tell_watchers()
            await asyncio.gather(*(self._close(queue) for queue in queues.values()))
            for version, stamp in stamps.items():
                if version in queues:
                    await asyncio.to_thread(queues[version].model.module.sleep)
                    self._asleep.setdefault(name, {})[version] = stamp, queues[version].model

    async def _close(self, queue: Queue) -> None:
        await queue.drain()
        self.on_change(queue, False)


class Repository(Models):
    """Loads models from the disk.

    A folder holds ``NAME.so``, which is version 1 of the model NAME, and ``NAME/VERSION/model.so``.

    Parameters
    ----------
    root : Path
        The folder, or one artifact.
    queue : QueueOptions
    load : LoadOptions
    on_change : callable, optional
        As for `Models`.

    Raises
    ------
    InputError
        There is no such file or folder, or an artifact's name is not allowed.
    """

    def __init__(
        self,
        root: Path,
        queue: QueueOptions | None = None,
        load: LoadOptions | None = None,
        on_change: OnChange = lambda queue, opened: None,
    ) -> None:
        super().__init__(on_change)
        self.root = root
        self.queue_options = queue or QueueOptions()
        self.load_options = load or LoadOptions()
        self._stamps: dict[str, dict[str, Stamp]] = {}
        """Of the files of each version, before they were loaded."""
        self._left_out: dict[Path, str] = {}
        """Links that are not followed, and why."""
        if not root.exists():
            raise InputError(f"{root}: there is no such artifact or folder")
        if (root / PIPELINE_FILE).exists():
            raise InputError(f"{root}: is a pipeline, which another command serves: tvm-sched gateway {root}")
        if not self.names():
            for link, reason in self._left_out.items():
                raise InputError(f"{root}: holds no artifact that is opened: {link} {reason}")
            raise InputError(
                f"{root}: holds no artifact; expected NAME.so or NAME/VERSION/{MODEL_FILE}, with names of letters, digits, "
                "'.', '_' and '-', and versions 1, 2, ..."
            )

    def names(self) -> list[str]:
        """Return the names of all models on the disk."""
        if self.root.is_file():
            return [self.root.stem] if _NAME.fullmatch(self.root.stem) else []
        names = set()
        for entry in self.root.iterdir():
            name = entry.stem if entry.suffix == ".so" and not entry.is_dir() else entry.name
            if _NAME.fullmatch(name) and self.files(name):
                names.add(name)
        return sorted(names)

    def files(self, name: str) -> dict[str, Path]:
        """Return the artifact of each version of a model."""
        if not _NAME.fullmatch(name):
            return {}
        if self.root.is_file():
            return {"1": self.root} if name == self.root.stem else {}
        versions = {"1": self.root / f"{name}.so"}
        folder = self.root / name
        if self._leads_inside(folder) and folder.is_dir():
            versions |= {e.name: e / MODEL_FILE for e in folder.iterdir() if _VERSION.fullmatch(e.name)}
        return {
            version: file
            for version, file in sorted(versions.items(), key=lambda each: int(each[0]))
            if self._leads_inside(file) and file.is_file()
        }

    def _leads_inside(self, path: Path) -> bool:
        """Return whether a path may be opened; log once if a link takes it out of the repository, or nowhere.

        The repository is where its own path leads: Kubernetes' volumes and git-sync swap links within it.
        """
        real = path.resolve()
        if not real.exists():
            if not path.is_symlink():
                return False
            reason = f"leads nowhere, to {real}"
        elif self.load_options.follow_links or real.is_relative_to(self.root.resolve()):
            self._left_out.pop(path, None)
            return True
        else:
            reason = f"leads out of it, to {real}, and --no-follow-links was given"
        if self._left_out.get(path) != reason:
            self._left_out[path] = reason
            LOG.warning("%s is not opened: it %s", path, reason)
        return False

    def known_versions(self, name: str) -> Collection[str]:
        """Return the versions of a model on the disk."""
        return self.files(name)

    async def open(self, name: str) -> dict[str, Queue]:
        """Load all versions of a model."""
        loaded: dict[str, Queue] = {}
        stamps = {}
        for version, link in self.files(name).items():
            file = without_links(link)
            stamps[version] = _stamp(file)  # a file that is replaced from now on has changed
            model = await asyncio.to_thread(self._open_version, name, version, file)
            if isinstance(model, ServedModel):
                loaded[version] = ExecutionQueue(model, self.queue_options)
            else:
                loaded[version] = TextQueue(model, self.queue_options)
        self._stamps[name] = stamps
        return loaded

    def stamps(self, name: str) -> dict[str, Stamp]:
        """Return what tells whether the files of a model's versions have changed since they were loaded."""
        return self._stamps[name]

    def _open_version(self, name: str, version: str, file: Path) -> ServedModel | ServedText:
        """Wake a version that sleeps and has not changed, or load it."""
        stamp, model = self._asleep.get(name, {}).get(version, ((), None))
        if model is not None and stamp == _stamp(file):
            model.module.wake()
            return model
        options = self.load_options
        return load_served(
            file, name, version, instances=self.queue_options.instances,
            threads=options.threads, watchdog=options.watchdog, verify=options.verify,
        )  # fmt: skip


def without_links(file: Path) -> Path:
    """Return the path of an artifact without links, unless its parameters are beside the link only.

    Who swaps a link for another version between the two reads would otherwise mix both versions.
    """
    real, suffix = file.resolve(), ".safetensors"
    same = real.name == file.name and real.with_suffix(suffix).is_file() >= file.with_suffix(suffix).is_file()
    return real if same else file


def _stamp(file: Path) -> Stamp:
    files = [each for each in (file, file.with_suffix(".safetensors")) if each.exists()]
    return tuple((str(each), (found := each.stat()).st_size, found.st_mtime_ns) for each in files)
