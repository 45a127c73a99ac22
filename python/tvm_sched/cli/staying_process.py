"""Keep a process with the loaded compiler between commands: ``TVM_SCHED_STAY=SECONDS tvm-sched compile ...``.

Importing TVM takes more processor time than compiling a model whose kernels are in the cache. So the first command starts
a process that stays, and every command is a fork of it. After a command the process imports the modules that the command
imported; it keeps nothing else. A command uses the process only if its environment, interpreter, machine, limits and all
files of these packages are the same, and the installed packages have the same dates.
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
import select
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
_OTHER_FILES = ("/dev/fd/", "/proc/self/fd/")
"""Names of open files, of which only those of numbers 0 to 2 are handed over."""
_STARTED = b"started\n"
_PATIENCE = 10.0
"""Seconds to wait for the other side of a connection."""
_START_PATIENCE = 60.0
"""Seconds until a command that was not started runs by itself: the process is stopped, or has no room for it."""
_FILES, _OTHER_USES = 8, 64
"""Most open files for a command that runs or begins, and for all else."""
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
    if _is_fork or not (hasattr(os, "pidfd_open") and hasattr(os, "memfd_create")):  # Linux
        return 0.0
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:  # an old kernel, or a container that forbids it
        return 0.0
    return seconds


def run_in_fork(seconds: float) -> int | None:
    """Run this process' command in a fork of the staying process, which is started if there is none.

    Returns
    -------
    int or None
        The command's wait status; None if there can be no such process, so that the command has to run here.
    """
    if any(place in argument for argument in sys.argv for place in _OTHER_FILES):
        return None
    try:
        address = _folder() / f"{_key()}.socket"
        connection = _connect(address) or _start(address)
    except OSError:
        return None
    if connection is None:
        return None
    with connection:
        return _hand_over(connection, seconds)


def end_all() -> int:
    """End this user's staying processes after their commands; return their number."""
    ended = 0
    with suppress(OSError):
        for address in _folder().glob("*.socket"):
            if (connection := _connect(address)) is not None:
                with connection, suppress(OSError):
                    connection.settimeout(_PATIENCE)  # it may be stopped
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
        "signals": [
            [number for number in sorted(signal.valid_signals()) if signal.getsignal(number) is signal.SIG_IGN],
            sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        ],
        "machine": [
            Path("/proc/sys/kernel/random/boot_id").read_text(),
            Path("/proc/self/cgroup").read_text(),
            *(os.readlink(f"/proc/self/ns/{name}") for name in spaces),
        ],
    }


def _sources() -> list[Any]:
    """Return time and size of each file of these packages, and the times of folders that packages are installed into."""
    found: list[Any] = []
    for package in _packages():
        for folder, _, names in sorted(os.walk(package)):
            if not folder.endswith("__pycache__"):
                found += [(folder, name, *_version(Path(folder, name))) for name in sorted(names)]
    # `pip install` over the same version leaves the folder's time, but not that of the distribution's metadata.
    metadata = (info for place in _installed() for info in (place, *sorted(map(str, Path(place).glob("*.dist-info")))))
    return found + [(place, *_version(Path(place))) for place in metadata]


def _packages() -> list[str]:
    """Return the folders of these packages, of which every file counts."""
    places = {Path(place).parent for place in importlib.import_module("tvm_sched").__path__}
    return sorted(str(package) for place in places for package in place.glob("tvm_*"))


def _installed() -> list[str]:
    """Return the folders that packages are installed into."""
    return [place for place in sys.path if os.path.basename(place) in ("site-packages", "dist-packages")]


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
    with _signals() as received:
        try:
            asked = {
                "arguments": sys.argv,
                "environment": dict(os.environ),
                "folder": os.getcwd(),
                "umask": umask,
                "seconds": seconds,
            }
            socket.send_fds(connection, [b"."], [0, 1, 2])
            connection.sendall(json.dumps(asked).encode() + b"\n")
        except OSError:
            return None
        answers, passed, is_open, asked_at = b"", b"", True, time.monotonic()
        with selectors.DefaultSelector() as selector:
            selector.register(connection, selectors.EVENT_READ)
            selector.register(received, selectors.EVENT_READ)
            while is_open:
                started = answers.startswith(_STARTED)
                events = selector.select(None if started else max(0.0, asked_at + _START_PATIENCE - time.monotonic()))
                if not events:  # closed, so that the process does not start the command later
                    break
                for key, _ in events:
                    if key.fileobj is received:
                        passed += (numbers := received.recv(16))
                        with suppress(OSError):
                            connection.sendall(numbers)
                    else:
                        answers += (content := _received(connection, 64))
                        is_open = bool(content)
    if not answers.startswith(_STARTED):
        connection.close()
        for number in passed:
            signal.raise_signal(number)  # nobody else has handled it
        return None
    told = answers[len(_STARTED) :].decode()
    return int(told) if told else int(signal.SIGKILL)  # the staying process itself was ended


def _received(connection: socket.socket, most: int) -> bytes:
    """Return what the other side sent; nothing if it closed, which is an error where it left something unread."""
    try:
        return connection.recv(most)
    except OSError:
        return b""


