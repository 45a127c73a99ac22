"""Find the package's preset files by name."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from .errors import FormatError, did_you_mean


def preset_files(folder: Path) -> dict[str, Path]:
    """Return the TOML files of a folder by their names, sorted."""
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def neither_preset_nor_file(
    what: str, name: str, presets: Iterable[str], others: str = "", like: str = ""
) -> FormatError:
    """Return the error for a name that is neither a preset nor a file.

    Parameters
    ----------
    what : str
        The kind of the name, such as ``"topology"``.
    others : str
        Other allowed names, to end the list of presets.
    like : str
        Further names, separated by blanks, that the error may suggest but does not list.
    """
    names = list(presets)
    hint = did_you_mean(name, [*names, *like.split()]) or "."
    return FormatError(f"{what} {name!r} is neither a preset nor a file{hint} Presets are {', '.join(names)}{others}")
