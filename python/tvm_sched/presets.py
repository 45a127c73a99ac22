"""Files that come with the package and are asked for by name, and what is said of a name that is not known."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path

from .errors import FormatError

_LIKENESS = 0.5


def preset_files(folder: Path) -> dict[str, Path]:
    """The TOML files of a folder by their names, sorted."""
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """``"; did you mean 'this' or 'that'?"`` of known names that are like one that is not; empty where none is."""
    close = difflib.get_close_matches(name.lower(), list(known), cutoff=_LIKENESS)
    return f"; did you mean {' or '.join(map(repr, close))}?" if close else ""


def neither_preset_nor_file(
    what: str, name: str, presets: Iterable[str], others: str = "", like: str = ""
) -> FormatError:
    """The error for a name that is no preset's and no file's.

    Parameters
    ----------
    what : str
        What the name should stand for, such as ``"topology"``.
    others : str
        What else may be named, for the end of the list of presets.
    like : str
        More names, apart by blanks, that may have been meant and are not listed.
    """
    names = list(presets)
    hint = did_you_mean(name, [*names, *like.split()]) or "."
    return FormatError(f"{what} {name!r} is neither a preset nor a file{hint} Presets are {', '.join(names)}{others}")
