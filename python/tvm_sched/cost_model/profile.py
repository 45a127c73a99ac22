"""Measurements of one machine, and the file that `tvm-sched profile` writes."""

from __future__ import annotations

import dataclasses
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from ..cores import cores
from ..errors import FormatError, InputError
from ..files import convert, decode_document, encode_document, read_bytes, write_atomically
from ..problem import KernelResources
from .data import Samples
from .device_properties import DeviceProperties, guess_processors
from .features import Workload, describe
from .signature import graph_of

FORMAT, VERSION = "tvm_sched.profile", 1
ENDINGS = (".parquet", ".json")
QUIET_LOAD = 0.1
"""Up to this many cores in use by others, what is measured counts as undisturbed."""


class Machine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The machine of a measurement, and the versions used.

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
    footprint : float
        Bytes of parameters that a run of its model reads: what else passes the caches between two calls in the run.
    direct : float
        Alone, with its parameters read from host memory while it runs. 0: not measured.
    launches : tuple of KernelResources
        Of the GPU's kernels that it launches, one after another; empty where they are not known.
    content : str
        Digest of what computes it, where that is known: other kernels for the same shapes have the same signature.
    load : float
        Cores that other processes used meanwhile.
    """

    signature: str
    model: str = ""
    in_run: float = 0.0
    warm: float = 0.0
    cold: float = 0.0
    repeats: int = 0
    error: float = 0.0
    footprint: float = 0.0
    direct: float = 0.0
    launches: tuple[KernelResources, ...] = ()
    content: str = ""
    load: float = 0.0

    def __post_init__(self) -> None:
        for name in ("in_run", "warm", "cold", "direct"):
            value = getattr(self, name)
            if not 0 <= value < float("inf"):
                raise InputError(f"{self.signature}: {name} is {value}; seconds from 0 (not measured) are allowed")
        for name in ("error", "footprint", "load"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise InputError(f"{self.signature}: {name} is {getattr(self, name)}; 0 or more is allowed")

    @property
    def key(self) -> str:
        """Key of the measurement in the database."""
        return f"{self.signature}#{self.content}" if self.content else self.signature

    @property
    def seconds(self) -> float:
        """In the run where that was measured, else between warm and cold."""
        alone = [value for value in (self.warm, self.cold) if value]
        return self.in_run or sum(alone) / len(alone) if self.in_run or alone else 0.0


class Pair(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Two kernels measured in parallel, each again and again with its own tensors, in seconds; medians.

    Parameters
    ----------
    first, second : str
        Signatures; they may be equal.
    alone : (float, float)
        Of each by itself, with as many threads as it has in the pair.
    beside : (float, float)
        Of each while the other runs all the time.
    threads : int
        Of each on a CPU, each on cores of its own; 0 for two streams of a GPU.
    load : float
        Cores that other processes used meanwhile; 0 where nobody looked.
    """

    first: str
    second: str
    alone: tuple[float, float]
    beside: tuple[float, float]
    threads: int = 0
    load: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.load < float("inf"):
            raise InputError(f"{self.first} beside {self.second}: load is {self.load}; 0 or more cores are allowed")
        for value in (*self.alone, *self.beside):
            if not 0 < value < float("inf"):
                raise InputError(
                    f"{self.first} beside {self.second}: {value} is not a time; seconds above 0 are allowed"
                )

    @property
    def together(self) -> float:
        """Seconds until both have ended that start at once: what is left when the shorter has ended runs alone."""
        (short, _), (long, long_alone) = sorted(zip(self.beside, self.alone, strict=True))
        return short + (1 - short / long) * long_alone


class Copies(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How long copies take on one way.

    Parameters
    ----------
    route : str
        ``"memory"``, ``"host to cuda:0"``, ``"cuda:0 to host"``, ``"cuda:0 to cuda:1"``.
    at_once : int
        How many such copies ran together, this one among them: other cores' in memory, other GPUs' on their buses.
    times : tuple of (bytes, seconds)
        Medians, by size.
    """

    route: str
    at_once: int
    times: tuple[tuple[int, float], ...]

    def __post_init__(self) -> None:
        for size, seconds in self.times:
            if size < 1 or not 0 < seconds < float("inf"):
                raise InputError(f"copies {self.route}: {size} bytes in {seconds} s; both are above 0")


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Measurements of one device of one machine.

    Parameters
    ----------
    machine : Machine
    device : DeviceProperties
    kernels : tuple of Measurement
        One for each signature.
    pairs : tuple of Pair
    copies : tuple of Copies
    latencies : dict of str to float
        Seconds of whole runs of the models that were run, operator after operator; medians.
    threads : int
        Of a CPU device; 0 of a GPU.
    """

    machine: Machine
    device: DeviceProperties
    kernels: tuple[Measurement, ...] = ()
    pairs: tuple[Pair, ...] = ()
    copies: tuple[Copies, ...] = ()
    latencies: dict[str, float] = {}
    threads: int = 0

    def __post_init__(self) -> None:
        for name, seconds in self.latencies.items():
            if not 0 < seconds < float("inf"):
                raise InputError(f"the latency of {name} is {seconds} s; above 0 and finite is allowed")

    def samples(self) -> Samples:
        """Training samples for the learned model; held out by model."""
        rows = [row for row in self.kernels if row.seconds > 0]
        work = describe_measured(rows)
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
            found = convert(
                {**data, "kernels": data.get("kernels", []) if kernels is None else kernels}, Profile, where
            )
        except InputError as error:
            raise type(error)(f"{where}: {error}" if where not in str(error) else str(error)) from None
        if found.device.kind != "cpu":
            return found
        threads = guess_processors("cpu", found.device.peak("float32"))  # older files say 1 of every CPU device
        return msgspec.structs.replace(found, device=dataclasses.replace(found.device, processors=threads))

    def differences(self) -> list[str]:
        """How this machine differs from the one that was measured: reasons not to trust the times here."""
        here, found = this_machine(), []
        if self.device.kind == "cpu" and here.processor != self.machine.processor:
            found.append(f"it was measured on {self.machine.processor!r}, this is {here.processor!r}")
        for package, version in self.machine.versions.items():
            if package in here.versions and minor(here.versions[package]) != minor(version):
                found.append(f"it was measured with {package} {version}, here is {here.versions[package]}")
        return found


def describe_measured(rows: Sequence[Measurement]) -> Workload:
    """The measured device as the learned model sees it."""
    return describe(graph_of([row.signature for row in rows]), [row.footprint for row in rows])


def minor(version: str) -> list[str]:
    """Major and minor number of a version."""
    return version.split(".")[:2]


def this_machine() -> Machine:
    """The machine that runs this."""
    from importlib import metadata

    versions = {}
    for package in ("apache-tvm", "onednn-cpu-tbb"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    text = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").is_file() else ""
    fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    fields_by_name = {key.strip(): value.strip() for key, value in fields.items()}
    clock = fields_by_name.get("cpu MHz", "0")
    name = fields_by_name.get("model name") or platform.processor() or platform.machine()
    family = fields_by_name.get("cpu family", "")
    return Machine(f"{name} (family {family})" if family else name, cores(), round(float(clock)), versions)


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


_COLUMNS = Measurement.__struct_fields__


def _write_parquet(profile: Profile, path: str | os.PathLike[str]) -> None:
    """Kernels as columns; all else as the JSON document in the schema's metadata."""
    import pyarrow
    import pyarrow.parquet

    head = encode_document(msgspec.structs.replace(profile, kernels=()), FORMAT, VERSION)
    columns = {name: [msgspec.to_builtins(getattr(row, name)) for row in profile.kernels] for name in _COLUMNS}
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
