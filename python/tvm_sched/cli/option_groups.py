"""Option groups: options shared by several commands, each defined once as a field of a frozen dataclass.

A command function takes such a dataclass as one parameter, e.g. ``model: ModelOptions``; on the command line this parameter
stands for the fields of the dataclass. A field whose type is annotated with `typer.Option` or `typer.Argument` becomes an
option or argument. Any other field is not on the command line and keeps its default; a subclass can annotate it, so that
commands that take the subclass offer it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from inspect import Parameter, signature
from typing import Any, get_type_hints

from typer.models import ParameterInfo


@dataclass(frozen=True)
class Parameters:
    """The parameters of a command: what typer parses, and how the groups are rebuilt from it.

    Attributes
    ----------
    listed : tuple of Parameter
        Options and arguments in the order of the function's parameters, a group replaced by its fields; the parameters
        common to all commands come last.
    groups : mapping of str to (type, list of str)
        For each parameter of the function that is a group: the dataclass, and the names of its fields in ``listed``.
    """

    listed: tuple[Parameter, ...]
    groups: Mapping[str, tuple[type[Any], list[str]]]

    def collect(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Keyword arguments for the function: the parsed ``values``, with those of each group collected in its object."""
        own = dict(values)
        made = {
            name: group(**{field: own.pop(field) for field in listed}) for name, (group, listed) in self.groups.items()
        }
        return own | made


def parameters_of(function: Callable[..., None], common: Mapping[str, Parameter]) -> Parameters:
    """The command-line parameters of a function ``(out, ...)``, followed by those common to all commands.

    Raises
    ------
    TypeError
        A name occurs twice (among the function's own parameters, the groups and ``common``), or a field of a group is
        neither an option nor has a default.
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
            raise TypeError(f"group {group.__name__}: {field.name!r} is not an option and has no default")
    return found


def _listed(name: str, annotation: Any, default: Any) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, annotation=annotation, default=default)
