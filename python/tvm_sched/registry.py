"""Methods by name: schedulers, partitioners and allocators join, are found and get their options in the same way."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, Generic, TypeVar

import msgspec

from .errors import InputError

Function = TypeVar("Function", bound=Callable[..., Any])


class NoOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of a method that has none."""


@dataclass(frozen=True)
class Method(Generic[Function]):
    """A method as registered.

    Attributes
    ----------
    what, name : str
        "scheduler", "exact".
    function : callable
        It takes the options last.
    options : type
        A frozen `msgspec.Struct` with defaults.
    summary : str
        First line of the function's docstring.
    answers_interrupt : bool
        On Ctrl-C it returns the best answer that it has, soon, if it has one.
    """

    what: str
    name: str
    function: Function
    options: type[msgspec.Struct]
    summary: str
    answers_interrupt: bool = False

    def read_options(self, options: Mapping[str, Any] | msgspec.Struct | None) -> msgspec.Struct:
        """Options as a struct of this method's; texts of the command line are converted.

        Raises
        ------
        InputError
            There is no such option, or it does not allow the value.
        """
        if isinstance(options, self.options):
            return options
        given = dict(options) if isinstance(options, Mapping) else {}
        known = [each.name for each in msgspec.structs.fields(self.options)]
        for key in given:
            if key not in known:
                raise InputError(
                    f"{self.what} {self.name!r} has no option {key!r}; it has {', '.join(known) or 'none'}"
                )
        try:
            return msgspec.convert(given, self.options, strict=False)
        except msgspec.ValidationError as error:
            raise InputError(f"options of {self.what} {self.name!r}: {error}") from None


@dataclass
class Registry(Generic[Function]):
    """The methods of one kind.

    Attributes
    ----------
    what : str
        The kind in errors: "scheduler".
    group : str
        Entry points that name modules of installed packages which register more of them.
    own : tuple of str
        Modules of ours that register some when they are imported, which is done when a method is first asked for.
    methods : dict
        Those registered so far, by name.
    """

    what: str
    group: str
    own: tuple[str, ...] = ()
    methods: dict[str, Method[Function]] = field(default_factory=dict)
    _loaded: bool = False

    def register(
        self, name: str, options: type[msgspec.Struct] = NoOptions, answers_interrupt: bool = False
    ) -> Callable[[Function], Function]:
        """Decorator that makes a function a method.

        Parameters
        ----------
        name : str
            How it is called on the command line and in Python.
        options : type of msgspec.Struct
            Frozen, every field with a default.
        answers_interrupt : bool
            See `Method`.

        Raises
        ------
        InputError
            The name is taken by another function.
        """

        def add(function: Function) -> Function:
            taken = self.methods.get(name)
            if taken is not None and taken.function.__qualname__ != function.__qualname__:
                raise InputError(f"{self.what} {name!r} is registered already, by {taken.function.__module__}")
            summary = (function.__doc__ or "").strip().split("\n")[0]
            self.methods[name] = Method(self.what, name, function, options, summary, answers_interrupt)
            return function

        return add

    def names(self) -> list[str]:
        """Names of all methods, those of installed packages included."""
        self._load()
        return sorted(self.methods)

    def get(self, name: str) -> Method[Function]:
        """The method of that name; raises `InputError` that lists those there are."""
        self._load()
        if name not in self.methods:
            raise InputError(f"there is no {self.what} {name!r}; there are {', '.join(sorted(self.methods))}")
        return self.methods[name]

    def _load(self) -> None:
        if self._loaded:
            return
        self._loaded = True
        for module in self.own:
            import_module(module)
        for entry in entry_points(group=self.group):
            try:
                entry.load()
            except Exception as error:  # somebody else's package must not stop the methods that work
                warnings.warn(
                    f"{self.what} {entry.name!r} of entry point {entry.value!r} cannot be loaded ({error}); repair or "
                    "remove the package that brings it",
                    RuntimeWarning,
                    stacklevel=3,
                )