@contextmanager
def _signals() -> Iterator[socket.socket]:
    """Give a socket with the numbers of the signals that arrive, without those that this process ignores."""
    reading, writing = socket.socketpair()
    writing.setblocking(False)
    handled = [number for number in _PASSED_ON if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, lambda *_: None) for number in handled}
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
        self.finished = False

    def finish(self) -> list[str]:
        """Tell the status of the ended fork; return the modules that it imported."""
        self.finished = True
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
    gc.set_threshold(100_000, 50, 50)
    from . import main  # the light modules that every command imports

    server = socket.socket(fileno=listening)
    file = os.stat(address).st_ino
    commands: list[_Command] = []
    most, listens = _most_commands(), True
    seconds, idle_since, ends = 60.0, time.monotonic(), False
    with selectors.DefaultSelector() as selector:
        selector.register(server, selectors.EVENT_READ)
        while commands or not ends:
            left = None if commands else max(0.0, idle_since + seconds - time.monotonic())
            if listens != (len(commands) < most):  # further callers wait until a command ends
                listens = not listens
                if listens:
                    selector.register(server, selectors.EVENT_READ)
                else:
                    selector.unregister(server)
            events = selector.select(left)
            if not events and not commands:
                break
            for key, _ in events:
                command: _Command | None = key.data
                if command is None:
                    connection, _ = server.accept()
                    asked, files, signals = _request(connection)
                    if asked.get("end"):
                        with suppress(OSError):
                            connection.sendall(b".")
                        ends = True
                    elif asked and not _has_gone(connection):
                        seconds = asked["seconds"]
                        others = [server, *(each.connection for each in commands)]
                        command = _fork(main, connection, asked, files, others)
                    if command is None:
                        connection.close()
                    else:
                        _send(command, signals)
                        commands.append(command)
                        for place in (command.end, command.connection.fileno()):
                            selector.register(place, selectors.EVENT_READ, command)
                    for each in files:
                        os.close(each)
                elif command.finished:
                    continue  # its descriptor may belong to another command by now
                elif key.fd != command.end:
                    _pass_on(command, selector)
                else:
                    commands.remove(command)
                    for place in (command.end, command.connection.fileno()):
                        with suppress(KeyError):
                            selector.unregister(place)
                    _import(command.finish())
                    idle_since = time.monotonic()
        with suppress(OSError):
            if os.stat(address).st_ino == file:
                os.unlink(address)


def _most_commands() -> int:
    """Return how many commands the limit of open files allows at once."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 1 << 16 if limit == resource.RLIM_INFINITY else max(1, (limit - _OTHER_USES) // _FILES)


def _has_gone(connection: socket.socket) -> bool:
    """Return whether the other side has closed, also if there is more to read."""
    poll = select.poll()
    poll.register(connection, select.POLLRDHUP)
    return bool(poll.poll(0))


def _pass_on(command: _Command, selector: selectors.BaseSelector) -> None:
    """Send the command the signals that its caller received; end it if its caller has ended."""
    numbers = _received(command.connection, 16)
    if not numbers:
        selector.unregister(command.connection.fileno())
    _send(command, numbers or bytes([signal.SIGKILL]))


def _send(command: _Command, numbers: bytes) -> None:
    for number in numbers:
        os.kill(command.process, number)  # until `finish` waits for it, nobody else has its number


def _request(connection: socket.socket) -> tuple[dict[str, Any], list[int], bytes]:
    """Read what is asked, the files that came with it, and signals that follow; nothing if it is not whole."""
    connection.settimeout(_PATIENCE)
    files: list[int] = []
    try:
        content, files, _, _ = socket.recv_fds(connection, 1 << 16, 3)
        while b"\n" not in content:
            more = connection.recv(1 << 16)
            if not more:
                return {}, files, b""
            content += more
        line, _, signals = content.partition(b"\n")
        asked = json.loads(line.removeprefix(b"."))
    except (OSError, ValueError):
        return {}, files, b""
    connection.settimeout(None)
    return (asked if asked.get("end") or len(files) == 3 else {}), files, signals


def _fork(
    main: Callable[[], None],
    connection: socket.socket,
    asked: dict[str, Any],
    files: list[int],
    others: list[socket.socket],
) -> _Command | None:
    """Start the command; return None if the system has no room for a further process."""
    parent = os.getpid()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON)  # a signal that comes early waits for the command
    try:
        modules = os.memfd_create("modules", 0)
        try:
            process = os.fork()
        except OSError:
            os.close(modules)
            raise
    except OSError:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return None
    if process == 0:
        end_with(parent)
        for each in (connection, *others):
            each.close()
        signal.pthread_sigmask(signal.SIG_SETMASK, {*before, signal.SIGINT})  # `interrupt.watch` waits for SIGINT
        _become(main, asked, files, modules)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    with suppress(OSError):  # the caller may have ended
        connection.sendall(_STARTED)
    return _Command(connection, process, modules)


def _become(main: Callable[[], None], asked: dict[str, Any], files: list[int], modules: int) -> NoReturn:
    """Run the command as a process of its own would, and end as it does."""
    global _is_fork
    _is_fork = True
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
    """Return the modules that this process imported from folders that `_in_common` covers.

    None if PyTorch is among them, which starts threads.
    """
    if "torch" in sys.modules:
        return []
    library = os.path.dirname(os.__file__)  # the interpreter's version stands for it
    covered = tuple(os.path.join(place, "") for place in (library, *_installed(), *_packages()))
    new = [(name, getattr(module, "__spec__", None)) for name, module in list(sys.modules.items()) if name not in known]
    return [name for name, spec in new if spec is not None and (spec.origin or "").startswith(covered)]


def _import(names: list[str]) -> None:
    """Import what a command has imported, so that the next one has it. A fork needs that no thread runs."""
    if not names:
        return
    from ..problem_sources import packages_for

    with packages_for(Path("model.onnx")):
        for name in names:
            with suppress(BaseException):  # a script may end its process at import
                importlib.import_module(name)
    from .._library import load_library
    from ..registry import entry_points

    entry_points("")  # reads and keeps those of all groups
    if "tvm" in sys.modules:
        load_library()
    gc.freeze()  # so that a fork's garbage collection does not copy it
