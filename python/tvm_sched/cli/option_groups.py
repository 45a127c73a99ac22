"""Option groups: several options of a command that its function takes as one object.

A group is a frozen dataclass whose fields are annotated with `typer.Option` or `typer.Argument`; any other field keeps its
default. Or it is a set of fields of a class of the API, `FromApi`, with the types, defaults and descriptions of the class;
the function gets a dictionary of the values that differ from the default. Or it is `Attached`: the groups of installed
packages, by their names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from functools import partial
from importlib import import_module
from inspect import Parameter, signature
from typing import Annotated, Any, get_type_hints

import typer
from typer.models import ParameterInfo

from tvm_sched_runtime.errors import InputError

from ..docstrings import parameter_texts
from ..registry import Registry

_METAVARS = {int: "N", float: "X", str: "NAME"}


@dataclass(frozen=True)
class FromApi:
    """Fields of a dataclass or `msgspec.Struct` of the API as options."""

    where: str
    """The class, as ``"tvm_sched.relax.options:CompileOptions"``. It is imported when the command runs."""
    names: tuple[str, ...]
    """Its fields, in the order of the options."""
    own: Mapping[str, Any] = field(default_factory=dict)
    """Options for fields that need another name, or a text that is not the value itself."""
    read: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)
    """Function from the option's value to the value of such a field."""
    makes: bool = False
    """Whether the function gets an object of the class instead of a dictionary."""

    @property
    def _source(self) -> type[Any]:
        module, _, name = self.where.partition(":")
        return getattr(import_module(module), name)

    def parameters(self) -> dict[str, Parameter]:
        """Return the options by the names of their fields."""
        source = self._source
        hints, texts = get_type_hints(source), parameter_texts(source)
        defaults = {each.name: each.default for each in _fields(source)}
        return {
            name: _listed(name, self.own[name], None)
            if name in self.own
            else _listed(name, Annotated[hints[name], _option(name, hints[name], texts)], defaults[name])
            for name in self.names
        }

    def collect(self, offered: Mapping[str, Parameter], /, **values: Any) -> Any:
        """Return the fields whose options differ from the default, or an object with them."""
        changed = {name: value for name, value in values.items() if value != offered[name].default}
        values = {name: self.read[name](value) if name in self.read else value for name, value in changed.items()}
        return self._source(**values) if self.makes else values


@dataclass(frozen=True)
class Attached:
    """The groups of options that installed packages register; the function gets an object of each by its name."""

    registry: Registry[Any]

    @property
    def where(self) -> str:
        """Name of the groups, for messages."""
        return self.registry.group

    def parameters(self) -> dict[str, Parameter]:
        """Return the options of all groups, and a hidden flag for each group whose package is not installed."""
        names = self.registry.names()
        offered = {key: each for name in names for key, each in group_parameters(self.registry.get(name)).items()}
        missing = {
            name: typer.Option(f"--{name}", hidden=True) for name in self.registry.elsewhere if name not in names
        }
        return offered | {name: _listed(name, Annotated[bool, flag], False) for name, flag in missing.items()}

    def collect(self, offered: Mapping[str, Parameter], /, **values: Any) -> dict[str, Any]:
        """Return an object of each group."""
        names = self.registry.names()
        for name, brings in self.registry.elsewhere.items():
            if name not in names and values[name]:
                raise InputError(f"--{name} is part of {brings}, which is not installed: pip install {brings}")
        groups = {name: self.registry.get(name) for name in names}
        return {name: group(**{key: values[key] for key in group_parameters(group)}) for name, group in groups.items()}


def _fields(source: type[Any]) -> Any:
    if is_dataclass(source):
        return fields(source)
    import msgspec

    return msgspec.structs.fields(source)


