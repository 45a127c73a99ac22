"""Methods by name: schedulers, partitioners and allocators join, are found and get their options in the same way."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, Generic, TypeVar

import msgspec

from .errors import InputError

Function = TypeVar("Function", bound=Callable[..., Any])


class NoOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of a method that has none."""


@dataclass(frozen=True)
class Alias:
    """An old name of a method.

    Attributes
    ----------
    old, new : str
    renamed : mapping of str to str
        What the method's options were called under the old name.
    gone : tuple of str
        Options that there were under the old name; they are ignored now.
    """

    old: str
    new: str
    renamed: Mapping[str, str] = field(default_factory=dict)
    gone: tuple[str, ...] = ()

    def translate(self, what: str, given: dict[str, Any]) -> dict[str, Any]:
        """Options as the method has them today."""
        ignored = [key for key in given if key in self.gone]
        if ignored:
            _deprecate(f"{what} {self.new!r} has no option {', '.join(ignored)} any more; it is ignored")
        return {self.renamed.get(key, key): value for key, value in given.items() if key not in self.gone}


class OldNameWarning(DeprecationWarning):
    """A method or option was asked for by a name that will go."""


def _deprecate(message: str) -> None:
    """Warn of something old, at the line outside of this package that asked for it."""
    depth = 1
    while sys._getframe(depth).f_globals.get("__name__", "").startswith(__package__) and sys._getframe(depth).f_back:
        depth += 1
    warnings.warn(message, OldNameWarning, stacklevel=depth + 1)


@dataclass(frozen=True)
class Method(Generic[Function]):
    """A method as registered.

    Attributes
    ----------
    what, name : str
        "scheduler", "anytime".
    function : callable
        It takes the options last.
    options : type
        A frozen `msgspec.Struct` with defaults.
    summary : str
        First line of the function's docstring.
    answers_interrupt : bool
        On Ctrl-C it returns the best answer that it has, soon, if it has one.
    alias : Alias or None
        The old name under which it was asked for.
    """

    what: str
    name: str
    function: Function
    options: type[msgspec.Struct]
    summary: str
    answers_interrupt: bool = False
    alias: Alias | None = None

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
        if self.alias is not None:
            given = self.alias.translate(self.what, given)
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
    aliases : dict
        Old names.
    """

    what: str
    group: str
    own: tuple[str, ...] = ()
    methods: dict[str, Method[Function]] = field(default_factory=dict)
    aliases: dict[str, Alias] = field(default_factory=dict)
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

    def alias(self, old: str, new: str, renamed: Mapping[str, str] | None = None, gone: tuple[str, ...] = ()) -> None:
        """Let a method be asked for by an old name, with an `OldNameWarning`; see `Alias`."""
        self.aliases[old] = Alias(old, new, renamed or {}, gone)

    def names(self) -> list[str]:
        """Names of all methods, those of installed packages included; without old names."""
        self._load()
        return sorted(self.methods)

    def get(self, name: str) -> Method[Function]:
        """The method of that name; raises `InputError` that lists those there are."""
        self._load()
        alias = self.aliases.get(name)
        if alias is not None:
            _deprecate(f"{self.what} {name!r} is an old name of {alias.new!r} and will go in the next release")
            return replace(self.methods[alias.new], alias=alias)
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
