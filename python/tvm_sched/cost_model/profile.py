"""Measurements of one machine: the file that `tvm-sched profile` writes, and the database of all that it ever measured."""

from __future__ import annotations

import os
import platform
import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from ..errors import FormatError, InputError
from ..files import convert, decode_document, encode_document, read_bytes, write_atomically
from .data import Samples
from .devices import DeviceProperties
from .features import describe
from .signature import graph_of

FORMAT, VERSION = "tvm_sched.profile", 1
ENDINGS = (".parquet", ".json")


class Machine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was measured on, and with.

    Parameters
    ----------
    processor : str
        Product name.
    cores : int
    clock_mhz : float
        As the system says when the measurement begins; 0 where it does not.
    versions : dict of str to str
        Of what makes and runs kernels.
    """

    processor: str
    cores: int
    clock_mhz: float = 0.0
    versions: dict[str, str] = {}


class Measurement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How long one kernel takes, in seconds; medians.

    Parameters
    ----------
    signature : str
        See `tvm_sched.cost_model.signature`.
    model : str
        Where it was met first.
    in_run : float
        In the run of its model, after the kernels before it: what a schedule's latency is made of. 0: not measured.
    warm, cold : float
        Alone, again and again; and with caches flushed before each time. 0: not measured.
    repeats : int
    error : float
        Half the width of the median's confidence interval (95 %), as a share of it.
    """

    signature: str
    model: str = ""
    in_run: float = 0.0
    warm: float = 0.0
    cold: float = 0.0
    repeats: int = 0
    error: float = 0.0

    def __post_init__(self) -> None:
        for name in ("in_run", "warm", "cold"):
            value = getattr(self, name)
            if not 0 <= value < float("inf"):
                raise InputError(f"{self.signature}: {name} is {value}; seconds from 0 (not measured) are allowed")

    @property
    def seconds(self) -> float:
        """In the run where that was measured, else between warm and cold."""
        alone = [value for value in (self.warm, self.cold) if value]
        return self.in_run or sum(alone) / len(alone) if self.in_run or alone else 0.0


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Measurements of one device of one machine.

    Parameters
    ----------
    machine : Machine
    device : DeviceProperties
    kernels : tuple of Measurement
        One for each signature.
    copies : tuple of (bytes, seconds)
        Of memory to memory, by size.
    latencies : dict of str to float
        Seconds of whole runs of the models that were run, operator after operator; medians.
    """

    machine: Machine
    device: DeviceProperties
    kernels: tuple[Measurement, ...] = ()
    copies: tuple[tuple[int, float], ...] = ()
    latencies: dict[str, float] = {}

    def samples(self) -> Samples:
        """What the learned model trains on; held out by model."""
        rows = [row for row in self.kernels if row.seconds > 0]
        work = describe(graph_of([row.signature for row in rows]))
        return Samples.on(self.device, work, [row.seconds for row in rows], [row.model for row in rows])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the profile as ``.parquet`` (needs pyarrow) or ``.json``."""
        if _is_parquet(path):
            _write_parquet(self, path)
        else:
            write_atomically(path, encode_document(self, FORMAT, VERSION))

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Profile:
        """Read and check a profile.

        Raises
        ------
        FormatError
            It is none, or newer than this reader.
        """
        where = os.fspath(path)
        text, kernels = _read_parquet(path) if _is_parquet(path) else (read_bytes(path), None)
        data = decode_document(text, FORMAT, VERSION, where)
        try:
            return convert({**data, "kernels": data.get("kernels", []) if kernels is None else kernels}, Profile, where)
        except InputError as error:
            raise type(error)(f"{where}: {error}" if where not in str(error) else str(error)) from None

    def differences(self) -> list[str]:
        """How this machine differs from the one that was measured: reasons not to trust the times here."""
        here, found = this_machine(), []
        if self.device.kind == "cpu" and here.processor != self.machine.processor:
            found.append(f"it was measured on {self.machine.processor!r}, this is {here.processor!r}")
        for package, version in self.machine.versions.items():
            if package in here.versions and _minor(here.versions[package]) != _minor(version):
                found.append(f"it was measured with {package} {version}, here is {here.versions[package]}")
        return found


def _minor(version: str) -> list[str]:
    return version.split(".")[:2]