def _option(name: str, hint: Any, texts: Mapping[str, tuple[str, str]]) -> Any:
    """Return an option with the field's description: its first sentence and those that begin with ``Default``."""
    kind, text = texts.get(name, ("", ""))
    flag = f"--{name.replace('_', '-')}"
    sentences = re.sub(r" \(`tvm_sched[^)]*\)", "", text.replace("``", "`")).split(". ")
    shown = ". ".join(s for n, s in enumerate(sentences) if n == 0 or s.startswith("Default")).rstrip(".") + "."
    if bool in (hint, *getattr(hint, "__args__", ())):
        return typer.Option(f"{flag}/--no-{flag[2:]}", help=shown)
    choices = [choice.strip(" \"'") for choice in kind.partition("{")[2].partition("}")[0].split(",")]
    plain = next((each for each in getattr(hint, "__args__", (hint,)) if each in _METAVARS), str)
    return typer.Option(flag, metavar="|".join(choices) if choices != [""] else _METAVARS[plain], help=shown)


@dataclass(frozen=True)
class Parameters:
    """The parameters of a command: the options that typer parses, and the groups of them."""

    listed: tuple[Parameter, ...]
    """Options and arguments in the order of the function's parameters, a group replaced by its fields; the parameters
    common to all commands come last."""
    groups: Mapping[str, tuple[Callable[..., Any], list[str]]]
    """For each parameter that is a group: the function that makes it, and the names of its fields in ``listed``."""

    def collect(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the function's keyword arguments: the parsed ``values``, those of a group as one object."""
        own = dict(values)
        grouped = {
            name: group(**{field: own.pop(field) for field in listed}) for name, (group, listed) in self.groups.items()
        }
        return own | grouped


def parameters_of(function: Callable[..., None], common: Mapping[str, Parameter]) -> Parameters:
    """Return the command-line parameters of a function ``(out, ...)``, followed by those of all commands.

    Raises
    ------
    TypeError
        A name occurs twice (among the function's own parameters, the groups and ``common``), or a field of a group is
        neither an option nor has a default.
    """
    hints = get_type_hints(function, include_extras=True)
    listed: dict[str, Parameter] = {}
    owners: dict[str, str] = {}

    def add(owner: str, added: Mapping[str, Parameter]) -> list[str]:
        for name, parameter in added.items():
            if name in listed:
                raise TypeError(f"command {function.__name__}: {name!r} is in {owners[name]} and in {owner}")
            listed[name], owners[name] = parameter, owner
        return list(added)

    groups: dict[str, tuple[Callable[..., Any], list[str]]] = {}
    for parameter in list(signature(function).parameters.values())[1:]:
        name, hint = parameter.name, hints[parameter.name]
        api = next((mark for mark in getattr(hint, "__metadata__", ()) if isinstance(mark, FromApi | Attached)), None)
        if api is not None:
            offered = api.parameters()
            groups[name] = partial(api.collect, offered), add(api.where.rpartition(":")[2], offered)
        elif isinstance(hint, type) and is_dataclass(hint):
            groups[name] = hint, add(hint.__name__, group_parameters(hint))
        else:
            add("its own parameters", {name: _listed(name, hint, parameter.default)})
    add("every command", common)
    return Parameters(tuple(listed.values()), groups)


def group_parameters(group: type[Any]) -> dict[str, Parameter]:
    """Return the fields of a group that are options or arguments as parameters of a command.

    Raises
    ------
    TypeError
        A field is neither an option nor has a default.
    """
    hints = get_type_hints(group, include_extras=True)
    parameters = {}
    for each in fields(group):
        hint = hints[each.name]
        if any(isinstance(mark, ParameterInfo) for mark in getattr(hint, "__metadata__", ())):
            parameters[each.name] = _listed(
                each.name, hint, Parameter.empty if each.default is MISSING else each.default
            )
        elif each.default is MISSING:
            raise TypeError(f"group {group.__name__}: {each.name!r} is not an option and has no default")
    return parameters


def _listed(name: str, annotation: Any, default: Any) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, annotation=annotation, default=default)
