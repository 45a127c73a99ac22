"""Descriptions of a class's fields, from its numpydoc docstring: help of options and tables of methods' options."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import msgspec

from .registry import Method


class OptionDescription(msgspec.Struct, frozen=True):
    """An option of a method."""

    name: str
    type: str
    default: Any
    description: str


class MethodDescription(msgspec.Struct, frozen=True):
    """A registered method and its options."""

    name: str
    summary: str
    options: list[OptionDescription]

    @classmethod
    def of(cls, method: Method[Any]) -> MethodDescription:
        """Describe a method."""
        return cls(method.name, method.summary, describe_options(method.options))


def describe_options(options: type[msgspec.Struct]) -> list[OptionDescription]:
    """Describe each field of a method's options."""
    texts = parameter_texts(options)
    described = []
    for field in msgspec.structs.fields(options):
        default = field.default if field.default is not msgspec.NODEFAULT else None
        if field.default_factory is not msgspec.NODEFAULT:
            default = field.default_factory()
        kind = getattr(field.type, "__name__", str(field.type))
        if kind in ("Optional", "Union", "Literal", "list", "tuple"):
            kind = str(field.type).replace("typing.", "")
        described.append(OptionDescription(field.name, kind, default, texts.get(field.name, ("", ""))[1]))
    return described


def parameter_texts(documented: type[Any]) -> dict[str, tuple[str, str]]:
    """Return type and description of each field, from the docstrings of a class and its bases."""
    texts: dict[str, tuple[str, str]] = {}
    for base in reversed(documented.__mro__):
        for name, kind, text in _described(base.__dict__.get("__doc__") or ""):
            texts[name] = kind, text
    return texts


def _described(docstring: str) -> Iterator[tuple[str, str, str]]:
    """Yield name, type and description of each parameter; ``a, b : int`` describes both."""
    lines = inspect.cleandoc(docstring).splitlines()
    names, kind, text, inside = list[str](), "", list[str](), False
    for line, following in zip(lines, [*lines[1:], ""], strict=False):
        if line.startswith(" ") and inside:
            text.append(line.strip())
        elif line.strip() and not line.startswith("---"):
            yield from ((name, kind, " ".join(text)) for name in names)
            head, _, kind = line.partition(" : ")
            names, text = [name.strip() for name in head.split(",")] if inside else [], []
            if following.startswith("---"):
                names, inside = [], line.strip() in ("Parameters", "Attributes")
    yield from ((name, kind, " ".join(text)) for name in names)