def this_machine() -> Machine:
    """The machine that runs this."""
    from importlib import metadata

    versions = {}
    for package in ("apache-tvm", "onednn-cpu-gomp"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    text = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").is_file() else ""
    fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    said = {key.strip(): value.strip() for key, value in fields.items()}
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    clock = said.get("cpu MHz", "0")
    name = said.get("model name") or platform.processor() or platform.machine()
    family = said.get("cpu family", "")
    return Machine(f"{name} (family {family})" if family else name, cores, round(float(clock)), versions)


def _is_parquet(path: str | os.PathLike[str]) -> bool:
    suffix = Path(path).suffix.lower()
    if suffix not in ENDINGS:
        raise InputError(f"{os.fspath(path)}: the name of a profile ends in {' or '.join(ENDINGS)}")
    if suffix == ".parquet":
        try:
            import pyarrow  # noqa: F401
        except ImportError:
            raise InputError(
                f"{os.fspath(path)}: Parquet files need pyarrow: pip install 'tvm-sched[data]', or use a name in .json"
            ) from None
        return True
    return False


_COLUMNS = ("signature", "model", "in_run", "warm", "cold", "repeats", "error")


def _write_parquet(profile: Profile, path: str | os.PathLike[str]) -> None:
    """Kernels as columns; all else as the JSON document in the schema's metadata."""
    import pyarrow
    import pyarrow.parquet

    head = encode_document(msgspec.structs.replace(profile, kernels=()), FORMAT, VERSION)
    columns = {name: [getattr(row, name) for row in profile.kernels] for name in _COLUMNS}
    table = pyarrow.table(columns).replace_schema_metadata({FORMAT: head})
    buffer = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(table, buffer)
    write_atomically(path, buffer.getvalue().to_pybytes())


def _read_parquet(path: str | os.PathLike[str]) -> tuple[bytes, list[dict[str, Any]]]:
    import pyarrow
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.read_table(pyarrow.BufferReader(read_bytes(path)))
    except pyarrow.ArrowInvalid as error:
        raise FormatError(f"{os.fspath(path)}: not a Parquet file ({error})") from None
    head = (table.schema.metadata or {}).get(FORMAT.encode())
    if head is None:
        raise FormatError(f"{os.fspath(path)}: a Parquet file, but no profile of tvm_sched")
    return head, table.to_pylist()


class Database:
    """Every measurement of this user, so that no kernel is measured twice on one machine with the same versions.

    Parameters
    ----------
    path : path, optional
        Default: ``$TVM_SCHED_CACHE``, or ``tvm_sched`` in the user's cache directory, and there ``measurements.sqlite``.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self.path = Path(path) if path is not None else cache_directory() / "measurements.sqlite"

    def read(self, machine: Machine, device: str) -> dict[str, Measurement]:
        """Measurements by signature; empty where there are none."""
        if not self.path.is_file():
            return {}
        with closing(self._open()) as connection:
            rows = connection.execute(
                "select signature, content from measurement where machine = ? and device = ?", (_key(machine), device)
            ).fetchall()
        return {name: msgspec.json.decode(content, type=Measurement) for name, content in rows}

    def write(self, machine: Machine, device: str, measurements: Iterable[Measurement]) -> None:
        """Add measurements, in place of those of the same signature."""
        rows = [(_key(machine), device, each.signature, msgspec.json.encode(each)) for each in measurements]
        with closing(self._open()) as connection, connection:
            connection.executemany("insert or replace into measurement values (?, ?, ?, ?)", rows)

    def _open(self) -> sqlite3.Connection:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            connection = sqlite3.connect(self.path, timeout=30)
            connection.execute(
                "create table if not exists measurement "
                "(machine text, device text, signature text, content blob, primary key (machine, device, signature))"
            )
        except (OSError, sqlite3.Error) as error:
            raise InputError(
                f"{self.path}: the database of measurements cannot be used ({error}); remove the file, or name another "
                "directory with TVM_SCHED_CACHE"
            ) from None
        return connection


def _key(machine: Machine) -> str:
    versions = sorted((package, _minor(version)) for package, version in machine.versions.items())
    return msgspec.json.encode([machine.processor, machine.cores, versions]).decode()


def cache_directory() -> Path:
    """Where files lie that can be made again."""
    named = os.environ.get("TVM_SCHED_CACHE")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tvm_sched"


def merge(profiles: Sequence[Profile]) -> dict[str, Measurement]:
    """Measurements by signature; the last profile wins."""
    return {row.signature: row for profile in profiles for row in profile.kernels}
