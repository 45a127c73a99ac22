"""Values of inputs and outputs of a model, as the commands that run one read and write them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import InputError
from .inputs import check_directory
from .output import Output

InputValues = Annotated[
    list[str] | None,
    typer.Option("--input", metavar="NAME=FILE.npy", help="Value of an input. May be repeated; others are random."),
]
InputSeed = Annotated[int, typer.Option("--seed", metavar="N", help="Seed of the random inputs.")]
OutputFolder = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="DIR", help="Write the (last) outputs there, as output_0.npy, ..."),
]


def read_values(texts: list[str] | None, seed: int, output: Path | None) -> dict[str, Any]:
    """Arrays of ``NAME=FILE.npy`` texts; refuses a wrong seed, and a folder for outputs that cannot be made or written."""
    if seed < 0:
        raise InputError(f"--seed {seed}: 0 or more is allowed")
    if output is not None:
        _check_output_directory(output)
    return _read_inputs(texts)


def _check_output_directory(output: Path) -> None:
    """Refuse a folder that cannot be made or written."""
    if output.exists() and not output.is_dir():
        raise InputError(f"--output {output}: that is a file; a directory is expected")
    check_directory("--output", output if output.is_dir() else output.absolute().parent)


def _read_inputs(texts: list[str] | None) -> dict[str, Any]:
    """Arrays of ``NAME=FILE.npy`` texts."""
    arrays: dict[str, Any] = {}
    for text in texts or ():
        name, mark, file = text.partition("=")
        if not mark or not name or not file:
            raise InputError(f"--input {text}: expected NAME=FILE.npy")
        if name in arrays:
            raise InputError(f"--input {text}: input {name!r} has a value already")
        arrays[name] = read_array(f"--input {text}", Path(file))
    return arrays


def read_array(what: str, file: Path) -> Any:
    """The array of a ``.npy`` file; ``what`` begins the message where there is none."""
    import numpy as np

    try:
        array = np.load(file, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"{what}: {file} cannot be read as a NumPy array ({error})") from None
    if not isinstance(array, np.ndarray):
        raise InputError(f"{what}: {file} holds several arrays; a .npy file with one is expected")
    return array


def save_outputs(out: Output, directory: Path | None, outputs: list[Any]) -> None:
    """Write the outputs as ``output_0.npy``, ...; makes the folder."""
    if directory is None:
        return
    import io

    import numpy as np

    from ..files import write_atomically

    try:
        directory.mkdir(exist_ok=True)
    except OSError as error:
        raise InputError(f"--output {directory}: cannot be made ({error.strerror or error})") from None
    for n, value in enumerate(outputs):
        content = io.BytesIO()
        np.save(content, value)
        write_atomically(directory / f"output_{n}.npy", content.getvalue())
    out.wrote(directory, f"{len(outputs)} outputs")
