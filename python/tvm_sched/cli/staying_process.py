"""Keep a process with the loaded compiler between commands: ``TVM_SCHED_STAY=SECONDS tvm-sched compile ...``.

Importing TVM takes more processor time than compiling a model whose kernels are in the cache. So the first command starts
a process that stays, and every command is a fork of it. After a command the process imports the modules that the command
imported; it keeps nothing else. A command uses the process only if its environment, interpreter, machine, limits and all
files of these packages are the same.
"""

from __future__ import annotations

import atexit
import fcntl
import gc
import hashlib
import importlib
import json
import os
import resource
import selectors
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

from ..errors import InputError
from ..parent_death import end_with

VARIABLE = "TVM_SCHED_STAY"
_LONGEST = 24 * 3600
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_MAY_DIFFER = {VARIABLE, "_", "COLUMNS", "LINES", "OLDPWD", "PWD", "SHLVL", "TERM", "WINDOWID"}
"""Environment variables that no import reads; a command has its own values of them."""
_STARTED = b"started\n"
_FOLDER = "tvm-sched-stay"
_is_fork = False
"""Whether this process is a fork of the staying process."""


def seconds_to_stay() -> float:
    """Return for how many seconds ``TVM_SCHED_STAY`` keeps the process; 0 if commands are to run by themselves.

    Raises
    ------
    InputError
        The variable is no number of seconds up to a day.
    """
    text = os.environ.get(VARIABLE, "").strip()
    try:
        seconds = float(text or 0)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= _LONGEST:
        raise InputError(
            f"{VARIABLE} is {text!r}; a number of seconds from 0 (off) to {_LONGEST} is allowed, such as 600"
        )
    usable = hasattr(os, "pidfd_open") and hasattr(os, "memfd_create")  # Linux
    return seconds if usable and not _is_fork else 0.0


def run_in_fork(seconds: float) -> int | None:
    """Run this process' command in a fork of the staying process, which is started if there is none.

    Returns
    -------
    int or None
        The command's wait status; None if there can be no such process, so that the command has to run here.
    """
    with suppress(OSError):
        address = _folder() / f"{_key()}.socket"
        connection = _connect(address) or _start(address)
        if connection is not None:
            with connection:
                return _hand_over(connection, seconds)
    return None


def end_all() -> int:
    """End this user's staying processes after their commands; return their number."""
    ended = 0
    with suppress(OSError):
        for address in _folder().glob("*.socket"):
            if (connection := _connect(address)) is not None:
                with connection:
                    connection.sendall(json.dumps({"end": True}).encode() + b"\n")
                    ended += bool(connection.recv(1))
    return ended


def _folder() -> Path:
    """Return the folder of sockets, which belongs to this user alone; raise OSError if it does not."""
    folder = Path(tempfile.gettempdir()) / f"{_FOLDER}-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(f"{folder} is not a folder of this user alone")
    return folder


def _key() -> str:
    """Return a digest of all that forks of one process have in common."""
    return hashlib.sha256(json.dumps(_in_common(), sort_keys=True).encode()).hexdigest()[:24]


def _in_common() -> dict[str, Any]:
    limits = [name for name in dir(resource) if name.startswith("RLIMIT_")]
    spaces = ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")
    relative = any(not os.path.isabs(place) for place in sys.path)
    return {
        "environment": {name: text for name, text in os.environ.items() if name not in _MAY_DIFFER},
        "interpreter": [sys.executable, sys.version, sys.path, os.getcwd() if relative else "", *map(str, sys.flags)],
        "sources": _sources(),
        "user": [os.getuid(), os.geteuid(), os.getgid(), os.getegid(), sorted(os.getgroups())],
        "processors": [sorted(os.sched_getaffinity(0)), os.getpriority(os.PRIO_PROCESS, 0)],
        "limits": [resource.getrlimit(getattr(resource, name)) for name in limits],
        "machine": [
            Path("/proc/sys/kernel/random/boot_id").read_text(),
            Path("/proc/self/cgroup").read_text(),
            *(os.readlink(f"/proc/self/ns/{name}") for name in spaces),
        ],
    }


