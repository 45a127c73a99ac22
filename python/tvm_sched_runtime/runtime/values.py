"""Read inputs of an artifact from files, and write its outputs to files."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
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
    plans: Sequence[dict[str, Any]], inputs: Mapping[str, Array], seed: int, any_sizes: bool = False
) -> list[Array]:
    """Complete the user's inputs with random ones, for the first plan that takes them.

    With ``any_sizes``, all inputs may also be given with sizes that no plan has.

    Raises
    ------
    InputError
        A name that no plan knows, or shapes or dtypes that no plan takes.
    """
    names = list(dict.fromkeys(argument["name"] for plan in plans for argument in plan["arguments"]))
    for name in inputs:
        if name not in names:
            raise InputError(f"--input {name}: the artifact has no such input; it has {', '.join(names) or 'none'}")
    for plan in plans:
        if all(_takes(argument, inputs) for argument in plan["arguments"]):
            rng = np.random.default_rng(seed)
            return [random_value(rng, argument) if argument["name"] not in inputs else inputs[argument["name"]]
                    for argument in plan["arguments"]]  # fmt: skip
    if any_sizes and len(inputs) == len(names):
        return [inputs[name] for name in names]
    described = ", ".join(f"{name}: {list(value.shape)} {value.dtype}" for name, value in inputs.items())
    allowed = "; or ".join(
        ", ".join(f"{a['name']}: {list(a['shape'])} {a['dtype']}" for a in plan["arguments"]) for plan in plans
    )
    raise InputError(f"the artifact takes no inputs {described}; allowed are {allowed}")


def _takes(argument: Mapping[str, Any], inputs: Mapping[str, Array]) -> bool:
    value = inputs.get(argument["name"])
    return value is None or (list(value.shape) == list(argument["shape"]) and value.dtype.name == argument["dtype"])


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
