"""Suites of instances: families in a TOML file (``docs/formats/benchmark.md``)."""

from __future__ import annotations

import fnmatch
import hashlib
import inspect
import itertools
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from tvm_sched_runtime.errors import FormatError, InputError, did_you_mean
from tvm_sched_runtime.files import read_bytes
from tvm_sched_runtime.toml_files import parse_toml

from .instance_sources import SOURCES
from .kinds import KINDS, Kind, Proof
from .task_files import estee_graphs

FORMAT, VERSION = "tvm_sched.suite", 1
FILE = "suite.toml"


class Family(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Instances that one source makes."""

    name: str
    kind: str
    source: str
    """The kind is one of `kinds.KINDS`, the source one of `sources.SOURCES`."""
    grid: dict[str, list[Any]] = {}
    """Arguments of the source; each combination of their values is an instance."""
    files: dict[str, str] = {}
    """Files beside the suite with their SHA-256, for sources that read one: each with each combination is an instance.
    """
    options: dict[str, Any] = {}
    """Arguments that all have in common."""
    licence: str = ""
    origin: str = ""
    """Licence and origin of the files, for readers."""


class _Document(msgspec.Struct, forbid_unknown_fields=True):
    family: list[Family]


@dataclass(frozen=True)
class Case:
    """An instance: its name, its kind, and how it is made.

    Examples
    --------
    >>> case.name, case.kind.name, case.source
    ('small/fork', 'latency', 'problem')
    """

    name: str
    kind: Kind[Any]
    source: str
    arguments: dict[str, Any]
    sha256: str = ""

    @cached_property
    def task(self) -> Any:
        """The instance as methods take it; raises `InputError` if it cannot be made here or a file has changed."""
        path = self.arguments.get("path")
        if path is not None and _sha256(path) != self.sha256:
            raise FormatError(
                f"instance {self.name!r}: {path} is not the file that the suite names; its SHA-256 differs"
            )
        source = SOURCES.get(self.source)
        try:
            inspect.signature(source).bind(**self.arguments)
        except TypeError as error:
            raise InputError(f"instance {self.name!r}: source {self.source!r}: {error}") from None
        try:
            return source(**self.arguments)
        except ImportError as error:
            raise InputError(f"instance {self.name!r} needs a package that is not installed: {error}") from None

    @cached_property
    def digest(self) -> str:
        """Names the instance by its content."""
        return self.kind.digest(self.task)

    @cached_property
    def proof(self) -> Proof:
        """The package's bound."""
        return self.kind.proof(self.task)


@dataclass(frozen=True)
class Suite:
    """All instances, in the order of the file.

    Examples
    --------
    >>> [chosen.name for chosen in suite.chosen(["small/*"])]
    ['small/fork']
    """

    folder: Path
    cases: Sequence[Case]
    families: Sequence[Family] = field(default=(), repr=False)

    def chosen(self, patterns: Sequence[str] = ()) -> list[Case]:
        """Return the instances whose names match one of the patterns, such as ``hios/*``; without patterns, all.

        Raises
        ------
        InputError
            A pattern matches none.
        """
        names = [case.name for case in self.cases]
        for pattern in patterns:
            if not fnmatch.filter(names, pattern):
                raise InputError(f"no instance is called {pattern!r}{did_you_mean(pattern, names)}; see `bench list`")
        return [case for case in self.cases if not patterns or any(fnmatch.fnmatch(case.name, p) for p in patterns)]

    def case(self, name: str) -> Case | None:
        """Return the instance of that name; None if there is none."""
        return next((case for case in self.cases if case.name == name), None)


def load_suite(path: str | os.PathLike[str]) -> Suite:
    """Read a suite: a TOML file, a folder with one that is called ``suite.toml``, or a folder of task graphs of others.

    Raises
    ------
    FormatError, InputError
        It cannot be read, names an unknown kind or source, or the same instance twice.

    Examples
    --------
    >>> [loaded.name for loaded in load_suite("suite.toml").cases]
    ['small/fork']
    """
    file = Path(path) / FILE if Path(path).is_dir() else Path(path)
    if Path(path).is_dir() and not file.exists():
        families = list(_found(Path(path)))
    else:
        families = parse_toml(read_bytes(file), FORMAT, VERSION, _Document, os.fspath(file)).family
    cases = [case for family in families for case in _cases(family, file)]
    names = [case.name for case in cases]
    if twice := {name for name in names if names.count(name) > 1}:
        raise FormatError(f"{file}: instance {min(twice)!r} is there twice")
    return Suite(file.parent, cases, families)


_ENDINGS = {".dot": "auckland", ".dag": "unrelated", ".zip": "estee"}
"""Sources of the files that are read without a ``suite.toml``."""


def _found(folder: Path) -> Iterator[Family]:
    """Return a family for each folder with task graphs of others, and for each data frame of several graphs."""
    files: dict[tuple[str, str], dict[str, str]] = {}
    for file in sorted(folder.rglob("*")):
        if file.is_file() and (source := _ENDINGS.get(file.suffix)):
            group = (source, str(file) if source == "estee" else str(file.parent))
            files.setdefault(group, {})[file.relative_to(folder).as_posix()] = _sha256(file)
    if not files:
        raise InputError(
            f"{folder} has neither {FILE} nor files of task graphs ({', '.join(_ENDINGS)}); unpack archives first"
        )
    for (source, place), paths in files.items():
        grid = {"graph": list(range(estee_graphs(place)))} if source == "estee" else {}
        options = {"one_at_a_time": True} if source == "estee" else {}
        name = (Path(place).parent if source == "estee" else Path(place)).resolve().name
        yield Family(name=name, kind="latency", source=source, files=paths, grid=grid, options=options)


def _cases(family: Family, file: Path) -> Iterator[Case]:
    try:
        SOURCES.get(family.source)
    except InputError as error:
        raise FormatError(f"{file}: family {family.name!r}: {error}") from None
    for values in itertools.product(*family.grid.values()):
        for path, digest in family.files.items() or [("", "")]:
            arguments = {**family.options, **dict(zip(family.grid, values, strict=True))}
            parts = [Path(path.removesuffix(".gz")).stem] * bool(path) + [
                _word(k, v) for k, v in zip(family.grid, values, strict=True)
            ]
            if path:
                arguments["path"] = file.parent / path
            name = f"{family.name}/{'-'.join(parts)}"
            yield Case(name, KINDS.get(family.kind), family.source, arguments, digest)


def _sha256(path: Path) -> str:
    """Return the SHA-256 of a file."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise FormatError(f"{path}: cannot be read ({error.strerror or error})") from None


def _word(key: str, value: Any) -> str:
    """Return an argument as part of a name.

    Texts and sizes are unchanged, a number has the first letter of its key, a switch is its key.
    """
    if isinstance(value, bool):
        return key if value else f"not_{key}"
    return f"{key[0]}{value}" if isinstance(value, (int, float)) else str(value).replace(" ", "_")