def _sources() -> list[Any]:
    """Return time and size of each file of these packages, and the times of folders that packages are installed into."""
    found: list[Any] = []
    ours = {Path(place) for place in importlib.import_module("tvm_sched").__path__}
    for place in {folder.parent for folder in ours}:
        for package in sorted(place.glob("tvm_*")):
            for folder, _, names in sorted(os.walk(package)):
                if not folder.endswith("__pycache__"):
                    found += [(folder, name, *_version(Path(folder, name))) for name in sorted(names)]
    # `pip install` over the same version leaves the folder's time, but not that of the distribution's metadata.
    folders = [place for place in sys.path if os.path.basename(place) in ("site-packages", "dist-packages")]
    metadata = (info for place in folders for info in (place, *sorted(map(str, Path(place).glob("*.dist-info")))))
    return found + [(place, *_version(Path(place))) for place in metadata]


def _version(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError:
        return (0, 0)
    return (found.st_mtime_ns, found.st_size)


@contextmanager
def _short(address: Path) -> Iterator[str]:
    """Give another path of a socket, since that of the system has 107 characters at most."""
    folder = os.open(address.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{address.name}"
    finally:
        os.close(folder)


def _connect(address: Path) -> socket.socket | None:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _short(address) as path:
            connection.connect(path)
    except OSError:
        connection.close()
        return None
    return connection


def _start(address: Path) -> socket.socket | None:
    """Start a staying process and connect; only one of several commands at once starts it."""
    with open(address.parent / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (connection := _connect(address)) is not None:
            return connection
        address.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
            with _short(address) as path:
                listening.bind(path)
            listening.listen()
            program = (
                f"import sys; sys.path[:] = {sys.path!r}; from tvm_sched.cli.staying_process import serve; "
                f"serve({listening.fileno()}, {str(address)!r})"
            )
            subprocess.Popen(
                [sys.executable, *subprocess._args_from_interpreter_flags(), "-c", program],  # type: ignore[attr-defined]
                pass_fds=[listening.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            return _connect(address)


def _hand_over(connection: socket.socket, seconds: float) -> int | None:
    """Send the command with its files, pass signals on, and return its wait status; None if it was not started."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    umask = os.umask(0o077)
    os.umask(umask)
    asked = {
        "arguments": sys.argv,
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "umask": umask,
        "seconds": seconds,
    }
    with _signals() as received:
        socket.send_fds(connection, [b"."], [0, 1, 2])
        connection.sendall(json.dumps(asked).encode() + b"\n")
        answers = b""
        with selectors.DefaultSelector() as selector:
            selector.register(connection, selectors.EVENT_READ)
            selector.register(received, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    if key.fileobj is received:
                        with suppress(OSError):
                            connection.sendall(received.recv(16))
                    elif not (content := connection.recv(64)):
                        return _status(answers)
                    else:
                        answers += content


def _status(answers: bytes) -> int | None:
    if not answers.startswith(_STARTED):
        return None
    told = answers[len(_STARTED) :].decode()
    return int(told) if told else int(signal.SIGKILL)  # the staying process itself was ended


@contextmanager
def _signals() -> Iterator[socket.socket]:
    """Give a socket with the numbers of the signals that arrive."""
    reading, writing = socket.socketpair()
    writing.setblocking(False)
    before = {number: signal.signal(number, lambda *_: None) for number in _PASSED_ON}
    wakeup = signal.set_wakeup_fd(writing.fileno())
    try:
        yield reading
    finally:
        signal.set_wakeup_fd(wakeup)
        for number, handler in before.items():
            signal.signal(number, handler)
        reading.close()
        writing.close()


class _Command:
    """A command that runs in a fork, and the connection to who asked for it."""

    def __init__(self, connection: socket.socket, process: int, modules: int) -> None:
        self.connection = connection
        self.process = process
        self.end = os.pidfd_open(process)
        self.modules = modules

    def finish(self) -> list[str]:
        """Tell the status of the ended fork; return the modules that it imported."""
        _, status = os.waitpid(self.process, 0)
        with suppress(OSError):
            self.connection.sendall(str(status).encode())
        self.connection.close()
        names = os.pread(self.modules, os.fstat(self.modules).st_size, 0).decode().split()
        os.close(self.end)
        os.close(self.modules)
        return list(dict.fromkeys(names))


def serve(listening: int, address: str) -> None:
    """Fork for each command until none has come for some time; the loop of the staying process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.set_threshold(100_000, 50, 50)
    from . import main  # the light modules that every command imports

    server = socket.socket(fileno=listening)
    file = os.stat(address).st_ino
    commands: dict[int, _Command] = {}
    seconds, idle_since, ends = 60.0, time.monotonic(), False
    with selectors.DefaultSelector() as selector:
        selector.register(server, selectors.EVENT_READ)
        while commands or not ends:
            left = None if commands else max(0.0, idle_since + seconds - time.monotonic())
            events = selector.select(left)
            if not events and not commands:
                break
            for key, _ in events:
                if key.fileobj is server:
                    connection, _ = server.accept()
                    asked, files = _request(connection)
                    if asked.get("end"):
                        connection.sendall(b".")
                        connection.close()
                        ends = True
                    elif asked:
                        seconds = asked["seconds"]
                        command = _fork(main, connection, asked, files, [server, *_sockets(commands)])
                        for place in (command.end, command.connection.fileno()):
                            commands[place] = command
                            selector.register(place, selectors.EVENT_READ)
                    else:
                        connection.close()
                    for each in files:
                        os.close(each)
                elif (command := commands.get(key.fd)) is None:  # type: ignore[assignment]
                    continue
                elif key.fd != command.end:
                    _pass_on(command, selector)
                else:
                    for place in (command.end, command.connection.fileno()):
                        commands.pop(place, None)
                        with suppress(KeyError):
                            selector.unregister(place)
                    _import(command.finish())
                    idle_since = time.monotonic()
        with suppress(OSError):
            if os.stat(address).st_ino == file:
                os.unlink(address)


def _pass_on(command: _Command, selector: selectors.BaseSelector) -> None:
    """Send the command the signals that its caller received; end it if its caller has ended."""
    try:
        numbers = command.connection.recv(16)
    except OSError:
        numbers = b""
    if not numbers:
        selector.unregister(command.connection.fileno())
        numbers = bytes([signal.SIGKILL])
    for number in numbers:
        os.kill(command.process, number)  # until `finish` waits for it, nobody else has its number


def _sockets(commands: dict[int, _Command]) -> list[socket.socket]:
    return [command.connection for command in commands.values()]


def _request(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Read what is asked, and the files that came with it; nothing if it is not whole."""
    connection.settimeout(10.0)
    files: list[int] = []
    try:
        content, files, _, _ = socket.recv_fds(connection, 1 << 16, 3)
        while content and not content.endswith(b"\n"):
            more = connection.recv(1 << 16)
            if not more:
                return {}, files
            content += more
        asked = json.loads(content.removeprefix(b"."))
    except (OSError, ValueError):
        return {}, files
    connection.settimeout(None)
    return (asked if asked.get("end") or len(files) == 3 else {}), files


def _fork(
    main: Callable[[], None],
    connection: socket.socket,
    asked: dict[str, Any],
    files: list[int],
    others: list[socket.socket],
) -> _Command:
    modules, parent = os.memfd_create("modules", 0), os.getpid()
    process = os.fork()
    if process == 0:
        end_with(parent)
        for each in (connection, *others):
            each.close()
        _become(main, asked, files, modules)
    connection.sendall(_STARTED)
    return _Command(connection, process, modules)


def _become(main: Callable[[], None], asked: dict[str, Any], files: list[int], modules: int) -> NoReturn:
    """Run the command as a process of its own would, and end as it does."""
    global _is_fork
    _is_fork = True
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.umask(asked["umask"])
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    sys.argv[:] = asked["arguments"]
    sys.stdin = open(0, encoding=sys.stdin.encoding, closefd=False)  # noqa: SIM115 - open as long as the process
    out, error = sys.stdout, sys.stderr
    sys.stdout = open(1, "w", 1 if os.isatty(1) else -1, out.encoding, out.errors, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", 1, error.encoding, error.errors, closefd=False)  # noqa: SIM115
    known = set(sys.modules)
    atexit.register(lambda: os.write(modules, "\n".join((*_imported(known), "")).encode()))
    main()
    sys.exit()


def _imported(known: set[str]) -> list[str]:
    """Return the modules that this process imported; none if PyTorch is among them, which starts threads."""
    if "torch" in sys.modules:
        return []
    new = [(name, module) for name, module in list(sys.modules.items()) if name not in known]
    return [name for name, module in new if getattr(module, "__spec__", None) is not None]


def _import(names: list[str]) -> None:
    """Import what a command has imported, so that the next one has it. A fork needs that no thread runs."""
    if not names:
        return
    from ..problem_sources import packages_for

    with packages_for(Path("model.onnx")):
        for name in names:
            with suppress(Exception):
                importlib.import_module(name)
    from .._library import load_library
    from ..registry import entry_points

    entry_points("")  # reads and keeps those of all groups
    if "tvm" in sys.modules:
        load_library()
    gc.freeze()  # so that a fork's garbage collection does not copy it
