"""Registries of schedulers, partitioners, allocators, cost models and kernel libraries: registration and look-up by name."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata
from importlib.metadata import EntryPoint
from threading import RLock
from types import ModuleType
from typing import Any, Generic, TypeVar

import msgspec

from tvm_sched_runtime.checks import shown
from tvm_sched_runtime.errors import InputError, did_you_mean

LARGEST_INTEGER = 2**63 - 1
"""The largest integer of an option: the methods' C++ has 64 bits."""

Entry = TypeVar("Entry")
Function = TypeVar("Function", bound=Callable[..., Any])


class NoOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of a method that has none.

    Examples
    --------
    >>> from tvm_sched.schedulers import NoOptions, get
    >>> get("single").options is NoOptions, get("heft").options is NoOptions
    (False, True)
    """


@dataclass(frozen=True)
class Method(Generic[Function]):
    """A registered method."""

    what: str
    name: str
    """"scheduler", "anytime"."""
    function: Function
    """Function whose last argument is the options."""
    options: type[msgspec.Struct]
    """A frozen `msgspec.Struct` with defaults."""
    summary: str
    """First line of the function's docstring."""
    answers_interrupt: bool = False
    """Whether it soon returns its incumbent, if any, on Ctrl-C."""
    weighs_requests: bool = False
    """Whether it takes a workload of several requests; otherwise it is called once for each request."""

    @property
    def option_names(self) -> tuple[str, ...]:
        """Names of its options, in their order."""
        return self.options.__struct_fields__

    def read_options(self, options: Mapping[str, Any] | msgspec.Struct | None) -> msgspec.Struct:
        """Convert options, such as texts of the command line, to the method's own struct.

        Raises
        ------
        InputError
            An option is unknown, its value is not allowed, or the options are of another method.
        """
        if isinstance(options, self.options):
            return options
        if options is not None and not isinstance(options, Mapping):
            raise InputError(
                f"options of {self.what} {self.name!r} are a {type(options).__name__}; a mapping or "
                f"{self.options.__name__} is expected"
            )
        named = dict(options or {})
        for key in named:
            if key not in self.option_names:
                known = ", ".join(self.option_names) or "none"
                raise InputError(f"{self.what} {self.name!r} has no option {key!r}; it has {known}")
        try:
            chosen = msgspec.convert(named, self.options, strict=False)
        except msgspec.ValidationError as error:
            raise InputError(f"options of {self.what} {self.name!r}: {error}") from None
        for key, value in msgspec.structs.asdict(chosen).items():
            if isinstance(value, int) and abs(value) > LARGEST_INTEGER:
                raise InputError(
                    f"options of {self.what} {self.name!r}: {key} is {value}; at most {LARGEST_INTEGER} is allowed"
                )
        return chosen


@cache
def _installed(path: tuple[str, ...]) -> Any:
    """Return the entry points of all packages on a path; reading them takes 40 ms."""
    return metadata.entry_points()


def entry_points(group: str) -> Iterable[EntryPoint]:
    """Return the entry points of a group."""
    return _installed(tuple(sys.path)).select(group=group)


