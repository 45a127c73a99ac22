"""Option groups: options that several commands take, said once, as the fields of a frozen dataclass.

A command takes such a dataclass as a parameter, ``model: ModelOptions``; the command line has its fields in that place. A
field is an option, or an argument, where its type is annotated as typer wants it. Any other field keeps its default: it is
for commands that take a subclass, in which the same field is an option.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from inspect import Parameter, signature
from typing import Any, get_type_hints

from typer.models import ParameterInfo


@dataclass(frozen=True)
class Parameters:
    """What a command is given on the command line.

    Attributes
    ----------
    listed : tuple of Parameter
        In the order of the function's parameters, those of a group in its place; then those of every command.
    groups : mapping of str to (type, list of str)
        The function's parameters that are groups: the group, and which of its fields are listed.
    """

    listed: tuple[Parameter, ...]
    groups: Mapping[str, tuple[type[Any], list[str]]]

    def collect(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """What the function is called with: ``values`` of the command line, those of groups as their objects."""
        own = dict(values)
        made = {
            name: group(**{field: own.pop(field) for field in listed}) for name, (group, listed) in self.groups.items()
        }
        return own | made


def parameters_of(function: Callable[..., None], common: Mapping[str, Parameter]) -> Parameters:
    """The parameters of a function ``(out, ...)`` as the command line has them, and after them those of every command.

    Raises
    ------
    TypeError
        A name occurs twice, in the function and a group or in two groups; or a group that cannot be made.
    """
    hints = get_type_hints(function, include_extras=True)
    listed: dict[str, Parameter] = {}
    owners: dict[str, str] = {}

    def add(owner: str, found: Mapping[str, Parameter]) -> list[str]:
        for name, parameter in found.items():
            if name in listed:
                raise TypeError(f"command {function.__name__}: {name!r} is in {owners[name]} and in {owner}")
            listed[name], owners[name] = parameter, owner
        return list(found)

    groups: dict[str, tuple[type[Any], list[str]]] = {}
    for parameter in list(signature(function).parameters.values())[1:]:
        name, hint = parameter.name, hints[parameter.name]
        if isinstance(hint, type) and is_dataclass(hint):
            groups[name] = hint, add(hint.__name__, group_parameters(hint))
        else:
            add("its own parameters", {name: _listed(name, hint, parameter.default)})
    add("every command", common)
    return Parameters(tuple(listed.values()), groups)


def group_parameters(group: type[Any]) -> dict[str, Parameter]:
    """The fields of a group that are options or arguments, as parameters of a command.

    Raises
    ------
    TypeError
        A field is neither an option nor has a default.
    """
    hints = get_type_hints(group, include_extras=True)
    found = {}
    for field in fields(group):
        hint = hints[field.name]
        if any(isinstance(mark, ParameterInfo) for mark in getattr(hint, "__metadata__", ())):
            found[field.name] = _listed(
                field.name, hint, Parameter.empty if field.default is MISSING else field.default
            )
        elif field.default is MISSING:
            raise TypeError(f"group {group.__name__}: {field.name!r} is no option, and has no default")
    return found


def _listed(name: str, annotation: Any, default: Any) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, annotation=annotation, default=default)
