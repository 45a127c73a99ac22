"""Read inputs of an artifact from files, and write its outputs to files."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import add, floordiv, mod, mul, sub
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InputError
from ..files import write_atomically
from .tensors import random_value

Array = np.ndarray[Any, Any]
_UNREADABLE = (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError)
"""Errors of numpy for unreadable files; the last is for a compression that `zipfile` does not know."""


def read_inputs(texts: Iterable[str]) -> dict[str, Array]:
    """Read the arrays of ``NAME=FILE.npy`` texts, and all arrays of ``FILE.npz`` texts, by name.

    Raises
    ------
    InputError
        A text has neither form, a file cannot be read, or a name occurs twice.
    """
    arrays: dict[str, Array] = {}
    for text in texts:
        for name, array in _read_input(text).items():
            if name in arrays:
                raise InputError(f"--input {text}: input {name!r} has a value already")
            arrays[name] = array
    return arrays


def _read_input(text: str) -> dict[str, Array]:
    name, file = split_value(text)
    if name and file:
        return {name: read_array(f"--input {text}", Path(file))}
    if "=" in text or Path(text).suffix != ".npz":
        raise InputError(f"--input {text}: expected NAME=FILE.npy or FILE.npz")
    try:
        archive = np.load(text, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise InputError(f"--input {text}: it holds one array without a name; give NAME={text}")
        with archive:
            return dict(archive)
    except _UNREADABLE as error:
        raise InputError(f"--input {text}: cannot be read as NumPy arrays ({error})") from None


def split_value(text: str) -> tuple[str, str]:
    """Return name and value of ``NAME=VALUE``, where the name, or the name of a file, may hold ``=``; empty without one."""
    places = [place for place, letter in enumerate(text) if letter == "="]
    if not places:
        return "", ""
    value_is_file = text.endswith((".npy", ".npz"))
    files = [place for place in places if value_is_file and Path(text[place + 1 :]).is_file()]
    place = files[0] if files else places[0] if value_is_file else places[-1]
    return text[:place], text[place + 1 :]


def read_array(what: str, file: Path) -> Any:
    """Read the array of a ``.npy`` file; ``what`` begins the message if it cannot be read."""
    try:
        array = np.load(file, allow_pickle=False)
    except _UNREADABLE as error:
        raise InputError(f"{what}: {file} cannot be read as a NumPy array ({error})") from None
    if not isinstance(array, np.ndarray):
        raise InputError(f"{what}: {file} holds several arrays; a .npy file with one is expected")
    return array


def choose_inputs(
    plans: Sequence[dict[str, Any]],
    inputs: Mapping[str, Array],
    seed: int,
    template: Mapping[str, Any] | None = None,
    shapes: Mapping[str, Any] | None = None,
) -> list[Array]:
    """Complete the user's inputs with random ones, for the first plan that takes them, else for the template.

    Parameters
    ----------
    plans : sequence of dict
        As `ScheduledModule.plans`.
    inputs : mapping of str to numpy.ndarray
        Values of inputs by name.
    seed : int
        Of the random values.
    template : mapping, optional
        As `ScheduledModule.template`. Open dimensions that neither an input nor a shape gives have the first plan's sizes.
    shapes : mapping, optional
        Shapes of inputs and sizes of the template's symbols, by name.

    Raises
    ------
    InputError
        A name that no plan knows, or shapes or dtypes that no plan takes.
    """
    given = {name: tuple(value.shape) for name, value in inputs.items()}
    given |= {name: value for name, value in (shapes or {}).items() if isinstance(value, tuple)}
    sizes = {name: value for name, value in (shapes or {}).items() if not isinstance(value, tuple)}
    documents = [*plans, *([template] if template else ())]
    names = list(dict.fromkeys(argument["name"] for each in documents for argument in each["arguments"]))
    symbols = [symbol["name"] for symbol in template["symbols"]] if template else []
    for option, wanted, known in (("input", inputs, names), ("shape", given, names), ("shape", sizes, symbols)):
        for name in wanted:
            if name not in known:
                what = "open dimension" if known is symbols else "input"
                raise InputError(
                    f"--{option} {name}: the artifact has no such {what}; it has {', '.join(known) or 'none'}"
                )
    rng = np.random.default_rng(seed)

    def values(arguments: Sequence[Mapping[str, Any]]) -> list[Array]:
        return [inputs[each["name"]] if each["name"] in inputs else random_value(rng, each) for each in arguments]

    for plan in plans:
        if all(_takes(argument, inputs, given) for argument in plan["arguments"]):
            own = _sizes(template, {argument["name"]: argument["shape"] for argument in plan["arguments"]})
            if all(own.get(name) == size for name, size in sizes.items()):
                return values(plan["arguments"])
    if template is not None:
        first = {argument["name"]: argument["shape"] for plan in plans[:1] for argument in plan["arguments"]}
        bound = _sizes(template, first) | _sizes(template, given) | sizes
        return values(
            [
                {**each, "shape": given.get(each["name"]) or [max(0, _extent(size, bound)) for size in each["shape"]]}
                for each in template["arguments"]
            ]
        )
    described = ", ".join(
        f"{name}: {list(shape)}{f' {inputs[name].dtype}' if name in inputs else ''}" for name, shape in given.items()
    )
    allowed = "; or ".join(
        ", ".join(f"{a['name']}: {list(a['shape'])} {a['dtype']}" for a in plan["arguments"]) for plan in plans
    )
    raise InputError(f"the artifact takes no inputs {described}; allowed are {allowed}")


def _takes(argument: Mapping[str, Any], inputs: Mapping[str, Array], shapes: Mapping[str, Sequence[int]]) -> bool:
    name = argument["name"]
    fits = name not in inputs or inputs[name].dtype.name == argument["dtype"]
    return fits and list(shapes.get(name, argument["shape"])) == list(argument["shape"])


def _sizes(template: Mapping[str, Any] | None, shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """Return the sizes of a template's symbols for inputs of these shapes."""
    return {
        extent: int(size)
        for argument in (template["arguments"] if template else ())
        for extent, size in zip(argument["shape"], shapes.get(argument["name"], ()), strict=False)
        if isinstance(extent, str)
    }


_OPERATORS: dict[str, Callable[[int, int], int]] = {
    "+": add,
    "-": sub,
    "*": mul,
    "//": floordiv,
    "%": mod,
    "min": min,
    "max": max,
}


def _extent(expression: Any, sizes: Mapping[str, int]) -> int:
    """Return the value of a size expression (``docs/formats/plan.md``); a division by 0 counts as 0."""
    if isinstance(expression, int):
        return expression
    if isinstance(expression, str):
        return sizes[expression]
    operator, left, right = expression[0], *(_extent(each, sizes) for each in expression[1:])
    return 0 if operator in ("//", "%") and right == 0 else _OPERATORS[operator](left, right)


def save_outputs(directory: Path, outputs: Sequence[Array]) -> None:
    """Write ``output_0.npy``, ... into a folder, which is created if needed.

    Raises
    ------
    InputError
        The folder cannot be created or written.
    """
    try:
        directory.mkdir(exist_ok=True)
    except OSError as error:
        raise InputError(f"--output {directory}: cannot be created ({error.strerror or error})") from None
    for n, value in enumerate(outputs):
        content = io.BytesIO()
        np.save(content, value)
        write_atomically(directory / f"output_{n}.npy", content.getvalue())