@dataclass
class Registry(Generic[Entry]):
    """Entries of one kind by name: built-in ones, those registered by a program, and those of installed packages."""

    what: str
    """The kind in errors: "cost model"."""
    group: str
    """Entry points of installed packages: each names an entry, or a module that registers some when it is imported."""
    own: Mapping[str, str] = field(default_factory=dict)
    """Built-in entries, written as entry points, loaded on first use."""
    entries: dict[str, Entry] = field(default_factory=dict)
    """Registered entries by name."""
    elsewhere: Mapping[str, str] = field(default_factory=dict)
    """Names in our other distributions, with the distribution, for the message if it is not installed."""
    installed_loaded: bool = False
    _loading: Any = field(default_factory=RLock, init=False, repr=False, compare=False)

    def add(self, name: str, entry: Entry) -> Entry:
        """Register an entry; the same function registered again, as by a notebook's cell, replaces the old one.

        Raises
        ------
        InputError
            The name is taken by another function.
        """
        taken = self.entries.get(name)
        if taken is not None and _origin(taken) != _origin(entry):
            raise InputError(f"{self.what} {name!r} is registered already, by {_function(taken).__module__}")
        self.entries[name] = entry
        return entry

    def names(self) -> list[str]:
        """Return the names of all entries, including those of installed packages.

        Examples
        --------
        >>> from tvm_sched.schedulers import names
        >>> {"anytime", "heft", "single"} <= set(names())
        True
        """
        self._load()
        return sorted(self.entries)

    def get(self, name: str) -> Entry:
        """Return the entry of that name; raises `InputError` that lists the known names.

        Examples
        --------
        >>> from tvm_sched.schedulers import get
        >>> get("heft").name
        'heft'
        """
        self._load()
        if not isinstance(name, str):
            raise InputError(f"the {self.what} is {shown(name)}; a name is allowed: {', '.join(sorted(self.entries))}")
        if name not in self.entries:
            hint = did_you_mean(name, self.entries)
            if name in self.elsewhere:
                hint = f" here: it is part of {self.elsewhere[name]} (pip install {self.elsewhere[name]})"
            raise InputError(f"there is no {self.what} {name!r}{hint}; there are {', '.join(sorted(self.entries))}")
        return self.entries[name]

    def _load(self) -> None:
        with self._loading:  # reentrant: a module that is loaded may read the names
            if not self.installed_loaded:
                self.installed_loaded = True
                self._load_all()

    def _load_all(self) -> None:
        for name, value in self.own.items():
            if name not in self.entries:
                self._take(EntryPoint(name, value, self.group))
        for entry in entry_points(group=self.group):
            try:
                self._take(entry)
            except Exception as error:  # a broken package must not disable the other methods
                warnings.warn(
                    f"{self.what} {entry.name!r} of entry point {entry.value!r} cannot be loaded ({error}); repair or "
                    "remove the package that brings it",
                    RuntimeWarning,
                    stacklevel=4,
                )

    def _take(self, entry: EntryPoint) -> None:
        """Load what an entry point names; a module registers its entries itself."""
        loaded = entry.load()
        if not isinstance(loaded, ModuleType) and self.entries.get(entry.name) is not loaded:
            self.add(entry.name, loaded)


@dataclass
class Methods(Registry[Method[Function]]):
    """Methods of one kind, with options: schedulers, partitioners, allocators."""

    def register(
        self,
        name: str,
        options: type[msgspec.Struct] = NoOptions,
        answers_interrupt: bool = False,
        weighs_requests: bool = False,
    ) -> Callable[[Function], Function]:
        """Decorate a function to register it as a method.

        Parameters
        ----------
        name : str
            Name on the command line and in Python.
        options : type of msgspec.Struct
            A frozen struct whose fields have defaults.
        answers_interrupt, weighs_requests : bool
            See `Method`.

        Raises
        ------
        InputError
            The name is taken by another function.

        Examples
        --------
        >>> from tvm_sched_runtime.schedule import Schedule
        >>> from tvm_sched.schedulers import register, solve
        >>> @register("all-on-gpu0")
        ... def all_on_gpu0(problem, workload, options):
        ...     return solve(problem, workload, "single", {"device": "gpu0"})
        ...
        >>> solve(problem, method="all-on-gpu0").certificate.latency_ns
        4750
        """

        def add(function: Function) -> Function:
            summary = (function.__doc__ or "").strip().split("\n")[0]
            self.add(name, Method(self.what, name, function, options, summary, answers_interrupt, weighs_requests))
            return function

        return add


def _function(entry: Any) -> Any:
    return entry.function if isinstance(entry, Method) else entry


def _origin(entry: Any) -> str | None:
    """Return the identity of a function across reloads (module and name); None for other objects."""
    return getattr(_function(entry), "__qualname__", None)
