"""The best known solutions and bounds of a suite, stored as files with it."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import msgspec

from ..errors import InputError
from ..files import convert, decode_document, read_bytes, write_atomically, write_document
from .suite import Case, Suite

FORMAT, VERSION = "tvm_sched.best_known", 1


class Known(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is known of an instance.

    Parameters
    ----------
    digest : str
        Of the content for which it holds.
    value : float
    method : str
        Whose solution it is.
    bound : float
    bound_by : str
    checked : str
        Which other implementation has checked the solution, and the bound if it does not say ``alone``; empty: none has.
    """

    digest: str
    value: float
    method: str
    bound: float
    bound_by: str
    checked: str = ""


class _Document(msgspec.Struct, forbid_unknown_fields=True):
    instances: dict[str, Known]


class BestKnown:
    """``best.json`` and the folder ``best`` beside a suite: solutions and evidence, compressed."""

    def __init__(self, suite: Suite) -> None:
        self.file, self.folder = suite.folder / "best.json", suite.folder / "best"
        self.instances: dict[str, Known] = {}
        if self.file.exists():
            data = decode_document(read_bytes(self.file), FORMAT, VERSION, os.fspath(self.file))
            self.instances = convert(data, _Document, os.fspath(self.file)).instances

    def of(self, case: Case) -> Known | None:
        """What is known of an instance as it is now; nothing where its content has changed since."""
        known = self.instances.get(case.name)
        return known if known is not None and known.digest == case.digest else None

    def add(self, case: Case, known: Known, solution: bytes, evidence: bytes | None) -> None:
        """Keep a solution, its evidence, and what they are worth."""
        for name, content in (("solution", solution), ("evidence", evidence)):
            file = self._path(case, name)
            if content is None:
                file.unlink(missing_ok=True)
                continue
            file.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(file, gzip.compress(content, mtime=0))
        self.note(case, known)

    def note(self, case: Case, known: Known) -> None:
        """Change what is known, the solution being the same."""
        self.instances[case.name] = known
        body = _Document(dict(sorted(self.instances.items())))
        write_document(self.file, body, FORMAT, VERSION)

    def solution(self, case: Case) -> bytes:
        """The kept solution; raises `InputError` where there is none."""
        file = self._path(case, "solution")
        if not file.exists():
            raise InputError(f"{file} is missing: the best known solution of {case.name!r}")
        return read_bytes(file)

    def evidence(self, case: Case) -> bytes | None:
        """The kept evidence of the bound, if there is any."""
        file = self._path(case, "evidence")
        return read_bytes(file) if file.exists() else None

    def files(self, case: Case) -> dict[str, str]:
        """Where solution and evidence are kept, whether there are such files or not."""
        return {what: os.fspath(self._path(case, what)) for what in ("solution", "evidence")}

    def _path(self, case: Case, what: str) -> Path:
        return self.folder / f"{case.name}.{what}.json.gz"
