"""Measurements of one machine, and the file that `tvm-sched profile` writes."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from tvm_sched_runtime.checks import require_not_negative, require_positive
from tvm_sched_runtime.cores import cores, processor_fields, processor_name
from tvm_sched_runtime.errors import FormatError, InputError
from tvm_sched_runtime.files import convert, decode_document, encode_document, read_bytes, write_atomically
from tvm_sched_runtime.problem import KernelResources

from .device_properties import DeviceProperties, guess_processors
from .features import KernelWork, describe
from .samples import Samples
from .signature import graph_of

FORMAT, VERSION = "tvm_sched.profile", 1
ENDINGS = (".parquet", ".json")
QUIET_LOAD = 0.1
"""Largest number of cores in use by others at which a measurement counts as undisturbed."""


class Machine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The machine of a measurement, and the versions used."""

    processor: str
    """Product name."""
    cores: int
    clock_mhz: float = 0.0
    """Clock at the start of the measurement; 0 if the system does not tell it."""
    versions: dict[str, str] = {}
    """Versions of the packages that compile and run kernels."""


class Measurement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Times of one kernel: medians, in seconds."""

    signature: str
    """See `tvm_sched.cost_model.signature`."""
    model: str = ""
    """The first model with this kernel."""
    in_run: float = 0.0
    """Time in the run of its model, after the earlier kernels, as in a schedule's latency. 0: not measured."""
    warm: float = 0.0
    cold: float = 0.0
    """Time alone, repeated, and with caches flushed before each repetition. 0: not measured."""
    repeats: int = 0
    error: float = 0.0
    """Half the width of the median's confidence interval (95 %), as a fraction of the median."""
    footprint: float = 0.0
    """Bytes of parameters that a run of its model reads, and that pass the caches between two calls."""
    direct: float = 0.0
    """Time alone, with direct host access to its parameters. 0: not measured."""
    launches: tuple[KernelResources, ...] = ()
    """Resources of the GPU kernels that it launches in turn; empty if unknown."""
    content: str = ""
    """Digest of the kernel's code, if known: other kernels for the same shapes have the same signature."""
    load: float = 0.0
    """Cores in use by other processes during the measurement."""

    def __post_init__(self) -> None:
        for name in ("in_run", "warm", "cold", "direct", "error", "footprint", "load"):
            require_not_negative(f"{self.signature}: {name}", getattr(self, name))

    @property
    def key(self) -> str:
        """Key of the measurement in the database."""
        return f"{self.signature}#{self.content}" if self.content else self.signature

    @property
    def seconds(self) -> float:
        """Time in the run if it was measured, else the mean of warm and cold."""
        alone = [value for value in (self.warm, self.cold) if value]
        return self.in_run or sum(alone) / len(alone) if self.in_run or alone else 0.0


class Pair(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Times of two kernels in parallel, each repeated with its own tensors: medians, in seconds."""

    first: str
    second: str
    """Signatures; they may be equal."""
    alone: tuple[float, float]
    """Time of each by itself, with as many threads as in the pair."""
    beside: tuple[float, float]
    """Time of each while the other runs."""
    threads: int = 0
    """CPU threads of each, on cores of its own; 0 for two streams of a GPU."""
    load: float = 0.0
    """Cores in use by other processes during the measurement; 0 if unknown."""

    def __post_init__(self) -> None:
        where = f"{self.first} beside {self.second}"
        require_not_negative(f"{where}: load", self.load)
        for value in (*self.alone, *self.beside):
            require_positive(f"{where}: a time", value)

    @property
    def together(self) -> float:
        """Seconds until both have ended if they start at once; the longer one's remainder runs alone."""
        (short, _), (long, long_alone) = sorted(zip(self.beside, self.alone, strict=True))
        return short + (1 - short / long) * long_alone


class Copies(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Times of copies on one route."""

    route: str
    """``"memory"``, ``"host to cuda:0"``, ``"cuda:0 to host"``, ``"cuda:0 to cuda:1"``."""
    at_once: int
    """Number of such copies that ran together, on other cores in memory or on other GPUs' buses, including this one."""
    times: tuple[tuple[int, float], ...]
    """Medians, by size."""

    def __post_init__(self) -> None:
        for size, seconds in self.times:
            if size < 1 or not 0 < seconds < float("inf"):
                raise InputError(f"copies {self.route}: {size} bytes in {seconds} s; both are above 0")


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Measurements of one device of one machine."""

    machine: Machine
    device: DeviceProperties
    kernels: tuple[Measurement, ...] = ()
    """One for each signature."""
    pairs: tuple[Pair, ...] = ()
    copies: tuple[Copies, ...] = ()
    latencies: dict[str, float] = {}
    """Median seconds of whole runs of models, operator after operator."""
    threads: int = 0
    """Threads of a CPU device; 0 for a GPU."""

    def __post_init__(self) -> None:
        for name, seconds in self.latencies.items():
            require_positive(f"the latency of {name}", seconds)

    def samples(self) -> Samples:
        """Return training samples for the learned model, grouped by model for cross-validation."""
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
            The file is not a profile, or newer than this reader.
        """
        where = os.fspath(path)
        text, kernels = _read_parquet(path) if _is_parquet(path) else (read_bytes(path), None)
        data = decode_document(text, FORMAT, VERSION, where)
        try:
            profile = convert(
                {**data, "kernels": data.get("kernels", []) if kernels is None else kernels}, Profile, where
            )
        except InputError as error:
            raise type(error)(f"{where}: {error}" if where not in str(error) else str(error)) from None
        if profile.device.kind != "cpu":
            return profile
        threads = guess_processors("cpu", profile.device.peak("float32"))  # older files have 1 for every CPU device
        return msgspec.structs.replace(profile, device=dataclasses.replace(profile.device, processors=threads))

    def differences(self) -> list[str]:
        """Return the differences of this machine from the measured one: reasons not to trust the times here."""
        here, changed = this_machine(), []
        if self.device.kind == "cpu" and here.processor != self.machine.processor:
            changed.append(f"it was measured on {self.machine.processor!r}, this is {here.processor!r}")
        for package, version in self.machine.versions.items():
            if package in here.versions and minor(here.versions[package]) != minor(version):
                changed.append(f"it was measured with {package} {version}, here is {here.versions[package]}")
        return changed


def describe_measured(rows: Sequence[Measurement]) -> KernelWork:
    """Return the measured kernels as operators of the learned model."""
    return describe(graph_of([row.signature for row in rows]), [row.footprint for row in rows])


def minor(version: str) -> list[str]:
    """Return the major and minor number of a version."""
    return version.split(".")[:2]


def this_machine() -> Machine:
    """Describe this machine."""
    from importlib import metadata

    versions = {}
    for package in ("apache-tvm", "onednn-cpu-tbb"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    clock = processor_fields().get("cpu MHz", "0")
    return Machine(processor_name(), cores(), round(float(clock)), versions)


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
    """Write kernels as columns; the other fields are a JSON document in the schema's metadata."""
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
